"""Whose cards are whose: which ones a service uses, and who else is on them.

A service uses what its ``CUDA_VISIBLE_DEVICES`` shows it (else every card), and of those the ones that its ranks take: the first of them, the step
and the number of ranks are in the release's engine facts. Another process on a card that a service does not use is none of its business.

CUDA numbers cards by speed unless CUDA_DEVICE_ORDER says PCI_BUS_ID; among cards of one model that is the order of ``nvidia-smi``, used here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import AbstractSet, Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple

from . import proc
from .gpus import Card, GpuProcess

VISIBLE = "CUDA_VISIBLE_DEVICES"

# What a driver without any process on the card still counts as used, in MiB (a console, MIG bookkeeping; persistence mode shows 0 to 5).
IDLE_MIB = 600

_TITLE = 100


@dataclass(frozen=True)
class Strangers:
    """Processes on the cards that are not the service's, in words: on its own cards, and on others."""

    ours: Tuple[str, ...] = ()
    elsewhere: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Released:
    """One card of a service that was stopped.

    Args:
        used_mib: of the whole card; None where the driver does not tell.
        held: what the driver still books on processes of the run.
        others: other processes on it, in words.
    """

    card: int
    used_mib: Optional[int]
    held: Tuple[GpuProcess, ...] = ()
    others: Tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """Nothing of the run is left on it, as far as can be seen."""
        return not self.held and (bool(self.others) or (self.used_mib or 0) <= IDLE_MIB)

    @property
    def text(self) -> str:
        used = "" if self.used_mib is None else f", {self.used_mib} MiB used"
        if self.held:
            return f"card {self.card} is not free{used}: {'; '.join(who([each]) for each in self.held)}"
        if self.others:
            return f"card {self.card} is free of it{used}: {'; '.join(self.others)}"
        return (
            f"card {self.card} is free{used}" if self.free else f"card {self.card}{used} by no process that can be seen from here"
        )

    def to_json(self) -> Dict[str, Any]:
        return {**asdict(self), "free": self.free, "text": self.text}


def released(
    own: AbstractSet[int], known: Sequence[Card], on_cards: Sequence[GpuProcess], ours: AbstractSet[int]
) -> List[Released]:
    """What is left on each card of a service, by the pids of its run."""
    found = []
    for card in known:
        here = [each for each in on_cards if each.gpu == card.index]
        held = tuple(each for each in here if each.pid in ours)
        others = tuple(who([each]) for each in here if each.pid not in ours)
        found += [Released(card.index, card.used_mib, held, others)] if card.index in own else []
    return found


def of_release(document: Dict[str, Any], known: Sequence[Card]) -> FrozenSet[int]:
    """The indices of the cards that a release's server uses."""
    shown = _visible(document.get("env", {}).get(VISIBLE), known)
    ranks = document.get("engine", {}).get("ranks", {})
    number = ranks.get("schedulers")
    place = ranks.get("cards") or {}
    first, step = int(place.get("first") or 0), int(place.get("step") or 1)
    taken = shown[first::step][:number] if number else shown
    # Fewer than ranks: it takes them otherwise than we know.
    return frozenset(taken if not number or len(taken) == number else shown)


def strangers(on_cards: Iterable[GpuProcess], ours: AbstractSet[int], own: AbstractSet[int]) -> Strangers:
    """Who else has memory on a card.

    Args:
        ours: pids of the service's processes.
        own: indices of the service's cards.
    """
    others: Dict[int, List[GpuProcess]] = {}
    for each in on_cards:
        if each.pid not in ours:
            others.setdefault(each.pid, []).append(each)
    here, elsewhere = [], []
    for held in others.values():
        mine = [each for each in held if each.gpu in own]
        if mine:
            only = " only" if len(mine) < len(own) else ""
            here.append(f"foreign process on {numbered(each.gpu for each in mine)}{only}: {who(mine)}")
        else:
            elsewhere.append(f"another process on {numbered(each.gpu for each in held)}, not used by this service: {who(held)}")
    return Strangers(tuple(here), tuple(elsewhere))


def who(held: Sequence[GpuProcess]) -> str:
    """A process with memory on one or more cards: pid, name, MiB."""
    stat = proc.read_stat(held[0].pid)
    # The title tells more than the driver's short name, where we share its pid namespace.
    name = proc.title(held[0].pid)[:_TITLE] if stat is not None and stat.living else ""
    used: List[Optional[int]] = [each.used_mib for each in held]
    memory = f", {sum(each or 0 for each in used)} MiB" if any(each is not None for each in used) else ""
    return f"pid {held[0].pid}, {name or held[0].command}{memory}"


def numbered(indices: Iterable[int]) -> str:
    """``card 1``, or ``cards 0 and 1``."""
    names = [str(index) for index in sorted(set(indices))]
    return f"card {names[0]}" if len(names) == 1 else f"cards {', '.join(names[:-1])} and {names[-1]}"


def _visible(words: Optional[str], known: Sequence[Card]) -> List[int]:
    """The cards that CUDA shows, in its order: up to the first word that names none (CUDA C++ Programming Guide, environment variables)."""
    every = [card.index for card in known]
    if words is None:
        return every
    found: List[int] = []
    for word in (each.strip() for each in words.split(",")):
        if word.startswith("MIG-"):
            # A part of a card by a name that does not tell which.
            return every
        index = next((card.index for card in known if _means(word, card)), None)
        if index is None:
            break
        found.append(index)
    return found


def _means(word: str, card: Card) -> bool:
    return card.index == int(word) if word.isdigit() else word.startswith("GPU-") and card.uuid.startswith(word)
