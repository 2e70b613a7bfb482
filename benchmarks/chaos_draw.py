"""What a seed stands for: one candidate, one fault, one moment. Pure: the same seed always draws the same case."""

from __future__ import annotations

import random
from collections.abc import Collection
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


@dataclass(frozen=True)
class Case:
    """One seeded rollout.

    Args:
        moment: the fault comes with this event of the operation, counted from 1; with the outcome when there are fewer.
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

    @property
    def may_be_promoted(self) -> bool:
        return self.candidate == "good"

    def __str__(self) -> str:
        what = f"{self.fault} ({self.file}: {self.garbage})" if self.fault == "garbled_file" else self.fault
        return (
            f"seed {self.seed}: {what} at event {self.moment}; candidate: {self.candidate}, {self.flavour}; "
            f"known-good: {self.good}; over {self.transport}"
        )


def draw(seed: int, without: Collection[str] = ()) -> Case:
    """The case of a seed. ``without``: faults that this machine cannot make; a seed of theirs draws again among the others."""
    dice = random.Random(f"gpuops chaos {seed}")
    run, place = divmod(seed, len(FAULTS))
    fault = random.Random(f"gpuops chaos run {run}").sample(FAULTS, len(FAULTS))[place]
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
