"""Xid lines of the NVIDIA driver in the kernel log: what happened to which card, and what helps.

An Xid is the driver's error number. Most belong to the application and end with it; some leave the card in a state that no restart
of a server heals, and some only a reboot. :data:`MEANINGS` holds the ones that a serving host meets.

Sources: "Xid" = https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, columns "Description" and "Resolution Bucket
(Immediate Action)", as of 2026; "field" = reports of cards that stayed wedged until a reboot although the catalog says less
(https://github.com/NVIDIA/open-gpu-kernel-modules issues 987, 1111, 1159).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional

from .ask import Silent, output

NOTHING, RESTART, RESET, REBOOT, LOOK = "nothing", "restart", "reset", "reboot", "look"
"""What helps: nothing is needed; a restart of the server; a GPU reset with nobody on the card; a reboot; somebody has to look."""

HELP = {
    NOTHING: "nothing needs to be done",
    RESTART: "a restart of the server is enough",
    RESET: "a restart will not help: reset the card with nothing running on it (nvidia-smi --gpu-reset -i INDEX), else reboot the host",
    REBOOT: "a restart will not help: reboot the host",
    LOOK: "look it up in NVIDIA's Xid catalog",
}

TIMEOUT_S = 10.0
_SEVERITY = (NOTHING, LOOK, RESTART, RESET, REBOOT)


@dataclass(frozen=True)
class Meaning:
    """One row of the table: what the number means, what helps, and who says so."""

    text: str
    help: str
    source: str = "Xid"


MEANINGS: Dict[int, Meaning] = {
    8: Meaning("the GPU stopped processing", RESET, "field: the catalog says restart, cards stayed wedged"),
    11: Meaning("a corrupt command stream", RESTART),
    13: Meaning("a kernel of the application failed: out of bounds, illegal instruction", RESTART),
    31: Meaning("the application touched an illegal address (GPU page fault)", RESTART),
    32: Meaning("a corrupt command stream; often the PCIe link", RESTART),
    37: Meaning("driver firmware error", NOTHING),
    38: Meaning("driver firmware watchdog", NOTHING),
    43: Meaning("the application failed and was ended; the card is healthy", NOTHING),
    44: Meaning("a fault during a context switch", NOTHING),
    45: Meaning("the application was ended, or an earlier error ended it", NOTHING),
    46: Meaning("the GPU stopped processing", RESET),
    48: Meaning("an uncorrectable ECC error", RESET),
    62: Meaning("the card's micro-controller halted", RESET),
    63: Meaning("a bad memory row was remapped; the spare takes over at the next reset", NOTHING),
    64: Meaning("a bad memory row could not be remapped", RESET),
    69: Meaning("the application used the GPU wrongly (class error)", RESTART),
    74: Meaning("an NVLink error", RESET),
    79: Meaning("the GPU has fallen off the bus", REBOOT),
    92: Meaning("many corrected ECC errors", NOTHING),
    94: Meaning("an ECC error that hit one application only", RESTART),
    95: Meaning("an ECC error that was not contained", RESET),
    109: Meaning("a context switch timed out", RESET),
    110: Meaning("a security fault; often hardware", RESET),
    119: Meaning("the card's own processor (GSP) does not answer", RESET),
    120: Meaning("the card's own processor (GSP) failed", RESET),
    136: Meaning("NVLink training failed", RESET),
    137: Meaning("an illegal NVLink peer access by the application", NOTHING),
    140: Meaning("an ECC error that could not be recovered", RESET),
    143: Meaning("the card could not be initialised", RESET),
    151: Meaning("a key rotation failed (confidential computing)", REBOOT),
    155: Meaning("NVLink went down", RESET),
    156: Meaning("a broken part of the card was retired", RESET),
    157: Meaning("a broken part of the card could not be retired", NOTHING),
    158: Meaning("the GPU timed out for good", RESET),
    175: Meaning("not in the catalog; cards that hung logged it with 8 and 119", REBOOT, "field"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), Meaning("a copy engine failed", RESTART)),
    **dict.fromkeys(range(144, 151), Meaning("an NVLink error", RESET, "Xid: by its subcode; most fatal ones want a reset")),
}

# Xid 154 comes after another one and names the action itself; the catalog's words, and those of older drivers.
_ACTION = re.compile(r"recovery action changed from .* to 0x[0-9a-f]+ \((?P<to>[^)]*)\)", re.IGNORECASE)
_ACTIONS = (("reboot", REBOOT), ("reset", RESET), ("flr", RESET), ("drain", RESTART), ("none", NOTHING))

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<number>\d+),?\s*(?P<rest>.*)")
# dmesg, and journalctl -o short-monotonic: "[  123.456789] host kernel: NVRM: ...".
_STAMP = re.compile(r"^\s*\[\s*(?P<at>\d+\.\d+)\]")


@dataclass(frozen=True)
class Xid:
    """One line: the card's PCI address, the number, the rest of the text; ``at`` in seconds since boot, None when the line has no time."""

    number: int
    pci: str
    at: Optional[float]
    text: str
    line: str

    @property
    def meaning(self) -> Meaning:
        if self.number == 154:
            return Meaning(f"the driver says: {self.text}", _action(self.text))
        return MEANINGS.get(self.number, Meaning("not in our table", LOOK, ""))


def parse(log: str) -> List[Xid]:
    """Every Xid of a kernel log, in its order."""
    found = []
    for row in log.splitlines():
        xid, stamp = _XID.search(row), _STAMP.match(row)
        if xid:
            at = float(stamp.group("at")) if stamp else None
            found.append(Xid(int(xid.group("number")), xid.group("pci").lower(), at, xid.group("rest").strip(), row.strip()))
    return found


def standing(xids: List[Xid]) -> List[Xid]:
    """What counts of a boot's Xids, the worst first: the last line of each card and number, without those that need nothing.

    A card that said "recovery action ... (None)" after them has been reset since: its earlier lines are history.
    """
    healed = {xid.pci: at for at, xid in enumerate(xids) if xid.number == 154 and xid.meaning.help == NOTHING}
    last = {(xid.pci, xid.number): xid for at, xid in enumerate(xids) if at > healed.get(xid.pci, -1)}
    counted = [xid for xid in last.values() if xid.meaning.help != NOTHING]
    return sorted(counted, key=lambda xid: (-_SEVERITY.index(xid.meaning.help), xid.pci, xid.number))


def ask() -> List[Xid]:
    """The Xids since boot, as far back as the kernel log goes.

    Raises:
        Silent: see :func:`kernel_log`.
    """
    return parse(kernel_log())


def kernel_log(timeout: float = TIMEOUT_S) -> str:
    """The kernel log since boot, with seconds since boot in front of each line. ``timeout`` in seconds, for each of the two ways to ask.

    Raises:
        Silent: neither ``dmesg`` nor ``journalctl`` lets us read it.
    """
    try:
        return output(["dmesg"], timeout)
    except Silent as refused:
        try:
            return output(["journalctl", "-k", "-b", "-q", "-o", "short-monotonic", "--no-pager"], timeout)
        except Silent as error:
            raise Silent(f"the kernel log cannot be read: {refused}; {error}") from None


def recent(since_boottime: float = 0.0) -> List[str]:
    """The Xid lines from ``since_boottime`` (seconds since boot) on, as the kernel wrote them; [] when they cannot be read."""
    try:
        return [xid.line for xid in ask() if xid.at is None or xid.at >= since_boottime]
    except Silent:
        return []


def _action(text: str) -> str:
    found = _ACTION.search(text)
    said = found.group("to").lower() if found else ""
    return next((help for word, help in _ACTIONS if word in said), LOOK)
