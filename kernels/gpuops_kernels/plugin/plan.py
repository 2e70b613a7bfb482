"""Which families are wanted in this process: a pure function of the environment, the table and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..registry import PLACED
from . import proof, settings
from .settings import Settings
from .targets import Engine, Target

Capability = tuple[int, int]


@dataclass(frozen=True)
class Machine:
    """What the kernels could run on.

    Args:
        capability: the card's compute capability; None without a card.
        nothing: why nothing applies on this machine; empty with a card that has configurations.
    """

    capability: Capability | None
    nothing: str = ""


@dataclass(frozen=True)
class Choice:
    """What is to become of a family.

    Args:
        targets: to replace; empty when the family stays out.
        state: ``off`` or ``not applicable`` when it stays out.
        reason: why it is in or out.
        insisted: its switch is 1, so that staying out is a failure in strict mode.
        models: how the names of the model classes begin that it is for.
        hiddens: the hidden sizes that it is for; empty means any.
    """

    targets: tuple[Target, ...]
    state: str
    reason: str
    insisted: bool = False
    models: str = ""
    hiddens: frozenset[int] = frozenset()


def choose(wanted: Settings, engine: Engine | None, machine: Machine, nothing: str = "") -> Mapping[str, Choice]:
    """A choice for every family.

    Args:
        engine: the table's entry for the SGLang that runs; None for a version that is not in the table.
        nothing: another reason why nothing applies, such as the unknown version.
    """
    return {family: _choice(family, wanted, engine, machine, nothing) for family in PLACED}


def _choice(family: str, wanted: Settings, engine: Engine | None, machine: Machine, nothing: str) -> Choice:
    switch = wanted.switches.get(family)
    if switch is False:
        return Choice((), proof.OFF, f"{settings.switch(family)}=0")
    if nothing or engine is None:
        return Choice((), proof.NOT_APPLICABLE, nothing, insisted=bool(switch))
    known = engine.families.get(family)
    if machine.nothing and not (known is not None and known.without_card and switch):
        return Choice((), proof.NOT_APPLICABLE, machine.nothing, insisted=bool(switch))
    if known is None:
        reason = f"SGLang {engine.first} to {engine.last} has no place for it"
        return Choice((), proof.OFF, reason, insisted=bool(switch))
    if known.without_card and machine.capability is not None:
        return Choice((), proof.OFF, "it replaces what SGLang runs on a machine without a card", insisted=bool(switch))
    if switch:
        return Choice(
            known.targets, proof.ACTIVE, f"{settings.switch(family)}=1", insisted=True, models=known.models, hiddens=known.hiddens
        )
    if not known.on:
        return Choice((), proof.OFF, known.reason)
    if machine.capability not in known.capabilities:
        major, minor = machine.capability or (0, 0)
        return Choice((), proof.OFF, f"on compute capability {major}.{minor} SGLang does not take the path that it replaces")
    return Choice(known.targets, proof.ACTIVE, known.reason, models=known.models, hiddens=known.hiddens)
