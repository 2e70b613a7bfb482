"""Playing an A/B comparison: launch, measure, keep, and so on to the last pair; and back to where the host was, whatever happens.

Every launch is a rollout through all gates, of which none is promoted: the known-good release stays what it was, and a host that is left alone for
longer than the comparison's lease goes back to it. The record is stored after every launch; a comparison that was cut goes on with the next one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from gpuops.errors import Exit, GpuopsError
from gpuops.measure.ab import DONE, FAILED, INTERRUPTED, RUNNING, Comparison, Launch, Name
from gpuops.rollout.watch import raise_for

# A launch that the host spoils is made once more; a host that does so twice is not fit to measure on.
TRIES = 2

Json = dict[str, Any]


class Box(Protocol):
    """The host, as far as a comparison needs it. Every method raises GpuopsError."""

    def launch(self, comparison: Comparison, name: Name) -> Json:
        """Roll a side out without promoting it; returns the outcome, whatever it is."""

    def bench(self, comparison: Comparison) -> Json:
        """Measure the running server at the comparison's cells; returns the agent's result."""

    def save(self, comparison: Comparison, *, take: bool = False) -> None:
        """Store the record. ``take`` makes the comparison ours, and begins to renew its lease.

        Raises:
            GpuopsError: another process goes on with it, or the host has ended it (kind ``taken``).
        """

    def now(self) -> tuple[int | None, int | None]:
        """The release whose server lives, and the known-good one."""

    def restore(self, comparison: Comparison) -> Json:
        """Bring the comparison's home back; returns the outcome."""

    def smoke(self) -> Json:
        """Put the running release's probes; returns the agent's result."""


class Player:
    """One process that plays a comparison.

    Args:
        tell: takes a line for people.
    """

    def __init__(self, comparison: Comparison, box: Box, tell: Callable[[str], None]) -> None:
        self.comparison = comparison
        self._box = box
        self._tell = tell

    def play(self) -> Comparison:
        """Play what is missing, and go back.

        Raises:
            GpuopsError: what ended the comparison before its time, after the host is back where it was; or why it is not (code 11).
        """
        self._box.save(self.comparison, take=True)
        trouble = self._launches()
        if trouble is not None and trouble.kind == "taken":
            raise trouble
        self._go_home()
        if trouble is not None:
            raise trouble
        return self.comparison

    def _launches(self) -> GpuopsError | None:
        """Launch by launch; returns what ended it too early."""
        resume = f"gpuops ab --resume {self.comparison.id}"
        state, trouble = DONE, None
        try:
            while (side := self.comparison.next_side) is not None:
                self._one(side)
        except KeyboardInterrupt:
            state = INTERRUPTED
            trouble = GpuopsError("the comparison was interrupted", next=resume, code=Exit.RESTORED, kind="cancelled")
        except GpuopsError as error:
            state = INTERRUPTED if error.kind == "cancelled" else FAILED
            steps = "; then ".join(filter(None, [error.next, resume]))
            trouble = GpuopsError(error.what, evidence=error.evidence, next=steps, code=error.code, kind=error.kind)
        except Exception as error:
            # A defect of ours is no reason to leave a candidate serving.
            state = FAILED
            trouble = GpuopsError(f"the comparison failed unexpectedly: {error!r}", next=resume, kind="bug")
        self.comparison = replace(self.comparison, state=state, reason=trouble.what if trouble else "")
        if trouble is None or trouble.kind != "taken":
            with contextlib.suppress(GpuopsError):
                # The host goes back in any case; the launches that count are stored already.
                self._box.save(self.comparison)
        return trouble

    def _one(self, name: Name) -> None:
        number = len(self.comparison.launches) + 1
        for attempt in range(1, TRIES + 1):
            again = f", attempt {attempt}" if attempt > 1 else ""
            self._tell(f"launch {number} of {2 * self.comparison.pairs}: {name} ({self.comparison.side(name).word}){again}")
            release = self._started(name)
            result = self._box.bench(self.comparison)
            if result["release"] != release:
                raise _changed(release, result["release"])
            if result["valid"]:
                launch = Launch(
                    name, release, result["launch"], round(time.time(), 3), result["client"], tuple(map(_kept, result["blocks"]))
                )
                self._must_be_comparable(launch)
                self.comparison = self.comparison.with_launch(launch)
                self._box.save(self.comparison)
                return
            self._note_spoiled(name, release, result)
        raise GpuopsError(
            f"the host has spoiled launch {number} {TRIES} times",
            evidence="\n".join(self.comparison.spoiled[-1]["faults"]),
            next="keep other work off the host",
            kind="spoiled",
        )

    def _must_be_comparable(self, launch: Launch) -> None:
        first = self.comparison.launches[0] if self.comparison.launches else launch
        if (first.client, _cells(first)) == (launch.client, _cells(launch)):
            return
        raise GpuopsError(
            "A and B were not measured by the same client at the same cells",
            evidence="; ".join(
                f"release {each.release}: {each.client}, {', '.join(cell['name'] for cell in _cells(each))}"
                for each in (first, launch)
            ),
            next="gpuops ab -p FILE A B (the playbook's cells for both), with runtimes that have the same client",
            kind="not_comparable",
        )

    def _started(self, name: Name) -> int:
        outcome = self._box.launch(self.comparison, name)
        if outcome.get("kind") == "cancelled":
            raise KeyboardInterrupt
        if outcome.get("kind") == "taken":
            raise _ended_elsewhere(outcome)
        raise_for(outcome)
        release = int(outcome["release"])
        if self.comparison.side(name).release != release:
            self.comparison = self.comparison.became(name, release)
            self._box.save(self.comparison)
        return release

    def _note_spoiled(self, name: Name, release: int, result: Json) -> None:
        """Keep why a launch does not count. Raises GpuopsError for figures that cannot be believed: another launch would not mend them."""
        bad = [block for block in result["blocks"] if not block["valid"]]
        faults = [f"{block['cell']['name']}: {fault}" for block in bad for fault in block["faults"]]
        spoiled = {"side": name, "release": release, "launch": result["launch"], "faults": faults}
        self.comparison = replace(self.comparison, spoiled=(*self.comparison.spoiled, spoiled))
        self._box.save(self.comparison)
        if any(block["rejected"] for block in bad):
            raise GpuopsError(
                f"what was measured of {name} (release {release}) cannot be believed",
                evidence="\n".join(faults),
                next=f"gpuops logs --release {release}",
                kind="rejected",
            )

    def _go_home(self) -> None:
        """The release of before serves again, and its probes pass. Raises GpuopsError (code 11) when it is not so."""
        home = self.comparison.home
        try:
            running, good = self._box.now()
            if good != home:
                raise _promoted(home, good)
            served = running == home
            if not served:
                self._tell(f"back to release {home}")
                raise_for(self._box.restore(self.comparison))
            smoke = self._box.smoke()
        except GpuopsError as error:
            raise GpuopsError(
                f"the comparison is over, and release {home} is not back: {error.what}",
                evidence=error.evidence,
                next=f"gpuops restore {home}",
                code=error.code if error.code in (Exit.UNKNOWN, Exit.UNREACHABLE, Exit.REFUSED) else Exit.RESTORE_FAILED,
                kind="not_back",
            ) from error
        back = {"release": home, "restored": not served, "verdict": smoke["verdict"], "at": round(time.time(), 3)}
        self.comparison = replace(self.comparison, back=back)
        with contextlib.suppress(GpuopsError):
            self._box.save(self.comparison)
        if smoke["verdict"] != "right":
            raise GpuopsError(
                f"the comparison is over, release {home} serves again, and its probes say that it is {smoke['verdict']}",
                evidence=f"check: {smoke['check']['state']}",
                next="gpuops smoke",
                code=Exit.RESTORE_FAILED,
                kind="not_back",
            )
        self._tell(f"release {home} serves, and answers right")


def resumable(comparison: Comparison, known_good: int | None, pairs: int | None, token: str) -> Comparison:
    """A stored comparison as it goes on, with more pairs where they are asked for.

    Raises:
        GpuopsError: it is complete; or another release has become known-good since.
    """
    wanted = replace(comparison, pairs=max(pairs or 0, comparison.pairs), token=token, state=RUNNING, reason="", back=None)
    if wanted.next_side is None:
        raise GpuopsError(
            f"comparison {comparison.id} has all of its {comparison.pairs} pairs",
            evidence=f"gpuops report --ab {comparison.id} shows them",
            next=f"gpuops ab --resume {comparison.id} --pairs {comparison.pairs + 5}",
            code=Exit.USAGE,
            kind="complete",
        )
    if known_good != comparison.home:
        raise GpuopsError(
            f"comparison {comparison.id} cannot go on: the known-good release is another one now",
            evidence=f"it was {comparison.home}, it is {known_good}",
            next="begin a new comparison: gpuops ab A B",
            code=Exit.REFUSED,
            kind="known_good_changed",
        )
    return wanted


def _cells(launch: Launch) -> list[Json]:
    return [block["cell"] for block in launch.blocks]


def _kept(block: Json) -> Json:
    """A block as it stands in the record: the host keeps all of it with the release."""
    return {key: block[key] for key in ("cell", "at", "seed", "figures")}


def _promoted(home: int, good: int | None) -> GpuopsError:
    return GpuopsError(
        "somebody has made another release known-good meanwhile, and the host is left to them",
        evidence=f"it was {home}, it is {good}",
        next="gpuops history",
        code=Exit.REFUSED,
        kind="known_good_changed",
    )


def _ended_elsewhere(outcome: Json) -> GpuopsError:
    return GpuopsError(outcome["reason"], evidence=outcome["evidence"], next=outcome["next"], code=Exit.REFUSED, kind="taken")


def _changed(wanted: int, found: int) -> GpuopsError:
    return GpuopsError(
        "somebody has changed the service during the comparison",
        evidence=f"release {wanted} was started, release {found} was measured",
        next="gpuops history; gpuops lock keeps others away",
        code=Exit.REFUSED,
        kind="changed",
    )
