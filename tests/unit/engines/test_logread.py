"""What the log reader makes of real logs: SGLang 0.5.2x on CPU, and DeepSeek-V4 on an H200."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpuops_agent.logread import LogReader, PhaseMark

from gpuops.engines import facts

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
LONGEST_PIECE = 7919
"""Bytes a piece when a log is fed in pieces: a prime, so that cuts fall anywhere in a line."""


def reader(version: str = "0.5.23") -> LogReader:
    return LogReader(facts("sglang", version).as_order())


def text_of(log: str) -> str:
    return (LOGS / f"{log}.log").read_bytes().decode("utf-8", "replace")


def read(log: str) -> tuple[LogReader, list[PhaseMark]]:
    reading = reader()
    return reading, reading.feed(text_of(log)) + reading.finish()


def phases_in_order(marks: list[PhaseMark]) -> list[str]:
    return list(dict.fromkeys(mark.phase for mark in marks))


@pytest.mark.parametrize("log", ["cpu_good_0.5.22", "cpu_good_0.5.23", "cpu_dummy_weights", "cpu_no_warmup_parent_killed_0.5.22"])
def test_a_start_on_cpu_goes_through_its_phases_in_order(log: str) -> None:
    reading, marks = read(log)
    assert phases_in_order(marks) == ["launch", "weights", "warm-up", "listening"]
    assert reading.fatal is None
    assert reading.doomed is None


def test_a_start_on_a_gpu_captures_graphs_between_weights_and_warm_up() -> None:
    reading, marks = read("healthy_dsv4_sm120_paths_h200")
    assert phases_in_order(marks) == ["launch", "weights", "capture", "warm-up", "listening"]
    assert [mark.progress for mark in marks if mark.phase == "capture"] == [0.0, 0.33, 0.67, 1.0]
    assert reading.fatal is None
    assert reading.last_meaningful == "The server is fired up and ready to roll!"


def test_loading_tells_its_progress_by_shards() -> None:
    _, marks = read("cpu_good_0.5.23")
    assert [mark.progress for mark in marks if mark.phase == "weights" and mark.detail == "loading"] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("log", "phase", "fatal"),
    [
        ("graph_capture_hidden_size_mismatch", "capture", "AssertionError: Hidden size mismatch"),
        (
            "graph_capture_missing_tilelang",
            "capture",
            "RuntimeError: tilelang is not installed; this kernel cannot run on the current platform",
        ),
        (
            "torch_compile_stream_capture_isolation",
            "capture",
            "torch.AcceleratorError: CUDA error: dependency created on uncaptured work in another stream",
        ),
        (
            "torch_compile_inductor_subproc_fp64",
            "capture",
            "AssertionError('Loop-carried variable m_i has initial type fp32 but is re-assigned to fp64 in loop! "
            "Please make sure that the type stays consistent.')",
        ),
        (
            "cpu_port_taken",
            "weights",
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 41999): address already in use",
        ),
        (
            "cpu_scheduler_killed",
            "listening",
            "Subprocess scheduler_0 (pid=8707) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        ),
        (
            "cpu_bad_flag",
            None,
            "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
            "--cuda-graph-max-bs-prefill",
        ),
        (
            "cpu_missing_model",
            None,
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
            "'/srv/models/nosuch'. Use `repo_type` argument if needed.",
        ),
    ],
)
def test_a_failed_launch_names_its_cause_and_the_phase_it_died_in(log: str, phase: str | None, fatal: str) -> None:
    reading, _ = read(log)
    assert (reading.phase, reading.fatal) == (phase, fatal)


@pytest.mark.parametrize(
    ("log", "last"),
    [
        ("graph_capture_hidden_size_mismatch", "AssertionError: Hidden size mismatch"),
        (
            "graph_capture_missing_tilelang",
            "Exception: Capture cuda graph failed: tilelang is not installed; this kernel cannot run on the current platform",
        ),
        (
            "torch_compile_stream_capture_isolation",
            "Exception: Capture cuda graph failed: CUDA error: operation failed due to a previous error during capture",
        ),
        (
            "cpu_scheduler_killed",
            "Subprocess scheduler_0 (pid=8707) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        ),
        ("cpu_no_warmup_parent_killed_0.5.22", "The server is fired up and ready to roll!"),
        ("cpu_good_0.5.23", "Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[]."),
    ],
)
def test_the_last_meaningful_line_is_neither_advice_nor_boilerplate(log: str, last: str) -> None:
    reading, _ = read(log)
    assert reading.last_meaningful == last


@pytest.mark.parametrize("log", ["cpu_port_taken", "cpu_scheduler_killed"])
def test_a_server_that_lingers_after_its_end_is_doomed(log: str) -> None:
    reading, _ = read(log)
    assert reading.doomed == reading.fatal


def test_an_exception_dooms_a_launch_before_its_process_ends_and_a_caught_one_does_not() -> None:
    reading = reader()
    reading.feed("RuntimeError: something that is caught\n")
    assert (reading.fatal, reading.doomed) == ("RuntimeError: something that is caught", None)
    reading, _ = read("graph_capture_hidden_size_mismatch")
    assert reading.doomed == "AssertionError: Hidden size mismatch"


@pytest.mark.parametrize("log", sorted(path.stem for path in LOGS.glob("*.log")))
def test_a_log_fed_in_pieces_reads_like_the_whole(log: str) -> None:
    whole, marks = read(log)
    pieces = reader()
    text = text_of(log)
    piecewise = [
        mark for start in range(0, len(text), LONGEST_PIECE) for mark in pieces.feed(text[start : start + LONGEST_PIECE])
    ]
    piecewise += pieces.finish()
    assert piecewise == marks
    assert (pieces.fatal, pieces.last_meaningful, pieces.doomed) == (whole.fatal, whole.last_meaningful, whole.doomed)


def test_a_progress_bar_is_read_before_its_line_ends() -> None:
    reading = reader()
    reading.feed("[2026-11-29 12:51:21 TP0] Load weight begin. avail mem=139.09 GB\n")
    bar = "\rLoading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02,  1.31it/s]"
    assert reading.feed(bar) == [PhaseMark("weights", "loading", 0.4)]


def test_a_record_glued_to_a_progress_bar_is_a_line_of_its_own() -> None:
    reading = reader()
    reading.feed(
        "Capturing batches (bs=64 avail_mem=64.97 GB):   0%|          | 0/3 [00:00<?, ?it/s][2026-11-29 12:52:01] Compiling kernels\n"
    )
    assert reading.last_meaningful == "Compiling kernels"
    assert reading.mark == PhaseMark("capture", "graphs", 0.0)


def test_a_second_rank_does_not_turn_the_phase_back() -> None:
    reading = reader()
    reading.feed("[2026-11-29 12:49:37 TP0] Capture target decode CUDA graph begin. backend=full\n")
    assert reading.feed("[2026-11-29 12:49:38 TP1] Load weight begin. avail mem=139.09 GB\n") == []
    assert reading.phase == "capture"


def test_an_error_that_the_server_survived_is_not_fatal() -> None:
    reading = reader()
    reading.feed(
        "[2026-11-29 12:00:00] ERROR:    Exception in ASGI application\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "ValueError: one bad request\n"
        "[2026-11-29 12:00:01] Scheduler hit an exception: Traceback (most recent call last):\n"
        "RuntimeError: the real cause\n"
    )
    assert reading.fatal == "RuntimeError: the real cause"


def test_a_wrapper_is_named_only_when_there_is_no_cause() -> None:
    reading = reader()
    reading.feed("[2026-11-29 12:00:00] Received sigquit from a child process. It usually means the child failed.\n")
    assert reading.fatal == "Received sigquit from a child process. It usually means the child failed."


def test_the_last_line_counts_even_without_its_newline() -> None:
    reading = reader()
    reading.feed("RuntimeError: cut off")
    assert reading.fatal is None
    reading.finish()
    assert reading.fatal == "RuntimeError: cut off"


def test_a_long_line_is_shown_short() -> None:
    reading = reader()
    reading.feed("server_args=" + "x" * 20_000 + "\n")
    assert len(reading.last_meaningful) == 500
