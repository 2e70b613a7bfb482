"""What nvidia-smi and the kernel log say of the cards, read from what they really print."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpuops_agent import ask, gpus, xid
from gpuops_agent.gpus import Capability, Card, GpuProcess

PRINTED = Path(__file__).parents[1] / "fixtures" / "nvidia_smi"


def printed(name: str) -> str:
    return (PRINTED / name).read_text()


class Tools:
    """Programs that stand before the real ones on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder = folder
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def add(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def add_cards(self) -> None:
        """Two H200 of which one is in use, as they really answered."""
        answers = {
            "*query-gpu=*": "h200x2_cards.csv",
            "*query-compute-apps=*": "h200x2_apps.csv",
            "*-q*-x*": "h200_q.xml",
            "*topo*": "h200x2_topo.txt",
        }
        cases = "".join(f"{pattern}) cat {PRINTED / file};;\n" for pattern, file in answers.items())
        self.add("nvidia-smi", f'case "$*" in\n{cases}*) echo "unknown: $*" >&2; exit 2;;\nesac')


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(tmp_path / "tools", monkeypatch)


def test_cards_are_read_by_their_columns() -> None:
    first, second = gpus.parse_cards(printed("h200x2_cards.csv"))
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    assert first == Card(0, "NVIDIA H200", uuid, "00000000:00:06.0", "580.159.04", 143771, 2575)
    assert (second.index, second.used_mib) == (1, 4)


def test_memory_that_the_driver_does_not_tell_is_unknown() -> None:
    text = "index, name, uuid, driver_version, memory.total [MiB], memory.used [MiB]\n0, X, GPU-1, 1.2, [N/A], [N/A]\n"
    (card,) = gpus.parse_cards(text)
    assert (card.total_mib, card.used_mib) == (None, None)


def test_processes_are_put_on_their_cards_and_names_may_hold_commas() -> None:
    cards = gpus.parse_cards(printed("h200x2_cards.csv"))
    header = "gpu_uuid, pid, used_gpu_memory [MiB], process_name\n"
    rows = f"{cards[1].uuid}, 9, [N/A], python3\n{cards[0].uuid}, 7, 12 MiB, /opt/a, b/python3\nGPU-other, 8, 1 MiB, x\n"
    assert gpus.parse_processes(header + rows, cards) == [
        GpuProcess(-1, 8, 1, "x"),
        GpuProcess(0, 7, 12, "/opt/a, b/python3"),
        GpuProcess(1, 9, None, "python3"),
    ]


def test_no_process_is_no_entry() -> None:
    assert gpus.parse_processes("gpu_uuid, pid, used_gpu_memory [MiB], process_name\n", []) == []
    assert gpus.parse_processes("", []) == []


def test_a_healthy_card_says_so() -> None:
    (card,) = gpus.parse_health(printed("h200_q.xml"))
    assert (card.pci, card.ecc, card.uncorrected, card.recovery) == ("00000000:00:06.0", "Enabled", 0, "None")
    assert not card.remap_pending and not card.remap_failed


@pytest.mark.parametrize(
    ("healthy", "ill", "field", "value"),
    [
        ("<sram_uncorrectable_parity>0", "<sram_uncorrectable_parity>2", "uncorrected", 2),
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "remap_pending", True),
        ("<remapped_row_failure>No", "<remapped_row_failure>Yes", "remap_failed", True),
        ("<gpu_recovery_action>None", "<gpu_recovery_action>Reboot", "recovery", "Reboot"),
        ("<current_ecc>Enabled", "<current_ecc>N/A", "ecc", None),
    ],
)
def test_an_ill_card_says_so(healthy: str, ill: str, field: str, value: object) -> None:
    xml = printed("h200_q.xml")
    assert healthy in xml
    (card,) = gpus.parse_health(xml.replace(healthy, ill, 1))
    assert getattr(card, field) == value


def test_a_document_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="nvidia-smi -q -x"):
        gpus.parse_health("Failed to initialize NVML")


PCIE = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPHB\tSYS\tNODE\t0-31\t0\t\tN/A
GPU1\tPHB\t X \tSYS\tNODE\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tNODE\tNODE\tSYS\t X \t\t\t\t
"""


@pytest.mark.parametrize(
    ("text", "cards", "links", "nvlink"),
    [
        (printed("h200x2_topo.txt"), 2, {(0, 1): "NV18"}, True),
        (printed("h200_topo.txt"), 1, {}, False),
        (PCIE, 3, {(0, 1): "PHB", (0, 2): "SYS", (1, 2): "SYS"}, False),
        ("", 0, {}, False),
    ],
    ids=["two with nvlink", "one", "three on PCIe", "nothing"],
)
def test_the_matrix_tells_how_each_pair_is_linked(text: str, cards: int, links: dict[tuple[int, int], str], nvlink: bool) -> None:
    found = gpus.parse_topology(text)
    assert (found.cards, found.links, found.nvlink) == (cards, links, nvlink)


def test_the_processes_on_the_cards_and_the_memory_in_use_are_asked_for(tools: Tools) -> None:
    tools.add_cards()
    assert gpus.processes_on_gpus() == [GpuProcess(0, 563, 2566, "python3")]
    assert gpus.memory_used() == {0: 2575, 1: 4}


def test_capabilities_are_told_by_the_words_that_choose_a_card() -> None:
    text = "index, uuid, compute_cap\n0, GPU-aa, 12.0\n1, GPU-bb, 9.0\n2, GPU-cc, [N/A]\n"
    assert gpus.parse_capabilities(text) == [Capability("0", "GPU-aa", "12.0"), Capability("1", "GPU-bb", "9.0")]


@pytest.mark.parametrize("script", [None, "echo 'No devices were found'; exit 6", "echo garbage", "exit 0"])
def test_without_an_answer_there_are_no_cards(tools: Tools, script: str | None) -> None:
    if script is not None:
        tools.add("nvidia-smi", script)
    assert (gpus.cards(), gpus.processes_on_gpus(), gpus.memory_used()) == ([], [], None)


def test_the_reason_of_a_silence_is_kept(tools: Tools) -> None:
    with pytest.raises(ask.Silent, match="nvidia-smi is not installed"):
        gpus.ask_cards()
    tools.add("nvidia-smi", "echo 'Driver/library version mismatch' >&2; exit 18")
    with pytest.raises(ask.Silent, match="ended with status 18: Driver/library version mismatch"):
        gpus.ask_cards()


def test_a_program_that_hangs_is_not_waited_for(tools: Tools) -> None:
    tools.add("nvidia-smi", "exec sleep 600")
    with pytest.raises(ask.Silent, match=r"did not answer within 0\.2 s"):
        ask.output(["nvidia-smi"], 0.2)


# Xids.

OFF_THE_BUS = "[  123.456789] NVRM: Xid (PCI:0000:C1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
PAGE_FAULT = "[  200.000001] gpu-box kernel: NVRM: Xid (PCI:0000:c1:00): 31, pid=7, name=python3, Ch 00000008, intr 0"
ENDED = "[  201.5] NVRM: Xid (PCI:0000:c1:00): 45, pid=7, name=python3, Ch 00000008"
OLD = "[   14.1] NVRM: Xid (0000:03:00): 14, Channel 00000001"


def action(what: str) -> str:
    return f"[  300.0] NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 ({what})"


@pytest.mark.parametrize(
    ("line", "number", "pci", "at"),
    [
        (OFF_THE_BUS, 79, "0000:c1:00", 123.456789),
        (PAGE_FAULT, 31, "0000:c1:00", 200.000001),
        (OLD, 14, "0000:03:00", 14.1),
        ("NVRM: Xid (PCI:0000:c1:00): 43, Ch 1", 43, "0000:c1:00", None),
    ],
    ids=["dmesg", "journalctl", "an old driver", "no time"],
)
def test_an_xid_is_read_with_its_card_and_time(line: str, number: int, pci: str, at: float | None) -> None:
    (found,) = xid.parse(f"[    1.0] NVRM: loading NVIDIA UNIX Open Kernel Module\n{line}\n[    2.0] usb 1-1: new device\n")
    assert (found.number, found.pci, found.at, found.line) == (number, pci, at, line)


@pytest.mark.parametrize(
    ("line", "help"),
    [
        (OFF_THE_BUS, xid.REBOOT),
        (PAGE_FAULT, xid.RESTART),
        (ENDED, xid.NOTHING),
        (OLD, xid.LOOK),
        (action("Node Reboot Required"), xid.REBOOT),
        (action("OS Reboot"), xid.REBOOT),
        (action("GPU Reset Required"), xid.RESET),
        (action("Drain and Reset"), xid.RESET),
        (action("PF FLR"), xid.RESET),
        (action("None"), xid.NOTHING),
        (action("something new"), xid.LOOK),
    ],
)
@pytest.mark.failure_mode("card-ill")
def test_it_is_known_whether_a_restart_helps(line: str, help: str) -> None:
    assert xid.parse(line)[0].meaning.help == help


def test_the_worst_comes_first_and_what_needs_nothing_is_left_out() -> None:
    found = xid.standing(xid.parse("\n".join([PAGE_FAULT, ENDED, OFF_THE_BUS, PAGE_FAULT])))
    assert [each.number for each in found] == [79, 31]


def test_what_came_before_a_reset_of_the_card_is_history() -> None:
    reset = xid.parse("\n".join([OFF_THE_BUS, action("GPU Reset Required"), action("None"), PAGE_FAULT]))
    assert [each.number for each in xid.standing(reset)] == [31]


def test_every_row_of_the_table_has_a_meaning_a_remedy_and_a_source() -> None:
    for number, meaning in xid.MEANINGS.items():
        assert meaning.text and meaning.source and meaning.help in xid.HELP, number


def test_recent_gives_the_kernels_own_lines_from_a_time_on(tools: Tools) -> None:
    tools.add("dmesg", f"cat <<'E'\n{OLD}\n{OFF_THE_BUS}\n{PAGE_FAULT}\nE")
    assert xid.recent() == [OLD.strip(), OFF_THE_BUS, PAGE_FAULT]
    assert xid.recent(150.0) == [PAGE_FAULT]


def test_the_journal_answers_where_dmesg_may_not(tools: Tools) -> None:
    tools.add("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    tools.add("journalctl", f"cat <<'E'\n{PAGE_FAULT}\nE")
    assert xid.recent() == [PAGE_FAULT]
    tools.add("journalctl", "echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1")
    assert xid.recent() == []
    with pytest.raises(ask.Silent, match=r"Operation not permitted.*insufficient permissions"):
        xid.ask()
