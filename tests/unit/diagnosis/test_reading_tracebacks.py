"""Tracebacks in a log: the exception is found by its frames, and its frames tell what its words do not."""

from __future__ import annotations

import pytest

from gpuops.diagnosing import of_log
from gpuops.engines import reading

HEAD = "[2026-10-02 09:19:59 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
NEXT = "[2026-10-02 09:20:00 TP0] "


def frame(file: str, function: str, source: str = "x = f(y)", before: str = "") -> str:
    return f'{before}  File "{file}", line 7, in {function}\n{before}    {source}\n{before}           ^^^^\n'


def told(text: str) -> tuple[str | None, str]:
    of = of_log(text.encode())
    return of["class"], of["evidence"]


@pytest.mark.parametrize(
    "last",
    [
        "socket.gaierror: [Errno -2] Name or service not known",
        "queue.Empty",
        "torch._odd.Unsupported: that",
        "DistressSignal: none",
    ],
)
def test_an_exception_is_known_by_its_frames_whatever_its_name(last: str) -> None:
    assert told(HEAD + frame("/s/x.py", "run") + last + "\n") == ("unknown", last)


@pytest.mark.parametrize("line", ["socket.timeout: 30", "queue.Empty", "DistressSignal: none"])
def test_the_same_words_without_frames_are_no_exception(line: str) -> None:
    assert told(f"Note\n{line}\n")[0] is None


@pytest.mark.parametrize("line", ["Capturing batches (bs=8):  10%", "INFO:     started", "WARNING: slow"])
def test_what_others_write_between_the_frames_is_no_exception(line: str) -> None:
    text = HEAD + frame("/s/x.py", "run") + f"{line}\n" + frame("/s/y.py", "go") + "ValueError: odd\n"
    assert told(text) == ("unknown", "ValueError: odd")


def test_words_that_follow_a_colon_are_the_exceptions() -> None:
    text = HEAD + frame("/s/x.py", "run") + "RuntimeError: Failed to import a.b because of the following error:\n"
    assert told(text + "No module named 'c'\n") == ("module_missing", "No module named 'c'")
    assert told(text + "\nNo module named 'c'\n")[0] == "unknown"


def test_so_they_are_where_a_report_shows_the_exception_without_its_frames() -> None:
    text = "RuntimeError: Failed to import a.b because of the following error (look up to see its traceback):\n"
    assert told(text + "No module named 'c'\n") == ("module_missing", "No module named 'c'")
    assert told("Note:\nNo module named 'c'\n")[0] is None


def test_source_that_has_lost_its_indentation_is_no_evidence() -> None:
    text = (
        f"{HEAD}{frame('/s/x.py', 'run')}"
        + 'raise RuntimeError(f"NCCL error: {error_str}")\nRuntimeError: NCCL error: unhandled system error\n'
    )
    assert told(text) == ("nccl_error", "RuntimeError: NCCL error: unhandled system error")


def test_the_place_of_an_exception_tells_what_its_words_do_not() -> None:
    wordless = "AssertionError\n"
    assert told(HEAD + frame("/s/linear.py", "weight_loader") + wordless)[0] == "weights_mismatch"
    assert told(HEAD + frame("/s/model.py", "__init__", "assert heads % tp_size == 0") + wordless)[0] == "shape_mismatch"
    assert told(HEAD + frame("/s/server_args.py", "check") + wordless)[0] == "wrong_arguments"
    assert told(HEAD + frame("/s/model.py", "run", "assert ready") + wordless)[0] == "unknown"


def test_the_frames_of_one_traceback_are_not_those_of_the_next() -> None:
    first = HEAD + frame("/s/model.py", "load_weights") + "UserStop: later\n"
    again = "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
    assert told(first + again + frame("/s/x.py", "run") + "KeyError: 'rid'\n")[0] == "unknown"
    assert told(f"{first}{NEXT}KeyError: 'rid'\n")[0] == "unknown"


@pytest.mark.parametrize(
    "before",
    [
        "[rank1]: ",
        "(EngineCore pid=4) ERROR 10-02 09:19:59 [core.py:7] ",
        "(Engine pid=4, ip=10.0.0.2) ",
        "2026-10-02T09:19:59.371Z (EngineCore pid=4) ",
        "[2026-10-02T09:19:59.371Z] ",
    ],
)
def test_frames_behind_a_prefix_are_frames(before: str) -> None:
    text = f"{before}Traceback (most recent call last):\n" + frame("/s/model.py", "load_weights", before=before)
    assert told(text + f"{before}KeyError: 'mtp.enorm.weight'\n")[0] == "weights_mismatch"


def test_an_exception_that_begins_with_an_empty_line_shows_the_line_that_says_something() -> None:
    text = (
        HEAD
        + frame("/s/load_utils.py", "load")
        + "ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n"
    )
    assert told(text) == ("abi_mismatch", "[sgl_kernel] CRITICAL: Could not load any common_ops library!")
    reason = "- ImportError: libnuma.so.1: cannot open shared object file: No such file or directory"
    assert told(f"{text}\nError details:\n{reason}\n") == ("library_missing", reason)


def test_of_a_rank_that_was_left_by_another_it_is_said_what_it_saw() -> None:
    left = "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:17411"
    text = HEAD + frame("/s/x.py", "run") + left + "\n\n[2026-10-02 09:20:00] Received sigquit from a child process.\n"
    assert told(text) == ("after_effect", left)


def test_words_that_mean_nothing_without_their_place_decide_nothing_about_restarts() -> None:
    meaningful = reading()["meaningful"]
    bound = {row["pattern"] for row in meaningful["signatures"] if "at" in row}
    assert bound
    assert not bound & {row["pattern"] for row in meaningful["incurable"]}
    assert not bound & set(meaningful["poisoned"])
