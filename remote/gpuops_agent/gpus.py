"""NVIDIA cards by what ``nvidia-smi`` says: which there are, who holds their memory, whether they are healthy, how they are linked.

The functions that ask answer with nothing ([] or None) where there is no ``nvidia-smi`` or no answer from it; :func:`ask_cards` and its
kind raise :class:`ask.Silent` with the reason. Parsers are pure. Memory is in MiB. A pid is the driver's: in a container that
does not share the host's pid namespace it may name another process than ours, or none.
"""

from __future__ import annotations

import csv
import re
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar

from .ask import Silent, output

# A cold driver without persistence mode takes a second or two a card; one that hangs never answers.
TIMEOUT_S = 10.0

_CARD_FIELDS = "index,name,uuid,pci.bus_id,driver_version,memory.total,memory.used"
_ACTIVITY_FIELDS = "index,utilization.gpu,power.draw,power.limit,memory.used"
_PROCESS_FIELDS = "gpu_uuid,pid,used_gpu_memory,process_name"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")

# A NCCL kernel that waits for its peer shows as 100 % at a quarter of the power: field reports of 2 cards of 600 W at about 140 W.
_BUSY_PERCENT = 95
_SPIN_SHARE = 0.4

T = TypeVar("T")


@dataclass(frozen=True)
class Card:
    """One GPU. ``pci`` is ``domain:bus:device.function`` in hex, as ``nvidia-smi`` prints it."""

    index: int
    name: str
    uuid: str
    pci: str
    driver: str
    total_mib: Optional[int]
    used_mib: Optional[int]


@dataclass(frozen=True)
class Capability:
    """A card's compute capability, ``12.0``; ``index`` and ``uuid`` are the words by which a playbook chooses the card."""

    index: str
    uuid: str
    capability: str


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on a card. ``used_mib`` is None where the driver does not tell (WSL, MIG)."""

    gpu: int
    pid: int
    used_mib: Optional[int]
    command: str

    def to_json(self) -> Dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Health:
    """What a card says of its own state; None for what it does not say.

    Args:
        ecc: ``Enabled`` or ``Disabled``.
        uncorrected: uncorrectable ECC errors since the driver was loaded.
        remap_pending: a memory row waits for a GPU reset to be replaced.
        remap_failed: no spare row was left: the card is to be replaced.
        recovery: the driver's own verdict: ``None`` for healthy, else such as ``Reset``, ``Reboot``, ``Drain P2P``.
    """

    pci: str
    ecc: Optional[str]
    uncorrected: Optional[int]
    remap_pending: bool
    remap_failed: bool
    recovery: Optional[str]


@dataclass(frozen=True)
class Activity:
    """What a card does at this moment; None for what it does not tell. ``grown_mib`` is how its memory changed since an earlier look."""

    index: int
    utilisation: Optional[int]
    watts: Optional[int]
    limit_watts: Optional[int]
    used_mib: Optional[int]
    grown_mib: Optional[int] = None

    def since(self, used_mib: Optional[int]) -> "Activity":
        """The same, with the change of its memory."""
        known = self.used_mib is not None and used_mib is not None
        return replace(self, grown_mib=(self.used_mib or 0) - (used_mib or 0) if known else None)

    @property
    def spins(self) -> bool:
        """Fully busy at little power: its kernels wait for another card instead of computing."""
        if self.utilisation is None or self.watts is None or not self.limit_watts:
            return False
        return self.utilisation >= _BUSY_PERCENT and self.watts <= _SPIN_SHARE * self.limit_watts and not self.grown_mib

    @property
    def text(self) -> str:
        return f"GPU {self.index}: {_or(self.utilisation)} % busy, {_or(self.watts)} of {_or(self.limit_watts)} W, {_or(self.used_mib)} MiB used"


@dataclass(frozen=True)
class Topology:
    """How each pair of cards is connected: ``NV18``, ``PIX``, ``PHB``, ``NODE``, ``SYS``, ... (the legend of ``nvidia-smi topo -m``)."""

    cards: int
    links: Dict[Tuple[int, int], str]

    @property
    def nvlink(self) -> bool:
        """Every pair has NVLink."""
        return bool(self.links) and all(link.startswith("NV") for link in self.links.values())


def cards() -> List[Card]:
    """The cards; [] when there is no answer."""
    return _quietly(ask_cards, [])


def processes_on_gpus() -> List[GpuProcess]:
    """Every process with memory on a card; [] when there is no answer."""
    return _quietly(lambda: ask_processes(ask_cards()), [])


def capabilities() -> List[Capability]:
    """The compute capability of each card; [] when there is no answer."""
    asked = ["nvidia-smi", "--query-gpu=index,uuid,compute_cap", "--format=csv"]
    return _quietly(lambda: parse_capabilities(output(asked, TIMEOUT_S)), [])


def memory_used() -> Optional[Dict[int, int]]:
    """MiB in use by card index; None when there is no answer."""
    found = cards()
    return {card.index: card.used_mib for card in found if card.used_mib is not None} if found else None


def ask_cards() -> List[Card]:
    """Raises Silent."""
    return parse_cards(output(["nvidia-smi", f"--query-gpu={_CARD_FIELDS}", "--format=csv"], TIMEOUT_S))


def ask_processes(known: List[Card]) -> List[GpuProcess]:
    """Raises Silent."""
    return parse_processes(output(["nvidia-smi", f"--query-compute-apps={_PROCESS_FIELDS}", "--format=csv"], TIMEOUT_S), known)


def ask_activity(timeout: float = TIMEOUT_S) -> List[Activity]:
    """Raises Silent."""
    return parse_activity(output(["nvidia-smi", f"--query-gpu={_ACTIVITY_FIELDS}", "--format=csv"], timeout))


def ask_health() -> List[Health]:
    """Raises Silent."""
    return parse_health(output(["nvidia-smi", "-q", "-x"], TIMEOUT_S))


def ask_topology() -> Topology:
    """Raises Silent."""
    return parse_topology(output(["nvidia-smi", "topo", "-m"], TIMEOUT_S))


def parse_cards(text: str) -> List[Card]:
    """The CSV of ``--query-gpu``, with its header; the order of the columns does not matter."""
    return [
        Card(
            index=int(row["index"]),
            name=row["name"],
            uuid=row["uuid"],
            pci=row.get("pci.bus_id", ""),
            driver=row["driver_version"],
            total_mib=_number(row["memory.total"]),
            used_mib=_number(row["memory.used"]),
        )
        for row in _rows(text)
    ]


def parse_capabilities(text: str) -> List[Capability]:
    """The CSV of :func:`capabilities`, with its header. A card without a number (an old driver) is left out."""
    rows = (row for row in _rows(text) if re.match(r"\d+\.\d+\Z", row["compute_cap"]))
    return [Capability(row["index"], row["uuid"], row["compute_cap"]) for row in rows]


def parse_activity(text: str) -> List[Activity]:
    """The CSV of :func:`ask_activity`, with its header."""
    return [
        Activity(
            index=int(row["index"]),
            utilisation=_number(row["utilization.gpu"]),
            watts=_number(row["power.draw"]),
            limit_watts=_number(row["power.limit"]),
            used_mib=_number(row["memory.used"]),
        )
        for row in _rows(text)
    ]


def parse_processes(text: str, known: List[Card]) -> List[GpuProcess]:
    """The CSV of ``--query-compute-apps``, with its header. A process on several cards has an entry for each."""
    index = {card.uuid: card.index for card in known}
    found = []
    for row in _rows(text):
        used = _number(row["used_gpu_memory"])
        found.append(GpuProcess(index.get(row["gpu_uuid"], -1), int(row["pid"]), used, row["process_name"]))
    return sorted(found, key=lambda each: (each.gpu, each.pid))


def parse_health(xml: str) -> List[Health]:
    """The document of ``nvidia-smi -q -x``; raises ValueError when it is none."""
    from xml.etree import ElementTree  # only the doctor needs it

    try:
        gpus = ElementTree.fromstring(xml).findall("gpu")
    except ElementTree.ParseError as error:
        raise ValueError(f"nvidia-smi -q -x: {error}") from error
    found = []
    for gpu in gpus:
        # Three generations of names: one sum, DRAM and SRAM, SRAM split by how it was detected.
        counts = [_number(each.text or "") for each in gpu.findall("ecc_errors/volatile/*") if "uncorrectable" in each.tag]
        known = [count for count in counts if count is not None]
        found.append(
            Health(
                pci=gpu.get("id", ""),
                ecc=_text(gpu.findtext("ecc_mode/current_ecc")),
                uncorrected=sum(known) if known else None,
                remap_pending=gpu.findtext("remapped_rows/remapped_row_pending") == "Yes",
                remap_failed=gpu.findtext("remapped_rows/remapped_row_failure") == "Yes",
                recovery=_text(gpu.findtext("gpu_recovery_action")),
            )
        )
    return found


def parse_topology(text: str) -> Topology:
    """The matrix of ``nvidia-smi topo -m``: GPU columns first, network cards after them, a legend below."""
    rows = [re.split(r"\s*\t\s*", row.strip()) for row in _ESCAPE.sub("", text).splitlines()]
    header = next((row for row in rows if row[0] == "GPU0"), [])
    numbers = [int(name[3:]) for name in header if re.fullmatch(r"GPU\d+", name)]
    cells = {int(row[0][3:]): row[1:] for row in rows if row is not header and re.fullmatch(r"GPU\d+", row[0])}
    links = {(a, b): cells[a][numbers.index(b)].strip() for a, b in combinations(numbers, 2) if a in cells}
    return Topology(len(numbers), links)


def _quietly(ask: Callable[[], List[T]], nothing: List[T]) -> List[T]:
    try:
        return ask()
    except (Silent, ValueError, KeyError):
        return nothing


def _rows(text: str) -> List[Dict[str, str]]:
    """The table with its units taken off: ``memory.used [MiB]`` becomes ``memory.used``."""
    table = list(csv.reader(text.splitlines(), skipinitialspace=True))
    if not table:
        return []
    names = [re.sub(r"\s*\[.*\]$", "", name).strip() for name in table[0]]
    # A process name may hold commas: it comes last, and takes the rest.
    last = len(names) - 1
    rows = (row for row in table[1:] if len(row) > last)
    return [{**{name: row[at] for at, name in enumerate(names[:last])}, names[last]: ", ".join(row[last:])} for row in rows]


def _number(text: str) -> Optional[int]:
    found = re.match(r"(\d+)", text.strip())
    return int(found.group(1)) if found else None


def _or(value: Optional[int]) -> str:
    return "?" if value is None else str(value)


def _text(text: Optional[str]) -> Optional[str]:
    return None if text is None or text.strip() in ("N/A", "[N/A]", "") else text.strip()
