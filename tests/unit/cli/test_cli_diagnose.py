"""diagnose: of a host's release, and of a log file without any host."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gpuops.report import diagnosis as report
from gpuops.report import history, narrate
from gpuops.report.style import PLAIN
from gpuops.rollout.watch import headline

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
HOST = ("--host", "gpu-box", "--service", "demo")

TOLD = {
    "service": "demo",
    "release": 7,
    "class": "gpu_oom",
    "what": "a card's memory is full",
    "phase": "capture",
    "confidence": "high",
    "also": "",
    "evidence": "torch.OutOfMemoryError: CUDA out of memory.",
    "number": 41,
    "rank": "TP3",
    "where": "/s/x.py:3 in f",
    "waits_for": "",
    "cure": "lower --mem-fraction-static",
    "restart_cures": False,
    "consequences": [{"class": "child_failed", "line": 50, "text": "Received sigquit from a child process."}],
    "hints": [],
    "facts": ["it exited with status 1"],
    "lines": [],
}


def test_a_diagnosis_shows_the_line_what_followed_and_what_helps():
    assert report.lines(TOLD, "release 7 of demo", PLAIN) == [
        "release 7 of demo: gpu_oom, a card's memory is full (high confidence)",
        "  phase       capture",
        "  evidence    torch.OutOfMemoryError: CUDA out of memory.  (line 41, TP3)",
        "  raised      /s/x.py:3 in f",
        "  cure        lower --mem-fraction-static",
        "  restart     does not cure it",
        "  followed by child_failed (line 50): Received sigquit from a child process.",
        "  facts       it exited with status 1",
    ]


def test_the_host_is_asked_with_the_newest_table(gpuops, agent):
    fake = agent(diagnose=TOLD)
    said = gpuops("diagnose", *HOST, "--release", "7")
    assert said.code == 0 and "gpu_oom" in said.out
    verb, args = fake.calls[-1]
    assert (verb, args["release"]) == ("diagnose", 7)
    assert args["reading"]["meaningful"]["signatures"]


def test_a_log_file_needs_no_host(gpuops):
    said = gpuops("diagnose", str(LOGS / "torch_compile_stream_capture_isolation.log"), "--json")
    told = json.loads(said.out)
    assert (told["class"], told["number"]) == ("graph_capture_isolation", 195)


def test_a_compressed_log_file_is_read(gpuops, tmp_path):
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress((LOGS / "torch_compile_stream_capture_isolation.log").read_bytes()))
    assert json.loads(gpuops("diagnose", str(packed), "--json").out)["class"] == "graph_capture_isolation"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (gzip.compress(b""), "is empty"),
        (gzip.compress(b"a line\n" * 999)[:-9], "is compressed by gzip, and damaged"),
        (b"\x1f\x8b\x08\x00 no such thing", "is compressed by gzip, and damaged"),
        (bytes(range(256)) * 9, "is no text"),
        (bytes(4096), "is no text"),
    ],
    ids=["empty", "blank", "empty, compressed", "compressed, cut", "compressed, altered", "every byte", "zeros"],
)
def test_a_file_without_a_log_in_it_is_never_healthy(gpuops, tmp_path, data, what):
    log = tmp_path / "server.log"
    log.write_bytes(data)
    said = gpuops("diagnose", str(log))
    assert (said.code, said.err.splitlines()[0]) == (2, f"error: {log} {what}")


def test_a_log_in_another_encoding_is_a_log(gpuops, tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes("\x1b[31mMod\xe8le charg\xe9\x1b[0m\n".encode("latin-1") * 9)
    assert gpuops("diagnose", str(log)).code == 0


def test_a_healthy_log_has_no_class(gpuops):
    said = gpuops("diagnose", str(LOGS / "cpu_good_0.5.23.log"))
    assert said.code == 0 and "nothing is wrong in the log" in said.out


@pytest.mark.parametrize("words", [("no/such.log",), (str(LOGS / "cpu_good_0.5.23.log"), "--release", "3")])
def test_what_cannot_be_read_or_asked_is_a_usage_error(gpuops, words):
    assert gpuops("diagnose", *words).code == 2


def test_a_failed_rollout_names_the_class_in_its_headline_and_its_history():
    outcome = {
        "outcome": "restored",
        "release": 1,
        "failed": 2,
        "reason": "the server exited with status 1",
        "class": "gpu_oom",
        "diagnosis": TOLD,
    }
    assert "(gpu_oom: a card's memory is full)" in headline(outcome)
    unknown = {**outcome, "diagnosis": {**TOLD, "class": "unknown"}}
    assert "unknown" not in headline(unknown)
    entry = {**outcome, "op": "a", "kind": "up", "at": 0.0, "by": "me"}
    told = history.lines({"service": "demo", "current": 1, "known_good": 1, "releases": [], "operations": [entry]}, 1.0, PLAIN)
    assert "release 2 failed: gpu_oom: the server exited" in told[-1]


def test_a_silent_start_is_told_with_what_it_waits_for():
    event = {
        "event": "silent",
        "t": 1,
        "release": 2,
        "seconds": 60.2,
        "class": "stall_compiler",
        "what": "it waits for ptxas, a compiler",
        "evidence": "ptxas (pid 7), 0% of a core",
    }
    assert narrate.lines(event, PLAIN) == [
        "no sign of work for 60 s: it waits for ptxas, a compiler; ptxas (pid 7), 0% of a core"
    ]
