"""Playbook flags as words of an argv, and which flags a playbook may set."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.errors import PlaybookError

Scalar = str | int | float
Flag = bool | Scalar | Sequence[Scalar] | Mapping[str, Any] | None
"""``true``: the bare flag. ``false`` and ``null``: no flag. A list: several words. A mapping: JSON in one word."""

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\Z")


@dataclass(frozen=True)
class GoneFlag:
    """A flag that this version does not have, and the one that took its place (empty: none did)."""

    flag: str
    use: str
    source: str


@dataclass(frozen=True)
class WeightCache:
    """How a server takes weights that the engine itself keeps on the cards.

    Attributes:
        engine: name and version, for people.
        flags: what tells the server to; None where this version has no such cache.
        excludes: flags that do not go with it.
        since: the first version that has one; None when none has.
    """

    engine: str
    flags: Mapping[str, Flag] | None
    excludes: tuple[str, ...]
    since: str | None

    def with_flags(self, flags: Mapping[str, Flag]) -> dict[str, Flag]:
        """A playbook's flags and those that ask for the kept weights. Raises PlaybookError where that cannot be."""
        if self.flags is None:
            known = f"{self.engine.split()[0]} has one since {self.since}" if self.since else "no version is known to have one"
            raise PlaybookError(
                f"{self.engine} has no cache of weights on the cards",
                evidence=f"model.keep: engine; {known}",
                next="remove model.keep; model.warm reads the weights into memory while the old server serves",
                kind="weight_cache",
            )
        wrong = next((flag for flag in self.excludes if flags.get(flag) not in (None, False)), None)
        if wrong is not None:
            raise PlaybookError(
                f"model.keep and the flag {wrong!r} exclude each other in {self.engine}",
                evidence=f"server.flags.{wrong}: {flags[wrong]}",
                next=f"remove model.keep, or server.flags.{wrong}",
                kind="weight_cache",
            )
        return {**self.flags, **flags}


@dataclass(frozen=True)
class FlagRules:
    """Which flags a playbook may set.

    Attributes:
        own: flags that gpuops sets itself, with the playbook key that stands for each.
        gone: flags that this version does not have.
    """

    own: Mapping[str, str]
    gone: tuple[GoneFlag, ...]

    def check(self, flag: str, engine: str) -> None:
        """Raises PlaybookError when ``flag`` is badly written, belongs to gpuops, or is gone from ``engine``."""
        if not _NAME.match(flag):
            better = flag.lstrip("-").replace("_", "-").lower()
            raise PlaybookError(
                f"{flag!r} is not how a flag is written",
                evidence="flags are lower-case words joined by '-', without the leading '--'",
                next=f"write it as {better!r}" if _NAME.match(better) else "correct the name under server.flags",
                kind="flag_name",
            )
        for own, key in self.own.items():
            if flag != own and not own.startswith(flag):
                continue
            # argparse takes any unambiguous beginning of a flag for the flag itself: `por` would set the port.
            raise PlaybookError(
                f"the flag {flag!r} belongs to gpuops",
                evidence=f"gpuops decides --{own} itself" if flag == own else f"the engine takes --{flag} for --{own}",
                next=f"remove it from server.flags and use {key!r}",
                kind="flag_owned",
            )
        for gone in self.gone:
            if flag == gone.flag:
                raise PlaybookError(
                    f"{engine} has no flag {flag!r}",
                    evidence=gone.source,
                    next=f"write {gone.use!r} instead" if gone.use else "remove it from server.flags",
                    kind="flag_gone",
                )


def flag_words(flag: str, value: Flag) -> list[str]:
    """One flag with its value as argv words."""
    option = f"--{flag}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, Mapping):
        return [option, json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    if isinstance(value, str | int | float):
        text = str(value)
        # argparse takes a word that begins with '-' for another flag.
        return [f"{option}={text}"] if text.startswith("-") or not text else [option, text]
    return [option, *(str(item) for item in value)] if value else []
