"""Are the cards there, free of strangers, healthy, and linked as one would wish?"""

from __future__ import annotations

import os
from typing import List

from . import gpus, proc, xid
from .ask import where
from .check import FAIL, OK, WARN, Finding, Subject
from .gpus import GpuProcess, Health
from .xid import HELP, LOOK, REBOOT, RESET, Xid

_MANY = 5
# What a driver without any process on the card still counts as used, in MiB (a console, MIG bookkeeping; persistence mode shows 0 to 5).
_IDLE_MIB = 600


def present() -> bool:
    """Whether this host has, or should have, NVIDIA cards; without them there is nothing to check."""
    return where("nvidia-smi") is not None or os.path.isdir("/proc/driver/nvidia")


def driver(subject: Subject) -> Finding:
    """The driver answers. Raises Silent, whose text is the evidence."""
    cards = subject.cards
    if not cards:
        return Finding(FAIL, "nvidia-smi lists no card", next="nvidia-smi -L; dmesg | grep NVRM")
    models: List[str] = []
    for name in dict.fromkeys(card.name for card in cards):
        models.append(f"{sum(card.name == name for card in cards)} x {name}")
    return Finding(
        OK, f"driver {cards[0].driver}, {', '.join(models)}", "; ".join(f"GPU {card.index} at {card.pci}" for card in cards)
    )


def memory(subject: Subject) -> Finding:
    """The cards' memory is held by our runs, or by nobody."""
    processes = gpus.ask_processes(subject.cards)
    foreign = [each for each in processes if each.pid not in subject.ours]
    used = ", ".join(f"GPU {card.index}: {card.used_mib} of {card.total_mib} MiB used" for card in subject.cards)
    if foreign:
        what = f"GPU memory is held by processes that are not ours: {'; '.join(map(_holder, foreign[:_MANY]))}"
        return Finding(WARN, what, used, "look who they are; gpuops never ends them")
    held = {each.gpu for each in processes}
    unexplained = [card for card in subject.cards if (card.used_mib or 0) > _IDLE_MIB and card.index not in held]
    if unexplained:
        # Another container's process, one of another pid namespace, or one that hangs in the kernel on its way out.
        what = (
            f"memory of GPU {', '.join(str(card.index) for card in unexplained)} is held by no process that can be seen from here"
        )
        return Finding(WARN, what, used, "on the host itself: nvidia-smi; fuser -v /dev/nvidia*")
    return Finding(OK, "GPU memory is ours or free", used)


def health(subject: Subject) -> Finding:
    """ECC errors, row remapping, and the driver's own verdict."""
    found = gpus.ask_health()
    ill = [(each, problem) for each in found for problem in _problems(each)]
    fatal = [problem for _, problem in ill if problem[0] == FAIL]
    evidence = "; ".join(f"{each.pci}: {text}" for each, (_, text) in ill) or "; ".join(map(_well, found))
    if fatal:
        return Finding(FAIL, "a card needs a reset, a reboot or a replacement", evidence, HELP[RESET])
    if ill:
        return Finding(
            WARN,
            "a card has had memory errors",
            evidence,
            "plan a GPU reset (nvidia-smi --gpu-reset -i INDEX, with nothing on it)",
        )
    return Finding(OK, "the cards report no error", evidence)


def xids(subject: Subject) -> Finding:
    """Xid lines since boot. What a restart heals counts only when it came after the server that runs was started."""
    since = min((record.started_boot for record in subject.servers), default=0.0)
    every = xid.ask()
    counted = [
        each for each in xid.standing(every) if each.meaning.help in (RESET, REBOOT) or each.at is None or each.at >= since
    ]
    if not counted:
        return Finding(OK, "no Xid in the kernel log that still matters", f"{len(every)} Xid lines since boot")
    worst = counted[0].meaning.help
    evidence = "; ".join(map(_said, counted[:_MANY]))
    state = FAIL if worst in (RESET, REBOOT) else WARN
    return Finding(state, f"Xid {counted[0].number} on {counted[0].pci}: {counted[0].meaning.text}", evidence, HELP[worst])


def topology(subject: Subject) -> Finding:
    """NVLink or PCIe between the cards: tensor parallelism over PCIe is slow, and over two sockets slower."""
    if len(subject.cards) < 2:
        return Finding(OK, "one card: nothing to link")
    found = gpus.ask_topology()
    kinds = sorted(set(found.links.values()))
    if found.nvlink:
        return Finding(OK, f"{found.cards} cards, NVLink between all", ", ".join(kinds))
    slow = [f"GPU{a}-GPU{b} {link}" for (a, b), link in found.links.items() if not link.startswith("NV")]
    return Finding(
        OK, f"{found.cards} cards, PCIe between {'all' if len(slow) == len(found.links) else 'some'}", "; ".join(slow[:_MANY])
    )


def _holder(process: GpuProcess) -> str:
    stat = proc.read_stat(process.pid)
    # The title tells more than the driver's short name, where we share its pid namespace.
    name = proc.title(process.pid)[:100] if stat is not None and stat.living else process.command
    used = f" ({process.used_mib} MiB)" if process.used_mib is not None else ""
    return f"GPU {process.gpu}, pid {process.pid}{used}: {name}"


def _problems(card: Health) -> "List[tuple[str, str]]":
    told = []
    if card.recovery not in (None, "None"):
        told.append((FAIL, f"the driver asks for: {card.recovery}"))
    if card.remap_failed:
        told.append((FAIL, "a memory row could not be replaced: the card is to be exchanged"))
    if card.remap_pending:
        told.append((WARN, "a memory row waits for a reset to be replaced"))
    if card.uncorrected:
        told.append((WARN, f"{card.uncorrected} uncorrectable ECC errors since the driver was loaded"))
    return told


def _well(card: Health) -> str:
    return f"{card.pci}: ECC {(card.ecc or 'not reported').lower()}"


def _said(each: Xid) -> str:
    when = f"{each.at:.0f} s after boot: " if each.at is not None else ""
    known = f" ({each.meaning.text}; {each.meaning.help})" if each.meaning.help != LOOK else ""
    return f"{when}Xid {each.number} on {each.pci}{known}: {each.text[:120]}"
