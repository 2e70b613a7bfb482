"""Are the cards there, free of strangers, healthy, and linked as one would wish?"""

from __future__ import annotations

import os
from collections import Counter
from typing import FrozenSet, List

from . import cards, gpus, releases, xid
from .ask import where
from .check import FAIL, OK, WARN, Finding, Subject
from .gpus import Health
from .xid import HELP, LOOK, REBOOT, RESET, Xid

_MANY = 5

# PCIe and the interconnect between sockets (the legend of `nvidia-smi topo -m`).
_ACROSS = "SYS"


def present() -> bool:
    """Whether this host has, or should have, NVIDIA cards; without them there is nothing to check."""
    return where("nvidia-smi") is not None or os.path.isdir("/proc/driver/nvidia")


def driver(subject: Subject) -> Finding:
    """The driver answers. Raises Silent, whose text is the evidence."""
    known = subject.cards
    if not known:
        return Finding(FAIL, "nvidia-smi lists no card", next="nvidia-smi -L; dmesg | grep NVRM")
    models: List[str] = []
    for name in dict.fromkeys(card.name for card in known):
        models.append(f"{sum(card.name == name for card in known)} x {name}")
    return Finding(
        OK, f"driver {known[0].driver}, {', '.join(models)}", "; ".join(f"GPU {card.index} at {card.pci}" for card in known)
    )


def memory(subject: Subject) -> Finding:
    """The memory of the services' cards is held by our runs, or by nobody. Who is on other cards is only told."""
    processes = gpus.ask_processes(subject.cards)
    own = _own_cards(subject)
    found = cards.strangers(processes, subject.ours, own)
    used = ", ".join(f"GPU {card.index}: {card.used_mib} of {card.total_mib} MiB used" for card in subject.cards)
    if found.ours:
        return Finding(WARN, "; ".join(found.ours[:_MANY]), used, "look who they are; gpuops never ends them")
    held = {each.gpu for each in processes}
    unexplained = [each.index for each in subject.cards if (each.used_mib or 0) > cards.IDLE_MIB and each.index in own - held]
    if unexplained:
        # Another container's process, one of another pid namespace, or one that hangs in the kernel on its way out.
        what = f"memory of {cards.numbered(unexplained)} is held by no process that can be seen from here"
        return Finding(WARN, what, used, "on the host itself: nvidia-smi; fuser -v /dev/nvidia*")
    where = "GPU memory" if len(own) == len(subject.cards) else f"memory of {cards.numbered(own)}" if own else "no card's memory"
    return Finding(OK, f"{where} is ours or free", "; ".join([used, *found.elsewhere[:_MANY]]))


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
    kinds = Counter(found.links.values())
    evidence = ", ".join(f"{link}: {count} {'pair' if count == 1 else 'pairs'}" for link, count in sorted(kinds.items()))
    if found.nvlink:
        return Finding(OK, f"{found.cards} cards, NVLink between all", evidence)
    slow = sum(count for link, count in kinds.items() if not link.startswith("NV"))
    across = ", over two sockets" if _ACROSS in kinds else ""
    return Finding(OK, f"{found.cards} cards, PCIe between {'all' if slow == len(found.links) else 'some'}{across}", evidence)


def _own_cards(subject: Subject) -> FrozenSet[int]:
    """The cards of the services that are looked at; all of the host's where none of them has a release yet."""
    meant = [releases.load(service, releases.meant(service)) for service in subject.services]
    used = [cards.of_release(each.document, subject.cards) for each in meant if each is not None]
    return frozenset().union(*used) if used else frozenset(card.index for card in subject.cards)


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
