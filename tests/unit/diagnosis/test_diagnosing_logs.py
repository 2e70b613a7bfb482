"""Whole logs: what was recorded, healthy ones cut anywhere, and failures told in other words, orders and wrappings than the table's sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.diagnosing import of_log

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
HEALTHY = (
    "cpu_good_0.5.22",
    "cpu_good_0.5.23",
    "cpu_dummy_weights",
    "cpu_no_warmup_parent_killed_0.5.22",
    "cpu_launching",
    "cpu_served_and_stopped",
    "cpu_served_flags",
    "cpu_served_over_ssh",
    "cpu_served_probes",
    "cpu_served_shortly",
    "cpu_warming_up",
    "healthy_dsv4_sm120_paths_h200",
    "torch_compile_captured_bs16_after_two_fixes",
)
START = """\
[2026-10-02 09:14:01] server_args=ServerArgs(model_path='/m', watchdog_timeout=300, tp_size=4, mem_fraction_static=0.86, enable_nan_detection=False)
[2026-10-02 09:14:09 TP0] Init parallel begin.
[2026-10-02 09:14:09 TP1] Init parallel begin.
[2026-10-02 09:14:12 TP0] Load weight begin. avail mem=93.90 GB
"""
LOADED = START + "[2026-10-02 09:15:02 TP0] Load weight end. elapsed=50.1 s, type=DeepseekV4ForCausalLM, avail mem=22.01 GB\n"
CAPTURING = LOADED + "[2026-10-02 09:15:03 TP0] Capture target decode CUDA graph begin. backend=full, avail mem=12.1 GB\n"
SERVING = CAPTURING + (
    "[2026-10-02 09:17:03] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)\n"
    "[2026-10-02 09:17:05] The server is fired up and ready to roll!\n"
    "[2026-10-02 09:17:06 TP0] Decode batch, #running-req: 1, #full token: 768, cuda graph: True, gen throughput (token/s): 99.5\n"
)
ADVICE = (
    "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\nOpen an issue on GitHub https://github.com/x/issues/new/choose\n"
)
GONE = (
    "[2026-10-02 09:20:00] Received sigquit from a child process. It usually means the child failed.\n"
    "[2026-10-02 09:20:00] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n"
)


def raised(rank: str, *last: str) -> str:
    """A scheduler's exception: the record, frames, and the last lines."""
    head = f"[2026-10-02 09:19:59 {rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
    return (
        head
        + '  File "/s/scheduler.py", line 3, in run\n    raise RuntimeError("CUDA out of memory")\n'
        + "\n".join(last)
        + "\n\n"
    )


def again(*last: str) -> str:
    frames = 'Traceback (most recent call last):\n  File "/s/x.py", line 9, in capture\n    self.capture()\n'
    return "During handling of the above exception, another exception occurred:\n\n" + frames + "\n".join(last) + "\n"


@pytest.mark.parametrize(
    ("log", "name", "number", "phase"),
    [
        ("graph_capture_hidden_size_mismatch", "shape_mismatch", 147, "capture"),
        ("graph_capture_missing_tilelang", "module_missing", 93, "capture"),
        ("torch_compile_stream_capture_isolation", "graph_capture_isolation", 195, "capture"),
        ("torch_compile_inductor_subproc_fp64", "triton_compile", 159, "capture"),
        ("cpu_bad_flag", "wrong_arguments", 478, None),
        ("cpu_missing_model", "model_missing", 16, None),
        ("cpu_port_taken", "port_in_use", 60, "weights"),
        ("cpu_scheduler_killed", "rank_died", 90, "listening"),
    ],
)
def test_a_recorded_failure_is_classified_by_its_first_specific_line(log: str, name: str, number: int, phase: str | None) -> None:
    told = of_log((LOGS / f"{log}.log").read_bytes())
    assert (told["class"], told["number"], told["phase"]) == (name, number, phase)
    assert told["confidence"] in ("high", "medium")


@pytest.mark.parametrize("log", HEALTHY)
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 1.0])
def test_a_healthy_log_raises_no_alarm_wherever_it_is_cut(log: str, share: float) -> None:
    data = (LOGS / f"{log}.log").read_bytes()
    told = of_log(data[: int(len(data) * share)])
    assert told["class"] is None, told


VARIATIONS: dict[str, tuple[str, str, str]] = {
    "oom on rank 3 in capture, wrapped with advice": (
        CAPTURING
        + raised(
            "TP3",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 94.97 GiB",
        )
        + again("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.")
        + ADVICE
        + GONE,
        "gpu_oom",
        "torch.OutOfMemoryError: CUDA out of memory. Tried",
    ),
    "nccl complains first on rank 0, the cause is rank 2's": (
        SERVING
        + "[rank2]:[W1002 09:19:58.001 Module.cpp:203] symbolizing C++ stack trace for exception\n"
        + raised(
            "TP2",
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "CUDA kernel errors might be asynchronously reported",
        )
        + "[rank0]:[E1002 09:19:59.120 ProcessGroupNCCL.cpp:2057] [PG ID 2 PG GUID 3 Rank 0] Process group "
        "watchdog thread terminated with exception: NCCL error: remote process exited\n"
        + GONE.replace("Received sigquit from a child process.", "SIGQUIT received. signum=3, frame=x."),
        "illegal_memory_access",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    "an assertion on the card stands far above the traceback": (
        SERVING + "../aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectSmallIndex: block: [5,0,0], thread: "
        "[64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        * 40
        + raised("TP1", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`")
        + GONE,
        "device_assert",
        "../aten/src/ATen/native/cuda/Indexing.cu:1553",
    ),
    "two ranks interleaved, one with the cause": (
        CAPTURING
        + "[2026-10-02 09:19:58 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        + "[2026-10-02 09:19:58 TP0] Using default MoE kernel config. Performance might be sub-optimal! Config "
        "file not found at /s/E=32,device_name=X.json\n"
        + '  File "/s/flash_mla.py", line 77, in sparse_decode\n'
        + "RuntimeError: Unsupported architecture for sparse decode fwd\n\n"
        + "[2026-10-02 09:20:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        + "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error\n"
        + GONE,
        "arch_gate",
        "RuntimeError: Unsupported architecture for sparse decode fwd",
    ),
    "an older engine: plain prefix, old wrapper, old typo": (
        "[2025-05-01 10:00:00 DP1 TP5] Capture cuda graph begin. This can take up to several minutes. avail mem=4.5 GB\n"
        "[2025-05-01 10:00:09 DP1 TP5] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/s/kernel.py", line 4, in launch\n'
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware "
        "limit: 101376. Reducing block sizes may help.\n"
        "[2025-05-01 10:00:09] Received sigquit from a child proces. It usually means the child failed.\n",
        "triton_smem_oor",
        "triton.runtime.errors.OutOfResources",
    ),
    "colours everywhere": (
        CAPTURING
        + "\x1b[31m[2026-10-02 09:19:59 TP0] Scheduler hit an exception: Traceback (most recent call last):\x1b[0m\n"
        + "\x1b[1;31mImportError: /x/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab\x1b[0m\n",
        "abi_mismatch",
        "ImportError: /x/common_ops.abi3.so",
    ),
    "out of a container's log": (
        "".join(
            f"sglang-1  | {line}\n"
            for line in (
                START + raised("TP0", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
            ).splitlines()
        ),
        "kv_pool_too_small",
        "RuntimeError: Not enough memory.",
    ),
    "out of the journal": (
        "".join(
            f"Oct 02 09:14:01 box sglang[812]: {line}\n"
            for line in (
                START + raised("TP0", "ValueError: Model architectures ['NewForCausalLM'] are not supported for now.")
            ).splitlines()
        ),
        "model_unsupported",
        "ValueError: Model architectures",
    ),
    "torchrun puts the rank in front of every line": (
        LOADED
        + '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/s/a.py", line 1, in f\n'
        + "[rank3]: RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
        "no_kernel_image",
        "RuntimeError: CUDA error: no kernel image",
    ),
    "a compile on the host: the compiler's own line, not ninja's": (
        CAPTURING
        + "FAILED: [code=1] /c/flashinfer/sm120/batch_decode.cuda.o\n/usr/local/cuda/bin/nvcc -gencode arch=compute_120a,code=sm_120a -c x.cu\n"
        + "nvcc fatal   : Unsupported gpu architecture 'compute_120a'\nninja: build stopped: subcommand failed.\n"
        + raised("TP0", "RuntimeError: Ninja build failed. Ninja output:")
        + GONE,
        "ptxas_arch",
        "nvcc fatal   : Unsupported gpu architecture",
    ),
    "the reason is only inside the wrapper's line": (
        CAPTURING
        + "RuntimeError: Capture cuda graph failed: CUDA error: operation would make the legacy stream depend on a capturing blocking stream\n"
        + ADVICE
        + GONE,
        "graph_capture_illegal",
        "RuntimeError: Capture cuda graph failed",
    ),
    "a very long line before a short cause": (
        START
        + "[2026-10-02 09:14:20] "
        + "x" * 300_000
        + "\n"
        + raised("TP0", "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge")
        + GONE,
        "weights_incomplete",
        "safetensors_rust.SafetensorError",
    ),
    "a hardware fault in the kernel log explains the rest": (
        SERVING
        + raised("TP0", "torch.AcceleratorError: CUDA error: unspecified launch failure")
        + GONE
        + "[ 8123.118] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n",
        "gpu_lost",
        "[ 8123.118] NVRM: Xid",
    ),
    "survived an hour ago, another thing killed it": (
        SERVING
        + "[2026-10-02 09:18:00 TP0] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
        + "[2026-10-02 09:18:01 TP0] Decode batch, #running-req: 1, #full token: 768, cuda graph: True, gen throughput (token/s): 99.5\n"
        + raised("TP0", "OSError: [Errno 24] Too many open files: '/proc/self/status'")
        + GONE,
        "fd_limit",
        "OSError: [Errno 24] Too many open files",
    ),
    "the request logger repeats what a user asked": (
        SERVING + "[2026-10-02 09:18:00] Finish: obj=GenerateReqInput(rid='a', text='explain: torch.OutOfMemoryError: "
        "CUDA out of memory, NaN in the logits')\n"
        + raised("TP0", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0")
        + GONE,
        "nan_logits",
        "RuntimeError: probability tensor contains",
    ),
    "shared memory, told by nccl and then by everybody": (
        START
        + "box:77:90 [1] NCCL INFO Using network Socket\n"
        + "box:77:90 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Xk2 to 33030532 "
        "bytes, error: No space left on device (28)\n"
        + raised(
            "TP1",
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:93, unhandled system error, NCCL version 2.30.4",
            "ncclSystemError: System call failed",
        )
        + GONE,
        "shm_exhausted",
        "box:77:90 [1] misc/shmutils.cc:87 NCCL WARN",
    ),
    "a rank crashed natively, the others' captures lost it": (
        CAPTURING
        + raised(
            "TP0", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
        )
        + again(
            "Exception: Capture cuda graph failed: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
        )
        + ADVICE
        + "Fatal Python error: Segmentation fault\n\nThread 0x00007f95ca716740 (most recent call first):\n"
        + GONE,
        "native_crash",
        "Fatal Python error: Segmentation fault",
    ),
    "a program that runs the server logs it again": (
        "".join(
            f"2025-03-08 02:04:48,693 - __main__ - INFO - {line}\n"
            for line in (START + raised("TP0", "RuntimeError: CUDA error: out of memory")).splitlines()
        ),
        "gpu_oom",
        "RuntimeError: CUDA error: out of memory",
    ),
    "another engine's log format": (
        "(VllmWorker rank=5 pid=236521) ERROR 05-03 08:17:35 [multiproc_executor.py:435] Traceback (most recent call last):\n"
        '(VllmWorker rank=5 pid=236521) ERROR 05-03 08:17:35 [multiproc_executor.py:435]   File "/s/x.py", line 1, in f\n'
        "(VllmWorker rank=5 pid=236521) ERROR 05-03 08:17:35 [multiproc_executor.py:435] "
        "ValueError: The output_size of gate's weight = 192 is not divisible by weight quantization block_n = 128.\n",
        "shape_mismatch",
        "ValueError: The output_size",
    ),
    "nobody knows this one": (
        CAPTURING + raised("TP0", "KeyError: 'indexer_budget'") + GONE,
        "unknown",
        "KeyError: 'indexer_budget'",
    ),
}


@pytest.mark.parametrize("title", VARIATIONS)
def test_a_failure_told_in_another_way_is_the_same_failure(title: str) -> None:
    text, name, evidence = VARIATIONS[title]
    told = of_log(text.encode())
    assert told["class"] == name, told
    assert told["evidence"].startswith(evidence), told["evidence"]


@pytest.mark.parametrize("title", VARIATIONS)
def test_it_is_the_same_when_the_log_has_bytes_that_are_no_text_and_ends_its_lines_in_two_ways(title: str) -> None:
    text, name, _ = VARIATIONS[title]
    told = of_log(b"\xff\xfe\x80 \xc3\x28\r\n" + text.replace("\n", "\r\n").encode() + b"\xe2\x82")
    assert told["class"] == name


def test_what_only_followed_is_listed_as_such() -> None:
    told = of_log(VARIATIONS["oom on rank 3 in capture, wrapped with advice"][0].encode())
    assert [each["class"] for each in told["consequences"]] == ["sched_exception", "graph_capture_failed", "child_failed"]
    assert (told["rank"], told["phase"], told["confidence"]) == ("TP3", "capture", "high")
    assert "--mem-fraction-static" in told["cure"]


def test_an_unknown_failure_shows_the_lines_that_matter() -> None:
    told = of_log(VARIATIONS["nobody knows this one"][0].encode())
    assert told["confidence"] == "low" and told["lines"][-1] == told["evidence"]
    assert 1 < len(told["lines"]) <= 10
    assert told["where"] == "/s/scheduler.py:3 in run"


def test_a_wrapper_without_a_cause_is_named_without_confidence() -> None:
    told = of_log((CAPTURING + GONE).encode())
    assert (told["class"], told["confidence"]) == ("child_failed", "low")


def test_a_cause_without_a_class_in_a_capture_gets_the_captures() -> None:
    text = (
        CAPTURING
        + raised("TP0", "RuntimeError: the moon is full")
        + again("Exception: Capture cuda graph failed: the moon is full")
        + ADVICE
        + GONE
    )
    told = of_log(text.encode())
    assert (told["class"], told["evidence"]) == ("graph_capture_failed", "RuntimeError: the moon is full")


@pytest.mark.parametrize("text", ["", "\n", "\x00\x01\x02", "hello\nworld\n"])
def test_nothing_is_made_of_nothing(text: str) -> None:
    assert of_log(text.encode())["class"] is None


def test_a_server_that_computes_nan_and_goes_on_is_told() -> None:
    told = of_log(
        (
            SERVING
            + "[2026-10-02 09:18:00 TP0] Detected errors during sampling! NaN in the logits.\n"
            + SERVING.splitlines()[-1]
            + "\n"
        ).encode()
    )
    assert (told["class"], told["confidence"]) == ("nan_logits", "high")


def test_of_two_exceptions_that_nobody_knows_the_one_that_the_engine_announced_counts() -> None:
    text = LOADED + "ValueError: caught by a plugin\n" + raised("TP0", "KeyError: 'indexer_budget'") + GONE
    assert of_log(text.encode())["evidence"] == "KeyError: 'indexer_budget'"


def test_what_a_server_survived_a_thousand_times_does_not_hide_what_killed_it() -> None:
    once = "[2026-10-02 09:18:00 TP0] RuntimeError: request {number} was refused\n" + SERVING.splitlines()[-1] + "\n"
    text = (
        SERVING
        + "".join(once.format(number=number) for number in range(1000))
        + raised("TP0", "OSError: [Errno 28] No space left")
        + GONE
    )
    assert of_log(text.encode())["class"] == "disk_full"


ODD = "[2026-10-02 09:19:59 TP0] The gear of the mill failed to turn\n"
SERVED = "[2026-10-02 09:20:09 TP0] Decode batch, #running-req: 1\n"


def test_a_failure_in_words_that_nobody_knows_is_not_called_a_log_without_any() -> None:
    """No class is made up; the lines are shown."""
    told = of_log(b"Loading\n" + ODD.encode())
    assert (told["class"], told["confidence"], told["lines"]) == (None, "low", ["The gear of the mill failed to turn"])
    assert "no known failure" in told["what"] and "nothing is wrong" not in told["what"]


@pytest.mark.parametrize(
    "text",
    [
        ODD + SERVED,
        "Loading\n",
        "The gear failed to turn, falling back to the crank\n",
        "[rank0]: some tensor\n",
        "[2026-10-02 09:20:09 TP0] Abort request rid=a1, aborted by its client\n",
        "[2026-10-02 09:20:09 TP0] failed requests: 0, errors: 0\n",
        "[rank0]:W1130 18:22:06.120 torch/_inductor/x.py:7] RuntimeError: ttir analysis hit an op\n",
        '    warnings.warn("error")\n',
        "raise ValueError(text)\n",
        "Sleeping 5 seconds before crash diagnostics\n",
        "Failed to import deepgemm, disable _ENABLE_JIT_DEEPGEMM.\n",
    ],
)
def test_what_speaks_of_no_failure_or_was_survived_is_none(text: str) -> None:
    told = of_log(text.encode())
    assert (told["class"], told["confidence"], told["lines"]) == (None, "medium", [])


def test_a_server_that_lives_is_not_doubted_for_a_line_that_nobody_knows() -> None:
    from gpuops_agent.diagnosis import Ending, diagnose
    from gpuops_agent.logread import LogReader

    from gpuops.engines import reading

    reader = LogReader(reading())
    reader.feed(ODD)
    told = diagnose(reader, Ending(alive=True))
    assert (told.confidence, told.lines) == (
        "medium",
        ["The gear of the mill failed to turn"],
    ) and "nothing is wrong" in told.what


def test_a_connection_that_c10d_has_lost_is_shown_though_it_only_warns() -> None:
    line = "[rank12]:[W318 10:00:41.915284135 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=9): Connection reset by peer\n"
    told = of_log(line.encode())
    assert (told["class"], told["confidence"]) == (None, "low") and "recvValue failed" in told["lines"][0]


def test_the_phase_is_the_evidences_own() -> None:
    """Another rank, or the way down, may write what looks like a later phase."""
    text = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    later = "[2026-10-02 09:20:09 TP1] Capture cuda graph begin. This can take up to several minutes.\n"
    assert of_log(text.encode())["phase"] is None
    assert of_log((text + later).encode())["phase"] is None
    assert of_log((later + text).encode())["phase"] == "capture"


def test_what_a_table_of_grafana_puts_before_a_line_is_no_part_of_it() -> None:
    lines = ("  |   | 2025-05-21 16:54:13 | Fatal Python error: Segmentation fault", "  | Fatal Python error: Segmentation fault")
    assert [of_log(line.encode() + b"\n")["class"] for line in lines] == ["native_crash", None]


GONE_CLIENT = """Task exception was never retrieved
future: <Task finished name='Task-7' coro=<answer()> exception=ValueError('Request is disconnected from the client side')>
Traceback (most recent call last):
  File "/s/sglang/srt/managers/tokenizer_manager.py", line 7, in wait
    raise ValueError(text)
asyncio.exceptions.CancelledError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/s/sglang/srt/managers/tokenizer_manager.py", line 9, in wait
    raise ValueError(text)
ValueError: Request is disconnected from the client side
"""


def test_a_client_that_goes_away_is_no_failure_of_the_server() -> None:
    assert of_log(GONE_CLIENT.encode())["class"] is None


@pytest.mark.parametrize(
    ("after", "name"),
    [
        ("Fatal Python error: Segmentation fault\n", "native_crash"),
        (
            "[rank0]:[E1130 18:22:06.1 ProcessGroupNCCL.cpp:9] Watchdog caught collective operation timeout: WorkNCCL(\n",
            "nccl_timeout",
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered\n", "illegal_memory_access"),
    ],
)
def test_what_comes_after_a_harmless_traceback_counts(after: str, name: str) -> None:
    assert of_log((GONE_CLIENT + after).encode())["class"] == name


def test_a_record_that_ends_in_a_colon_announces_nothing_to_the_next_one() -> None:
    text = "[2026-10-02 09:20:00 TP0] ValueError: cannot load the draft model:\n[2026-10-02 09:20:01 TP1] xgrammar is not installed\n"
    assert of_log(text.encode())["class"] == "unknown"


def test_what_a_request_fails_of_settles_the_exceptions_that_led_to_it() -> None:
    text = """[2026-10-02 09:20:00] Error in request: Traceback (most recent call last):
  File "/site/urllib3/response.py", line 7, in read
    raise ReadTimeoutError(pool)
urllib3.exceptions.ReadTimeoutError: Read timed out.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/s/sglang/srt/entrypoints/openai/serving_chat.py", line 7, in handle_request
    await load(url)
  File "/s/sglang/srt/multimodal/base.py", line 9, in load
    raise RuntimeError(text)
RuntimeError: An exception occurred while loading IMAGE data at index 1
"""
    told = of_log(text.encode())
    assert told["class"] is None and [each["class"] for each in told["hints"]] == ["request_failed"]


def test_what_mpirun_puts_before_a_line_is_no_part_of_it() -> None:
    assert of_log(b"[1,0]<stderr>:RuntimeError: CUDA error: out of memory\n")["class"] == "gpu_oom"


BORN = "[2026-10-02 09:00:00] server_args=ServerArgs(model_path='/m', port=30000)\n"
READY = "[2026-10-02 09:01:00] The server is fired up and ready to roll!\n"
DEATHS = {
    "rank_died": "[2026-10-02 09:02:00] Child process unexpectedly failed with exitcode=9. pid=7\n",
    "illegal_memory_access": "[2026-10-02 09:02:00 TP0] RuntimeError: CUDA error: an illegal memory access was encountered\n",
    "port_in_use": "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use\n",
}


@pytest.mark.parametrize("name", DEATHS)
def test_a_log_that_the_next_server_has_written_on_is_told_by_the_last_one(name: str) -> None:
    """As a container's that is started again: what the one before died of is over once its successor serves, or fails of something else."""
    died = BORN + READY + DEATHS[name]
    assert of_log(died.encode())["class"] == name
    assert of_log((died + BORN).encode())["class"] == name, "nobody knows yet whether this one gets further"
    assert of_log((died + BORN + READY + SERVED).encode())["class"] is None
    other = "[2026-10-02 09:03:00 TP0] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    told = of_log((died + BORN + other).encode())
    assert (told["class"], told["number"]) == ("gpu_oom", 5)


def test_the_end_that_somebody_asked_for_is_no_death() -> None:
    asked = (
        BORN
        + READY
        + SERVED
        + "[2026-10-02 09:02:00] SIGTERM received. signum=None, frame=None. Draining requests and shutting down...\n"
    )
    end = "[2026-10-02 09:02:01] Subprocess scheduler_0 (pid=7) crashed with exit code {}. Triggering SIGQUIT for cleanup...\n"
    assert of_log((asked + end.format(-15)).encode())["class"] is None
    assert of_log((BORN + READY + SERVED + end.format(-15)).encode())["class"] == "rank_died"
    assert of_log((asked + end.format(-11)).encode())["class"] == "rank_died"
    assert of_log((asked + DEATHS["illegal_memory_access"]).encode())["class"] == "illegal_memory_access"


def test_a_choice_that_autotuning_leaves_out_is_no_failure() -> None:
    tried = """[rank0]:E1130 18:22:06.120 torch/_inductor/select_algorithm.py:2100] [8/6] Runtime error during autotuning:
[rank0]:E1130 18:22:06.120 torch/_inductor/select_algorithm.py:2100] [8/6] No valid triton configs. OutOfResources: out of resource: shared memory
Runtime error during autotuning:
No valid triton configs. OutOfResources: out of resource: shared memory, Required: 110592, Hardware limit: 101376.
Ignoring this choice.
"""
    assert of_log(tried.encode())["class"] is None
    raised = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 110592, Hardware limit: 101376.\n"
    assert of_log((tried + raised).encode())["class"] == "triton_smem_oor"
