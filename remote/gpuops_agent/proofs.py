"""A kernel build's proof: what each rank says of the kernels that serve there, read from its files and judged.

A build whose manifest names a plugin (``about.proof``) gets a folder in ``GPUOPS_KERNELS_PROOF``, emptied before each launch; every rank writes one
JSON file there. :func:`judge` is pure. The gate of a rollout wants a proof of every rank, of a living process of this server, with the content that
the build was made with and this build's name, without a family of kernels that failed, and with one at least that is active.

The fields are those of the plugin (``kernels/gpuops_kernels/plugin/proof.py``), schema 1.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from .files import disk_error
from .proc import descendants, read_stat
from .records import ServerRecord
from .releases import Release

SCHEMA = 1
FOLDER = "proofs"

# What the build's plugin reads (kernels/gpuops_kernels/plugin/settings.py).
MODE, WHERE, BUILD = "GPUOPS_KERNELS", "GPUOPS_KERNELS_PROOF", "GPUOPS_BUILD"

ACTIVE, OFF, NOT_APPLICABLE, FAILED = "active", "off", "not applicable", "failed"

Alive = Callable[[int, int], bool]
"""Whether a process of this pid and start time belongs to the server."""


@dataclass(frozen=True)
class Wanted:
    """What the proofs are held against.

    Args:
        build: the build's id.
        content: the package's content hash, as the manifest has it.
        ranks: how many ranks the server has; None: at least one.
        required: kernels have to be active, also where no card is.
    """

    build: str
    content: str
    ranks: Optional[int]
    required: bool = False


@dataclass(frozen=True)
class Verdict:
    """What the proofs show.

    Args:
        state: ``active``, ``not applicable`` (nothing of the pack is for this host), or ``failed``.
        text: one line for people, without the build's name.
        evidence: one line a rank or trouble.
        families: those that are active, sorted.
        ranks: how many ranks proved themselves, and how many there should be.
    """

    state: str
    text: str
    evidence: Tuple[str, ...] = ()
    families: Tuple[str, ...] = ()
    ranks: Tuple[int, int] = (0, 0)

    @property
    def passed(self) -> bool:
        return self.state != FAILED

    def to_json(self) -> Dict[str, Any]:
        return {
            **vars(self),
            "passed": self.passed,
            "evidence": list(self.evidence),
            "families": list(self.families),
            "ranks": list(self.ranks),
        }


@dataclass(frozen=True)
class Read:
    """The proofs of a folder by file name, and what in it is none."""

    proofs: Tuple[Dict[str, Any], ...]
    unreadable: Tuple[str, ...] = ()


def settle(about: Optional[Dict[str, Any]], candidate: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """A release's ``proof``: ``{plugin, content, required}``; None for a build without a plugin, and where the playbook has switched it off."""
    said = (about or {}).get("proof")
    if not said or candidate["env"].get(MODE) == "off":
        return None
    return {"plugin": said["plugin"], "content": said["content"], "required": candidate.get("proof") == "required"}


def environment(document: Dict[str, Any], release: Path) -> Dict[str, str]:
    """What a launch adds to a release's environment: who the build is, and where its ranks write."""
    build = document.get("build")
    if not build:
        return {}
    told = {BUILD: str(build["id"])}
    if document.get("proof"):
        told[WHERE] = str(release / FOLDER)
        told[MODE] = document["env"].get(MODE) or "strict"
    return told


def clear(release: Release) -> None:
    """Empty the folder: what an earlier start proved says nothing of the next one. Raises AgentError."""
    if not release.document.get("proof"):
        return
    folder = release.path / FOLDER
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    except OSError as error:
        raise disk_error(error, folder) from error


def check(release: Release, record: ServerRecord) -> Optional[Verdict]:
    """Read and judge the proofs of a release's living server; None where none are expected."""
    said = release.document.get("proof")
    build = release.document.get("build")
    if not said or not build:
        return None
    engine = release.document["engine"]
    wanted = Wanted(build["id"], said["content"], engine["ranks"].get("schedulers"), bool(said.get("required")))
    own = read_stat(record.pid)
    tree = {(stat.pid, stat.start) for stat in [*([own] if own else []), *descendants(record.pid)]}
    return judge(wanted, read(release.path / FOLDER), lambda pid, start: (pid, start) in tree)


def read(folder: Path) -> Read:
    """Every proof in a folder. A file that is cut, of another schema or without a needed field is named as unreadable."""
    proofs, unreadable = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            proofs.append({"label": path.stem, **_checked(json.loads(path.read_bytes()))})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            unreadable.append(f"{path.name} is no proof: {error}")
    return Read(tuple(proofs), tuple(unreadable))


def judge(wanted: Wanted, found: Read, alive: Alive) -> Verdict:
    """Whether these proofs show that the build's kernels serve on every rank."""
    expected = max(1, wanted.ranks or len(found.proofs))
    troubles = list(found.unreadable)
    proved = 0
    for proof in found.proofs:
        wrong = _troubles(proof, wanted, alive)
        proved += not wrong
        troubles += [f"rank {proof['label']}: {each}" for each in wrong]
    count = (proved, expected)
    if len(found.proofs) != expected:
        troubles.append(f"{len(found.proofs)} proofs for {expected} ranks")
    contents = sorted({proof["content"][:12] for proof in found.proofs})
    if len(contents) > 1:
        troubles.append(f"the ranks run different contents: {', '.join(contents)}")
    if troubles:
        return Verdict(FAILED, f"{proved} of {expected} ranks: {troubles[0]}", tuple(troubles), ranks=count)
    return _what_serves(wanted, found.proofs, count)


def _what_serves(wanted: Wanted, proofs: Tuple[Dict[str, Any], ...], count: Tuple[int, int]) -> Verdict:
    active = sorted({name for proof in proofs for name, family in proof["families"].items() if family["state"] == ACTIVE})
    ranks = f"{count[0]} of {count[1]} ranks"
    partly = [name for name in active if any((proof["families"].get(name) or {}).get("state") != ACTIVE for proof in proofs)]
    if partly:
        evidence = tuple(_line(proof) for proof in proofs)
        return Verdict(FAILED, f"{', '.join(partly)} active on some ranks only", evidence, ranks=count)
    if active:
        return Verdict(
            ACTIVE, f"{ranks}, {', '.join(active)} active", tuple(_line(proof) for proof in proofs), tuple(active), count
        )
    reasons = tuple(sorted({f"{name}: {family['reason']}" for proof in proofs for name, family in proof["families"].items()}))
    card = next((proof["capability"] for proof in proofs if proof["capability"]), "")
    if card or wanted.required:
        why = f"on a card of capability {card}" if card else "and the playbook requires it"
        return Verdict(FAILED, f"{ranks}: no family of kernels is active {why}", reasons, ranks=count)
    return Verdict(NOT_APPLICABLE, f"{ranks}: no family of kernels is for this host", reasons, ranks=count)


def _troubles(proof: Dict[str, Any], wanted: Wanted, alive: Alive) -> List[str]:
    found = []
    if not alive(proof["pid"], proof["start"]):
        found.append(f"pid {proof['pid']} is no living process of this server")
    if proof["build"] != wanted.build:
        found.append(f"it runs the build {proof['build'] or '(none)'}, not {wanted.build}")
    if proof["content"] != wanted.content:
        found.append(f"it runs content {proof['content'][:12]}, the build has {wanted.content[:12]}")
    found += [f"{name} {FAILED}: {family['reason']}" for name, family in proof["families"].items() if family["state"] == FAILED]
    if proof["stage"] == "started":
        found.append("its proof is from before the model was loaded")
    return found


def _line(proof: Dict[str, Any]) -> str:
    families = ", ".join(f"{name} {family['state']}" for name, family in sorted(proof["families"].items()))
    return f"rank {proof['label']} (pid {proof['pid']}, {proof['stage']}): {families or 'no family'}"


def _checked(raw: Dict[str, Any]) -> Dict[str, Any]:
    """The fields that count, each of its type. Raises ValueError, KeyError, TypeError."""
    if raw["schema"] != SCHEMA:
        raise ValueError(f"schema {raw['schema']}, expected {SCHEMA}")
    families = {
        str(name): {"state": str(family["state"]), "reason": str(family.get("reason") or "")}
        for name, family in raw["families"].items()
    }
    words = {key: str(raw[key] or "") for key in ("stage", "content", "build", "capability")}
    return {**words, "pid": int(raw["pid"]), "start": int(raw["start"]), "families": families}
