"""What a rank says of itself: which kernels serve there, in a file that the gate reads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1

ACTIVE, OFF, NOT_APPLICABLE, FAILED = "active", "off", "not applicable", "failed"


class MalformedProofError(ValueError):
    """A file is not a proof of this schema."""


@dataclass(frozen=True)
class TargetProof:
    """One replaced function.

    Args:
        target: ``module:attribute`` of the engine.
        replaced: ours is there, and the engine's own is bound nowhere.
        bindings: every ``module:attribute`` that was found to be ours.
        calls: calls from Python, since the model was loaded, that ours served (during the capture, and the first afterwards); replays of CUDA graphs
            are not counted.
        passed_on: such calls that ours left to the engine's own function, which it is put around.
        reason: why it is not replaced.
    """

    target: str
    replaced: bool
    bindings: tuple[str, ...] = ()
    calls: int = 0
    reason: str = ""
    passed_on: int = 0


@dataclass(frozen=True)
class FamilyProof:
    """One family: ``active``, ``off``, ``not applicable`` or ``failed``, and why."""

    state: str
    reason: str
    targets: tuple[TargetProof, ...] = ()

    @property
    def calls(self) -> int:
        """Calls of all its targets that ours served."""
        return sum(each.calls for each in self.targets)

    @property
    def passed_on(self) -> int:
        """Calls of all its targets that the engine's own served."""
        return sum(each.passed_on for each in self.targets)


@dataclass(frozen=True)
class Proof:
    """A rank's proof.

    Args:
        stage: ``started`` (before a model is there), ``loaded`` (before the capture), ``captured`` (after it).
        rank: the engine's ranks by kind (``tp``, ``pp``, ``dp``), as far as the process knows them.
        start: the process's start time in clock ticks after boot (``/proc/PID/stat``, field 22): pid and start name a process for good.
        capability: the card's compute capability, ``12.0``; empty without a card.
        content: sha256 over the package's files (:func:`content_hash`), as they were when the plugin was loaded.
        build: the controller's ``GPUOPS_BUILD``; empty when unset.
        versions: of sglang, torch and triton, where installed.
    """

    stage: str
    rank: Mapping[str, int]
    pid: int
    start: int
    title: str
    mode: str
    package: str
    content: str
    build: str
    capability: str
    versions: Mapping[str, str]
    families: Mapping[str, FamilyProof] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def label(self) -> str:
        """The rank as a word for file names and messages: ``dp0-pp0-tp3``; the pid before ranks are known."""
        return "-".join(f"{kind}{number}" for kind, number in sorted(self.rank.items())) or f"pid{self.pid}"

    def failures(self) -> list[str]:
        """Families that should serve and do not, one line each."""
        return [f"{name}: {family.reason}" for name, family in self.families.items() if family.state == FAILED]


def write(proof: Proof, where: Path) -> Path:
    """Write a proof atomically: a reader sees the old one or the new one, also after a crash. Returns the file's path.

    Args:
        where: a folder, made when missing, or a path that ends in ``.json``: the rank's label then goes before the suffix.

    Raises:
        OSError
    """
    if where.suffix == ".json":
        path = where.with_name(f"{where.stem}.{proof.label}.json")
    else:
        path = where / f"{proof.label}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{proof.pid}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(proof), file, indent=2, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def read(path: Path) -> Proof:
    """Read a proof.

    Raises:
        MalformedProofError
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("schema") != SCHEMA:
            raise MalformedProofError(f"{path} has schema {raw.get('schema')}, this package reads {SCHEMA}")
        return Proof(**{**raw, "families": {name: _family(family) for name, family in raw["families"].items()}})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise MalformedProofError(f"{path} is not a proof: {error}") from error


def content_hash(package: Path | None = None) -> str:
    """sha256 over the sorted (path, sha256) of a package's files, byte code left out; by default of this package, as it lies on this machine."""
    root = package or Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            line = f"{path.relative_to(root).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
            digest.update(line.encode())
    return digest.hexdigest()


def start_of(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in field 2 may hold blanks and parentheses: count from its end.
    return int(stat[stat.rindex(")") + 2 :].split()[19])


def _family(raw: Mapping[str, Any]) -> FamilyProof:
    return FamilyProof(
        **{**raw, "targets": tuple(TargetProof(**{**each, "bindings": tuple(each["bindings"])}) for each in raw["targets"])}
    )
