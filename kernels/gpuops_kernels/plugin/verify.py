"""Do these proofs show that our kernels serve on every rank?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import proof
from .proof import ACTIVE, NOT_APPLICABLE, OFF, FamilyProof, Proof

# What every rank of a server has in common, in words.
_THE_SAME: Mapping[str, Callable[[Proof], str]] = {
    "their active families": lambda each: ", ".join(sorted(_active(each))) or "none",
    "their versions": lambda each: ", ".join(f"{name} {version}" for name, version in sorted(each.versions.items())) or "none",
    "their mode": lambda each: each.mode,
}


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Args:
        passed: every rank proved every family that it should.
        lines: one for each rank, and one for each thing that is wrong with the whole.
    """

    passed: bool
    lines: tuple[str, ...]


def verify(
    proofs: Sequence[Proof], ranks: int, expected_hash: str | None = None, families: Iterable[str] | None = None
) -> Verdict:
    """Judge the proofs of one server.

    Args:
        ranks: how many worker processes the server has (TP x PP x DP).
        expected_hash: the :func:`proof.content_hash` of the package that should serve; None: any, as long as all ranks have the same.
        families: which must be active and called; None: every family that is neither ``off`` nor ``not applicable``,
            and at least one of them called. A family that has passed every call on to the engine's own is no trouble beside another that serves.
    """
    wanted = tuple(families) if families is not None else None
    troubles = [(each, _troubles(each, expected_hash, wanted)) for each in sorted(proofs, key=lambda each: each.label)]
    lines = [
        f"{each.label} (pid {each.pid}): {'no: ' + '; '.join(found) if found else _summary(each)}" for each, found in troubles
    ]
    whole = _whole(proofs, ranks)
    return Verdict(not whole and not any(found for _, found in troubles), (*lines, *(f"no: {each}" for each in whole)))


def read_all(where: Path) -> tuple[list[Proof], list[str]]:
    """The proofs in a folder, or beside a path that ends in ``.json`` (see :func:`proof.write`), and what could not be read."""
    paths = sorted(where.parent.glob(f"{where.stem}.*.json")) if where.suffix == ".json" else sorted(where.glob("*.json"))
    proofs, unreadable = [], []
    for path in paths:
        try:
            proofs.append(proof.read(path))
        except proof.MalformedProofError as error:
            unreadable.append(str(error))
    return proofs, unreadable


def not_running(proofs: Iterable[Proof]) -> list[str]:
    """The proofs whose process does not run any more, on this machine: left over from a server before."""
    return [f"{each.label}: pid {each.pid} is not running any more" for each in proofs if proof.start_of(each.pid) != each.start]


def _whole(proofs: Sequence[Proof], ranks: int) -> list[str]:
    found = []
    if len(proofs) != ranks:
        found.append(f"{len(proofs)} proofs for {ranks} ranks")
    labels = [each.label for each in proofs]
    found += [
        f"rank {label} proved itself {labels.count(label)} times" for label in sorted(set(labels)) if labels.count(label) > 1
    ]
    if len({each.content for each in proofs}) > 1:
        found.append(
            "the ranks run different contents of the package: " + ", ".join(sorted({each.content[:12] for each in proofs}))
        )
    for what, of in _THE_SAME.items():
        said = sorted({of(each) for each in proofs})
        if len(said) > 1:
            found.append(f"the ranks differ in {what}: " + " on some, ".join(said) + " on others")
    return found


def _troubles(each: Proof, expected_hash: str | None, wanted: tuple[str, ...] | None) -> list[str]:
    found = []
    if expected_hash is not None and each.content != expected_hash:
        found.append(f"runs content {each.content[:12]}, expected {expected_hash[:12]}")
    asked = wanted is not None
    if wanted is None:
        wanted = tuple(name for name, family in each.families.items() if family.state not in (OFF, NOT_APPLICABLE))
        if not wanted:
            found += [f"{name} is not applicable: {each.families[name].reason}" for name in _not_applicable(each)] or [
                "no family is on"
            ]
    for name in wanted:
        family = each.families.get(name)
        if family is None:
            found.append(f"{name} is not mentioned")
        elif family.state != ACTIVE:
            found.append(f"{name} is {family.state}: {family.reason}")
        elif not family.calls and not family.passed_on:
            found.append(f"{name} is in place but was never called (stage {each.stage})")
        elif not family.calls and (asked or not any(other.calls for other in each.families.values())):
            found.append(_of(name, family))
    return found


def _not_applicable(each: Proof) -> list[str]:
    return [name for name, family in each.families.items() if family.state == NOT_APPLICABLE]


def _active(each: Proof) -> list[str]:
    return [name for name, family in each.families.items() if family.state == ACTIVE]


def _summary(each: Proof) -> str:
    active = ", ".join(_of(name, each.families[name]) for name in sorted(_active(each)))
    return f"yes: {active}; content {each.content[:12]}"


def _of(name: str, family: FamilyProof) -> str:
    if family.passed_on and not family.calls:
        return f"{name} is in place, but no batch was large enough to use it: all {family.passed_on} calls were passed on to SGLang's own"
    passed_on = f", {family.passed_on} more passed on to SGLang's own" if family.passed_on else ""
    return f"{name} ({family.calls} calls{passed_on})"
