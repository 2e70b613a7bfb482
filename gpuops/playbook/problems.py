"""What is wrong with a playbook, with the place where it says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from gpuops.errors import PlaybookError

Key = tuple[str | int, ...]
"""A path of mapping keys and list indexes from the top of the playbook."""


@dataclass(frozen=True)
class Mark:
    """Where a value was written: a file and a line (from 1), or an option of the command line (no line)."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Problem:
    """One thing to mend: where, which key, what was expected, and the command that helps when there is one."""

    mark: Mark
    key: Key
    text: str
    next: str = ""

    def __str__(self) -> str:
        parts = [str(self.mark), dotted(self.key), self.text]
        return ": ".join(part for part in parts if part)


def invalid(path: str, problems: Sequence[Problem]) -> PlaybookError:
    """The error that lists every problem, in the order in which they stand in the files."""
    unique = list(dict.fromkeys(problems))
    unique.sort(key=lambda problem: (problem.mark.line is None, problem.mark.file, problem.mark.line or 0))
    count = "1 problem" if len(unique) == 1 else f"{len(unique)} problems"
    steps = dict.fromkeys(problem.next for problem in unique if problem.next)
    return PlaybookError(
        f"{path} is not a valid playbook: {count}",
        evidence="\n".join(str(problem) for problem in unique),
        next="\n".join(steps) or "mend the lines named above; docs/playbook.md explains every key",
    )


def first_of_each_key(problems: Iterable[Problem]) -> list[Problem]:
    """One problem a key: what is said after the first is its consequence, such as ``${NAME}`` being no address."""
    return list({problem.key: problem for problem in reversed(list(problems))}.values())[::-1]


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, if one is close."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown word: the near miss, or all that is known."""
    words = list(known)
    meant = near_miss(word, words)
    if meant is not None:
        return f"; did you mean {meant!r}?"
    return f"; known here: {', '.join(words)}" if words else ""


def dotted(key: Key) -> str:
    """``server.flags.tp``, as ``--set`` takes it."""
    return ".".join(str(part) for part in key)


def is_extension(key: object) -> bool:
    """True for the ``x-`` keys, which a playbook may carry in every mapping and which we never read."""
    return isinstance(key, str) and key.startswith("x-")
