"""Reading unified diffs: which files they touch, and where their hunks are. Applying them is git's work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_UNSUPPORTED = ("rename from ", "copy from ", "GIT binary patch", "Binary files ")


class NoPatch(ValueError):
    """The text is no unified diff that we take."""


@dataclass(frozen=True)
class PatchedFile:
    """A file that a patch touches. ``hunks`` are (first old line, the hunk's head); ``new`` when the patch makes the file."""

    path: str
    new: bool
    hunks: Tuple[Tuple[int, str], ...]

    def hunk_at(self, line: int) -> str:
        """The hunk that begins at an old line, in words; empty when there is none."""
        for number, (first, head) in enumerate(self.hunks, 1):
            if first == line:
                return f"hunk {number} of {len(self.hunks)} ({head})"
        return ""


def read(text: str) -> List[PatchedFile]:
    """The files of a patch in its order.

    Raises:
        NoPatch: it touches nothing, leads out of its folder, or does what a patch of sources has no need for (renames, binary data).
    """
    files: List[PatchedFile] = []
    lines = iter(text.splitlines())
    old: Optional[str] = None
    for line in lines:
        if line.startswith(_UNSUPPORTED):
            raise NoPatch(f"it holds {line!r}: only changed, new and removed text files are supported")
        if line.startswith("--- "):
            old = _name(line)
        elif line.startswith("+++ ") and old is not None:
            new = _name(line)
            files.append(PatchedFile(_inside(new if new != "/dev/null" else old), old == "/dev/null", ()))
            old = None
        elif (match := _HUNK.match(line)) is not None:
            if not files:
                raise NoPatch("its first hunk belongs to no file")
            last = files[-1]
            files[-1] = PatchedFile(last.path, last.new, (*last.hunks, (int(match[1]), match[0])))
            _skip(lines, int(match[2] or 1), int(match[3] or 1))
    if not files:
        raise NoPatch("it holds no change (`--- a/FILE` and `+++ b/FILE`)")
    return files


def _skip(lines: Iterator[str], old: int, new: int) -> None:
    """Past a hunk's lines: they may look like the head of another file."""
    while old > 0 or new > 0:
        line = next(lines, None)
        if line is None:
            raise NoPatch("its last hunk is cut")
        old -= line[:1] in ("", " ", "-")
        new -= line[:1] in ("", " ", "+")


def _name(line: str) -> str:
    name = line[4:].split("\t")[0].strip()
    return name if name == "/dev/null" else name.partition("/")[2]


def _inside(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or len(parts) < 2:
        raise NoPatch(
            f"{path or 'a file'} does not lie in a package: paths are a/PACKAGE/FILE and b/PACKAGE/FILE, as git diff writes them"
        )
    return path
