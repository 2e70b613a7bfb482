"""The values of a playbook that are paths on the laptop.

Each starts from the folder of the file that names it. The model holds it relative to the folder of the playbook that was loaded,
so that the same playbook means the same thing on every machine; what is absolute stays so.
"""

from __future__ import annotations

import os
from pathlib import Path

from .locate import Located
from .problems import Key, Problem, near_miss

PATHS: tuple[tuple[Key, str], ...] = (
    (("host", "ssh_config"), "file"),
    (("host", "sandbox"), "made on demand"),
    (("runtime", "lock"), "file"),
    (("runtime", "files", "*"), "file"),
    (("model", "config"), "folder"),
    (("model", "convert"), "file"),
    (("build", "tree"), "folder"),
    (("hooks", "before-stop"), "script"),
    (("hooks", "after-ready"), "script"),
    (("hooks", "after-promote"), "script"),
    (("hooks", "after-restore"), "script"),
)


NO_PATH = (OSError, ValueError, RuntimeError)
"""What pathlib raises for what can be no path here: too long, with a NUL, in the home of a user that does not exist."""

# So much of a text is shown that is no path, in characters.
_SHOWN = 60


def relocate(tree: Located, base_dir: Path) -> Located:
    """The tree with every path in it made to start from ``base_dir``."""
    for pattern, _ in PATHS:
        for key, node in _matches(tree, pattern):
            tree = _replace(tree, key, _moved(node, base_dir))
    return tree


def missing(tree: Located, base_dir: Path, section: str | None = None) -> list[Problem]:
    """A problem for every file or folder that a relocated tree, or one section of it, names and that is not there."""
    problems = []
    for pattern, kind in PATHS:
        if section not in (None, pattern[0]):
            continue
        for key, node in _matches(tree, pattern):
            try:
                wrong = _wrong(absolute(node.value, base_dir), kind)
            except NO_PATH as error:
                wrong = no_path(node.value, error)
            if wrong:
                problems.append(Problem(node.mark, key, wrong))
    return problems


def no_path(text: str, error: Exception) -> str:
    """Why a text is no path, by what the system said."""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"{shown!r} is no path: {(isinstance(error, OSError) and error.strerror) or error}"


def _wrong(path: Path, kind: str) -> str:
    there = {"file": path.is_file(), "script": path.is_file(), "folder": path.is_dir()}.get(kind, True)
    if not there:
        return f"there is no {kind} {path}{_sibling(path)}"
    return _no_script(path) if kind == "script" else ""


def absolute(path: str, base_dir: Path) -> Path:
    """A path of the playbook as an absolute one; ``~`` is the user's home on the laptop. Raises one of :data:`NO_PATH`."""
    return Path(os.path.normpath(base_dir / Path(path).expanduser()))


def _no_script(path: Path) -> str:
    """Why a file cannot be executed directly on the host; empty when it can."""
    try:
        with path.open("rb") as file:
            first = file.readline()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not first.startswith(b"#!"):
        return f"the script {path} does not begin with a '#!' line: the host executes it directly"
    # The kernel would look for an interpreter whose name ends in a carriage return.
    return f"the script {path} has Windows line ends: no interpreter is called by them" if first.endswith(b"\r\n") else ""


def _matches(node: Located, pattern: Key, key: Key = ()) -> list[tuple[Key, Located]]:
    if not pattern:
        return [(key, node)] if isinstance(node.value, str) and node.value else []
    part, rest = pattern[0], pattern[1:]
    if part == "*":
        items = node.value if isinstance(node.value, list) else []
        return [match for index, item in enumerate(items) for match in _matches(item, rest, (*key, index))]
    child = node.get(str(part))
    return [] if child is None else _matches(child, rest, (*key, part))


def _moved(node: Located, base_dir: Path) -> Located:
    # Without looking for the home: there may be no such user, which is not said here.
    if node.base == base_dir or node.value.startswith(("/", "~")):
        return node
    return Located(Path(os.path.relpath(node.base / node.value, base_dir)).as_posix(), node.mark, base_dir)


def _replace(node: Located, key: Key, new: Located) -> Located:
    if not key:
        return new
    if isinstance(node.value, list):
        items = [_replace(item, key[1:], new) if index == key[0] else item for index, item in enumerate(node.value)]
        return Located(items, node.mark, node.base)
    children = {**node.value, key[0]: _replace(node.value[key[0]], key[1:], new)}
    return Located(children, node.mark, node.base)


def _sibling(path: Path) -> str:
    names = (entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else ()
    meant = near_miss(path.name, names)
    return f"; did you mean {meant!r}?" if meant is not None else ""
