"""Why a start failed, told by the host itself: what a dead server left, what a living one waits for, and that the outcome carries it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpuops_agent import look, records, stall, xid
from gpuops_agent.ask import Silent
from gpuops_agent.diagnosis import Diagnosis, Ending, diagnose, redacted
from gpuops_agent.gpus import Activity, parse_activity
from gpuops_agent.logread import LogReader
from gpuops_agent.look import Download, LockWait, Process, Scene
from process_lab import Host, eventually
from rollouts import Json, Lab, Played

from gpuops.engines import facts, reading

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


def diagnosed(played: Played) -> Json:
    """The diagnosis of an outcome; it is the one that was told and noted."""
    told: Json = played.outcome["diagnosis"]
    assert played.outcome["class"] == told["class"]
    assert {**told, **played.all("diagnosis")[-1]} == played.all("diagnosis")[-1]
    return told


def asked(lab: Lab, **args: Any) -> Json:
    return lab.agent.call("diagnose", service="demo", reading=reading(), **args)


# A server that has ended.


@pytest.mark.failure_mode("diagnosis")
def test_an_end_with_status_0_that_nobody_asked_for_is_a_crash(lab: Lab) -> None:
    told = diagnosed(lab.up("--vanish", "weights=0"))
    assert told["class"] == "exit_zero" and "nobody had asked" in told["facts"][0]
    assert told["phase"] == "weights"


@pytest.mark.failure_mode("diagnosis")
def test_a_kill_by_somebody_is_not_taken_for_the_kernels_oom_killer(lab: Lab) -> None:
    told = diagnosed(lab.up("--vanish", "capture=KILL"))
    assert told["class"] == "killed" and "no OOM kill" in told["facts"][0]


def test_an_engine_that_kills_itself_after_a_failed_child_died_of_the_child(lab: Lab) -> None:
    words = (
        r"[2026-01-01 00:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):"
        r"\nOSError: [Errno 28] No space left on device"
    )
    told = diagnosed(lab.up("--tell", words, "--vanish", "weights=KILL"))
    assert (told["class"], told["evidence"]) == ("disk_full", "OSError: [Errno 28] No space left on device")
    assert [each["class"] for each in told["consequences"]] == ["sched_exception"]


def test_a_crash_of_native_code_is_told_by_its_signal(lab: Lab) -> None:
    told = diagnosed(lab.up("--vanish", "capture=SEGV"))
    assert (told["class"], told["confidence"]) == ("native_crash", "high")


def test_a_rank_that_ends_without_a_word_is_named(lab: Lab) -> None:
    go = lab.folder / "go"
    running = lab.begin(lab.order("--hold", f"weights={go}", "--lose", "weights", "--hold", f"capture={lab.folder}/never"))
    eventually(lambda: any(title.startswith("sglang::") for _, title in records.run_processes(lab.service)), "the rank is known")
    go.touch()
    told = diagnosed(running.end())
    assert told["class"] == "rank_died" and "sglang::scheduler" in told["what"]


@pytest.mark.failure_mode("diagnosis")
def test_the_outcome_shows_the_cause_and_its_cure_and_the_looks_name_the_class(lab: Lab) -> None:
    played = lab.up(
        "--tell",
        r"triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496, Hardware limit: 101376",
        "--vanish",
        "weights=1",
    )
    assert played.outcome["class"] == "triton_smem_oor"
    assert played.outcome["evidence"].startswith("triton.runtime.errors.OutOfResources")
    assert "num_stages" in played.outcome["next"]
    assert lab.history()["operations"][0]["class"] == "triton_smem_oor"
    assert lab.status()["last_operation"]["class"] == "triton_smem_oor"
    assert [entry["class"] for entry in lab.journal() if entry["event"] == "diagnosis"] == ["triton_smem_oor"]
    told = asked(lab)
    assert (told["release"], told["class"], told["confidence"]) == (1, "triton_smem_oor", "high")


def test_what_is_not_in_the_table_stays_unknown_with_its_lines(lab: Lab) -> None:
    played = lab.up("--die", "capture=3")
    assert played.outcome["class"] == "unknown"
    assert played.outcome["evidence"] == "RuntimeError: broken in capture"
    assert played.outcome["next"] == "gpuops logs --release 1"
    assert asked(lab)["lines"][-1] == "RuntimeError: broken in capture"


# A server that lives.


@pytest.mark.failure_mode("diagnosis")
def test_a_fatal_line_ends_the_wait_while_the_process_lives_on(lab: Lab) -> None:
    played = lab.up("--tell", ILLEGAL, "--mute", stall_s=60, start_s=120)
    assert (played.outcome["kind"], played.outcome["class"]) == ("died", "illegal_memory_access")
    assert played.all("died")[0]["what"] == "the server cannot start"
    assert played.outcome["phases"]["capture"] < 20


def test_an_error_that_the_start_survives_is_no_failure(lab: Lab) -> None:
    played = lab.up("--tell", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.")
    assert played.name == "promoted"
    assert asked(lab)["class"] is None


@pytest.mark.failure_mode("diagnosis")
def test_a_stall_names_the_compiler_that_is_waited_for_before_it_is_given_up(lab: Lab) -> None:
    played = lab.up("--child", "ptxas", "--mute", stall_s=3)
    told = diagnosed(played)
    assert (played.outcome["kind"], told["class"]) == ("stalled", "stall_compiler")
    assert told["waits_for"] == "ptxas, a compiler"
    silent = played.all("silent")
    assert [each["class"] for each in silent] == ["stall_compiler"]
    assert played.names("silent", "diagnosis") == ["silent", "diagnosis"]
    assert asked(lab)["class"] == "stall_compiler"


@pytest.mark.failure_mode("diagnosis")
def test_a_stall_counts_the_ranks(lab: Lab) -> None:
    order = lab.order("--mute", stall_s=2)
    order["engine"]["ranks"]["schedulers"] = 2
    told = diagnosed(lab.play(order))
    assert (told["class"], told["waits_for"]) == ("stall_missing_rank", "1 of 2 ranks")


@pytest.mark.failure_mode("diagnosis")
def test_a_stall_names_the_file_that_is_locked_and_who_holds_it(lab: Lab) -> None:
    path = lab.folder / "build.lock"
    path.touch()
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        told = diagnosed(lab.up("--await", str(path), stall_s=2))
    assert told["class"] == "stall_jit_lock"
    assert str(path) in told["waits_for"] and f"pid {os.getpid()}" in told["evidence"]


def test_a_stopped_process_is_what_is_waited_for(lab: Lab) -> None:
    told = diagnosed(lab.up("--freeze", "capture", "--mute", stall_s=2))
    assert told["class"] == "stall_stopped" and "sglang::scheduler" in told["evidence"]


def test_a_running_server_has_nothing_and_a_stopped_one_was_stopped(lab: Lab) -> None:
    lab.good()
    assert asked(lab)["what"] == "it lives, and nothing is wrong in its log"
    lab.down()
    assert asked(lab, release=1)["what"] == "it was stopped, and nothing is wrong in its log"


# The judgements, over what a host might show.


def process(title: str, *, cpu: float = 0.0, state: str = "S", wait: str = "") -> Process:
    return Process(pid=7, title=title, state=state, cpu=cpu, wait=wait)


SPINNING = tuple(Activity(index, 100, 140, 600, 42_000, 0) for index in range(2))
RANKS = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
MEETING = reading()["meaningful"]["meeting"]


@pytest.mark.parametrize(
    ("scene", "last", "name"),
    [
        (Scene(cards=SPINNING, ranks=RANKS), "x", stall.NCCL_P2P),
        (Scene(ranks=RANKS), "sglang is using nccl==2.30.4", stall.NCCL_P2P),
        (Scene(ranks=RANKS[:1]), "Init parallel begin.", stall.SILENT),
        (Scene(cards=(SPINNING[0],), ranks=RANKS[:1]), "x", stall.SILENT),
        (Scene(downloads=(Download(7, "/m/blobs/a.incomplete", 10, 0),)), "x", stall.DOWNLOAD),
        (Scene(locks=(LockWait(7, "/c/x.lock", 9, "python old"),)), "x", stall.JIT_LOCK),
        (Scene(left_locks=("/c/lock (99 s older)",)), "x", stall.JIT_LOCK),
        (Scene(left_locks=("/c/lock",), processes=(process("/usr/bin/ninja -v", cpu=0.4),)), "x", stall.COMPILER),
        (Scene(processes=(process("sglang::scheduler", state="D", wait="nfs_wait_bit_killable"),)), "x", stall.DISK),
        (Scene(ranks=RANKS, expected=8), "x", stall.MISSING_RANK),
        (Scene(ranks=RANKS, expected=2, lost=("sglang::scheduler_TP2",)), "x", stall.MISSING_RANK),
        (Scene(expected=8), "x", stall.MISSING_RANK),
        (Scene(processes=(process("python -m sglang"),)), "x", stall.SILENT),
    ],
)
def test_a_silence_is_named_by_what_shows(scene: Scene, last: str, name: str) -> None:
    assert stall.judge(scene, last, MEETING).name == name


@pytest.mark.parametrize(("watts", "grown", "spins"), [(140, 0, True), (520, 0, False), (140, 512, False)])
def test_a_card_that_is_busy_at_little_power_only_spins(watts: int, grown: int, spins: bool) -> None:
    assert Activity(0, 100, watts, 600, 42_000, grown).spins is spins


def test_the_activity_of_cards_is_read_from_what_nvidia_smi_prints() -> None:
    head = "index, utilization.gpu [%], power.draw [W], power.limit [W], memory.used [MiB]\n"
    text = f"{head}0, 100 %, 139.52 W, 600.00 W, 42011 MiB\n1, [N/A], [N/A], [N/A], 4 MiB\n"
    first, second = parse_activity(text)
    assert (first.utilisation, first.watts, first.limit_watts, first.used_mib) == (100, 139, 600, 42011)
    assert not second.spins and second.since(4).grown_mib == 0


OURS = SimpleNamespace(pid=4242, started_boot=1000.0)
KERNEL = [
    "[  900.000000] Out of memory: Killed process 4242 (python3) total-vm:1kB",
    "[ 1200.000000] Out of memory: Killed process 77 (postgres) total-vm:1kB",
    "[ 1201.000000] Memory cgroup out of memory: Killed process 4242 (python3) total-vm:9kB, anon-rss:8kB",
    "[ 1202.000000] NVRM: Xid (PCI:0000:c1:00): 31, pid=4242, name=python3, MMU Fault",
    "[ 1203.000000] usb 1-1: new device",
]


def test_only_what_the_kernel_says_of_us_since_the_launch_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xid, "kernel_log", lambda timeout: "\n".join(KERNEL))
    lines, _ = look.kernel_lines(host.service, OURS)  # type: ignore[arg-type]
    assert lines == (KERNEL[2], KERNEL[3])


def test_a_kernel_log_that_nobody_may_read_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(timeout: float) -> str:
        raise Silent("dmesg: Operation not permitted")

    monkeypatch.setattr(xid, "kernel_log", refuse)
    lines, why = look.kernel_lines(host.service, OURS)  # type: ignore[arg-type]
    told = diagnose(reader(""), Ending(alive=False, signal=9), Scene(kernel=lines, kernel_unread=why))
    assert told.name == "killed" and "could not be read: dmesg" in told.facts[0]


def reader(text: str) -> LogReader:
    reading = LogReader(facts("sglang", "0.5.23").as_order())
    reading.feed(text)
    reading.finish()
    return reading


def test_a_kill_for_memory_is_the_kernels_own_word() -> None:
    engine = facts("sglang", "0.5.23").as_order()
    words = "Received sigquit from a child process. It usually means the child failed.\n"
    told = diagnose(reader(words), Ending(alive=False, signal=9), Scene(kernel=(KERNEL[2],)), meaningful=engine["meaningful"])
    assert (told.name, told.evidence, told.confidence) == ("host_oom_kill", KERNEL[2], "high")
    assert [each["class"] for each in told.consequences] == ["child_failed"]


def test_a_page_fault_in_the_kernel_log_backs_the_logs_own_word() -> None:
    engine = facts("sglang", "0.5.23").as_order()
    told = diagnose(
        reader(f"{ILLEGAL}\n"), Ending(alive=False, code=1), Scene(kernel=(KERNEL[3],)), meaningful=engine["meaningful"]
    )
    assert told.name == "illegal_memory_access"
    assert any("Xid" in fact for fact in told.facts)


def test_a_left_lock_file_is_one_from_before_the_launch(tmp_path: Path) -> None:
    (tmp_path / "ext").mkdir()
    (tmp_path / "ext" / "lock").touch()
    changed = (tmp_path / "ext" / "lock").stat().st_mtime
    assert look._left_locks(str(tmp_path), changed - 5) == []
    assert "ext/lock (60 s older" in look._left_locks(str(tmp_path), changed + 60)[0]


def test_a_secret_is_taken_out_of_all_of_it() -> None:
    told = Diagnosis(
        name="x", what="key", phase=None, confidence="low", lines=["the key"], consequences=[{"text": "key", "line": 3}]
    )
    assert "key" not in json.dumps(redacted(told, lambda text: text.replace("key", "***")).to_json())


def test_a_rank_killed_by_a_signal_of_the_kernel_is_read_from_its_record() -> None:
    told = diagnose(reader(""), Ending(alive=False, signal=int(signal.SIGBUS), rank="sglang::scheduler_TP1"))
    assert told.name == "native_crash" and "SIGBUS" in told.what
