"""The servers that the lab compares: what each is started with, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FAMILIES = ("mla_decode", "indexer", "mhc", "glue")

# SGLang 0.5.15 sets these itself where the card is an sm_120 (server_args.py). FP8_WO_A_GEMM is left out: it only changes a weight's format.
SM120 = {
    "LAB_FORCE_SM120": "1",
    "SGLANG_SM120_FLASHMLA_BACKEND": "triton",
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1",
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": "0",
    "SGLANG_OPT_DEEPGEMM_HC_PRENORM": "0",
    "SGLANG_OPT_USE_TOPK_V2": "0",
}

COMMON = {
    "LAB_WEIGHTS": "1",
    "SGLANG_DSV4_FP4_EXPERTS": "0",
    "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
    "FLASHINFER_USE_CUDA_NORM": "1",
    "HF_HUB_OFFLINE": "1",
}

FLAGS = (
    *("--load-format", "dummy", "--skip-tokenizer-init", "--grammar-backend", "none", "--disable-radix-cache"),
    *(
        "--mem-fraction-static",
        "0.5",
        "--context-length",
        "65536",
        "--random-seed",
        "7",
        "--cuda-graph-bs-decode",
        "1",
        "16",
        "64",
    ),
)

_NO_OVERLAP = {"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "0"}
_COMPILE = ("--enable-torch-compile", "--torch-compile-max-bs", "16")


@dataclass(frozen=True)
class Case:
    """One server.

    Args:
        ours: the kernel pack in strict mode, with these families switched on; empty: ``GPUOPS_KERNELS=off``.
        environment: beside the common variables.
        flags: beside the common ones.
        why: what it shows.
    """

    ours: tuple[str, ...]
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    why: str


def _ours(families: tuple[str, ...], why: str, environment: Mapping[str, str] | None = None, flags: tuple[str, ...] = ()) -> Case:
    return Case(families, {**SM120, **(environment or {})}, flags, why)


# What is on by default on sm_120; `glue` is off there, and a case of its own.
_ALL = ("mla_decode", "indexer", "mhc")

CASES: Mapping[str, Case] = {
    "stock": Case((), SM120, (), "SGLang's own sm_120 paths"),
    "stock-again": Case((), SM120, (), "the same, for alternating launches"),
    "ours": _ours(_ALL, "every family, strict"),
    "ours-again": _ours(_ALL, "the same, for alternating launches"),
    "with-glue": _ours(FAMILIES, "every family, glue too"),
    "drop-split": _ours(
        _ALL, "one split of the sparse decode is missing: the comparison must notice", {"LAB_PLANT": "drop_split"}
    ),
    "scale": _ours(_ALL, "one scale of the sparse decode is wrong: the comparison must notice", {"LAB_PLANT": "scale"}),
    **{f"only-{family}": _ours((family,), f"{family} alone, to attribute a difference") for family in _ALL},
    "hopper": Case((), {}, (), "SGLang's own Hopper paths: FlashMLA, DeepGEMM, TileLang"),
    # The steps of torch.compile with our kernels, one change at a time; step 1 is `ours`, and step 4, a line in the stock kernel, is not needed.
    "compile-2": _ours(_ALL, "step 2: torch.compile, multi-stream overlap as it is", flags=_COMPILE),
    "compile-3": _ours(_ALL, "step 3: torch.compile without multi-stream overlap", _NO_OVERLAP, _COMPILE),
    "compile-0": _ours(_ALL, "what giving up the overlap alone costs", _NO_OVERLAP),
    "stock-compile-3": Case((), {**SM120, **_NO_OVERLAP}, _COMPILE, "step 3 with SGLang's own kernels: dies in Inductor"),
}
