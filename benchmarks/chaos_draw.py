"""What a seed stands for: one candidate, one fault, one moment. Pure: the same seed always draws the same case."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

FAULTS = (
    "kill_controller",
    "kill_runner",
    "kill_supervisor",
    "kill_server",
    "kill_rank",
    "kill_ssh_session",
    "link_cut",
    "link_down",
    "link_half_open",
    "disk_full",
    "no_fork",
    "second_controller",
    "garbled_file",
)
"""Every fault. Each run of as many seeds as there are faults draws every one of them once."""

GARBLED = ("server.json", "state.json", "lease.json", "outcome.json", "port.json", "journal.jsonl", "lock owner")
GARBAGE = {"empty": b"", "half": b'{"pid": 12', "noise": bytes(range(128, 256)) * 2, "no_object": b"[1, 2]\n"}

CANDIDATES = (
    "good",
    "good",
    "good",
    "garbage",
    "die launch=1",
    "die weights=KILL",
    "die capture=SEGV",
    "die generating=3",
    "die probes=KILL",
    "lose weights",
    "lose probes",
    "hang",
    "mute",
)
"""What the candidate does: flags of the imitation engine; a good one is as likely as three bad ones."""

FLAVOURS = ("plain", "stubborn", "late")
"""How either server behaves besides: as it should, ignoring TERM, or saying that it is ready before it listens."""

EVENTS = 34
"""About how many events a rollout tells; a moment that never comes is the outcome's."""


REAL_FAULTS = (
    "kill_controller",
    "kill_agent",
    "kill_runner",
    "kill_supervisor",
    "kill_server",
    "kill_rank",
    "link_cut",
)
"""The faults that the real engine has to show something new for: those that end one of its processes, or the view of them."""

REAL_PHASES = ("stop", "launch", "weights", "warm-up", "generating", "probes")


@dataclass(frozen=True)
class Case:
    """One seeded rollout.

    Args:
        moment: the fault comes with this event of the operation, counted from 1; with the outcome when there are fewer.
        phase: the fault comes with this phase instead; also with the outcome when it is never entered.
        good, candidate: what the known-good server and the candidate are like.
        file, garbage: what a `garbled_file` spoils, and with what.
    """

    seed: int
    fault: str
    moment: int
    candidate: str
    good: str
    flavour: str
    transport: str
    file: str
    garbage: str
    phase: str = ""

    @property
    def may_be_promoted(self) -> bool:
        return self.candidate == "good"

    def __str__(self) -> str:
        what = f"{self.fault} ({self.file}: {self.garbage})" if self.fault == "garbled_file" else self.fault
        when = f"in phase {self.phase}" if self.phase else f"at event {self.moment}"
        return (
            f"seed {self.seed}: {what} {when}; candidate: {self.candidate}, {self.flavour}; "
            f"known-good: {self.good}; over {self.transport}"
        )


def draw(seed: int, without: Collection[str] = ()) -> Case:
    """The case of a seed. ``without``: faults that this machine cannot make; a seed of theirs draws again among the others."""
    dice = random.Random(f"gpuops chaos {seed}")
    fault = _in_turn(seed, FAULTS, "gpuops chaos")
    case = Case(
        seed=seed,
        fault=fault,
        moment=dice.randint(1, EVENTS),
        candidate=dice.choice(CANDIDATES),
        good=dice.choice(FLAVOURS),
        flavour=dice.choice(FLAVOURS),
        transport=dice.choice(("fabric", "openssh")),
        file=dice.choice(GARBLED),
        garbage=dice.choice(sorted(GARBAGE)),
    )
    if fault not in without:
        return case
    return Case(**{**vars(case), "fault": dice.choice([each for each in FAULTS if each not in without])})


def draw_real(seed: int) -> Case:
    """The same for the real engine. Its candidate is good or has random weights, and its rollouts are known by their phases."""
    dice = random.Random(f"gpuops chaos, real engine, {seed}")
    return Case(
        seed=seed,
        fault=_in_turn(seed, REAL_FAULTS, "gpuops chaos, real engine: faults"),
        moment=0,
        phase=_in_turn(seed, REAL_PHASES, "gpuops chaos, real engine: phases"),
        candidate=dice.choice(("good", "garbage")),
        good="plain",
        flavour="plain",
        transport=dice.choice(("fabric", "openssh")),
        file="",
        garbage="",
    )


def _in_turn(seed: int, these: Sequence[str], name: str) -> str:
    """One of these, so that each run of as many seeds draws every one of them once."""
    run, place = divmod(seed, len(these))
    return random.Random(f"{name} run {run}").sample(these, len(these))[place]
