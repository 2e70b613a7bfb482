"""What reading a profiler's trace costs: ``make bench-profile``.

The trace is made of the busiest kernels of a real decode step of DeepSeek-V4 on one H200 (6 layers, batch 64: durations and launches as recorded;
template arguments filled in where the record cuts them, and an all-reduce added), with all the fields that PyTorch writes, and with CPU operators as
in a trace with CPU activities; repeated until it has 200 MB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, report

SIZE = 200_000_000

# Kernel, microseconds, launches a step: the busiest of the lab's stock server at batch 64, SGLang 0.5.15.post1.
KERNELS = (
    ("_tiled_sparse_decode_kernel", 117.9, 10),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
        493.0,
        2,
    ),
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", 577.7, 1),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor>>>",
        254.2,
        2,
    ),
    (
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)1, 0u, 4096u, 4096u, 1u, 64u, 64u, 128u, 128u, 128u, 128u, 6u>",
        10.7,
        28,
    ),
    ("fused_moe_kernel", 23.5, 12),
    (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, float, float>>>",
        30.2,
        6,
    ),
    (
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda>>",
        1.8,
        30,
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int, float)",
        1.3,
        23,
    ),
    ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", 19.0, 6),
    ("hc_split_sinkhorn_kernel__kernel", 4.3, 12),
    ("mhc_post_tilelang_kernel", 3.7, 12),
    (
        "void moe_align_block_size_small_batch_expert_kernel<int, 256>(int const*, int*, int*, int*, int, int, unsigned long)",
        5.8,
        6,
    ),
    ("_router_triton_kernel", 2.2, 6),
    (
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, unsigned int)",
        2.0,
        7,
    ),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20.0, 12),
)
# CPU events are those that a trace with CPU activities has between any two launches.
OPERATORS = 2

READ = """
import json, resource, time
from pathlib import Path
from gpuops.engines.profiling import categories
from gpuops.profiling.summary import summarise
from gpuops.profiling.trace import read
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
found = summarise(read(Path({path!r})), categories())
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([time.process_time() - began, used.ru_maxrss / 1e6, found.launches * found.steps, found.steps, found.covered]))
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench-TP-0.trace.json"
        steps, kernels = _write(path)
        return report(_figures(path, steps, kernels))


def _figures(path: Path, steps: int, kernels: int) -> Iterator[Figure]:
    ended = subprocess.run([sys.executable, "-c", READ.format(path=str(path))], capture_output=True, text=True, check=True)
    seconds, gigabytes, counted, found, covered = json.loads(ended.stdout)
    size = path.stat().st_size / 1e6
    yield Figure("CPU time to read and add up a trace", seconds, 20.0, " s", f"{size:.0f} MB, {kernels} kernels")
    yield Figure("peak memory", gigabytes, 2.0, " GB", "of a process that reads one")
    yield Figure(
        "kernels or steps miscounted", abs(counted - kernels) + abs(found - steps), 0, "", f"of {kernels} in {steps} steps"
    )
    yield Figure("share of the time without a category", 1 - covered, 0.03, "", "of the lab's busiest kernels")


def _write(path: Path) -> tuple[int, int]:
    """Write the trace; returns its steps and kernels."""
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": []}
    steps = kernels = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-2])
        while file.tell() < SIZE:
            lines = [json.dumps(event) for event in _step(20_000.0 * steps)]
            file.write(("," if steps else "") + ",\n".join(lines))
            steps += 1
            kernels += sum(launches for _, _, launches in KERNELS)
        file.write("]}")
    return steps, kernels


def _step(at: float) -> Iterator[dict[str, object]]:
    for name, us, launches in KERNELS:
        for number in range(launches):
            for depth in range(OPERATORS):
                yield _event(
                    "cpu_op", "aten::linear" if depth == 0 else "aten::addmm", at + depth, 8.0 - depth, 4242, {"Ev Idx": number}
                )
            more = {"registers per thread": 168, "shared memory": 49152, "grid": [16, 8, 1], "block": [128, 1, 1]}
            yield _event("kernel", name, at, us, 7, {"device": 0, "context": 1, "stream": 7, "correlation": number, **more})
            at += us + 1.0


def _event(category: str, name: str, at: float, us: float, thread: int, args: dict[str, object]) -> dict[str, object]:
    place = {"pid": 0, "tid": thread, "ts": 5_141_562_034_632.125 + at, "dur": us}
    return {"ph": "X", "cat": category, "name": name, **place, "args": {"External id": 1234, **args}}


if __name__ == "__main__":
    sys.exit(main())
