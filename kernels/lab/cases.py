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
        # Several servers start on one card: each keeps a small pool, and asks for little of what is left.
        "--mem-fraction-static",
        "0.8",
        "--max-total-tokens",
        "1048576",
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
_EAGER = ("--disable-decode-cuda-graph", "--disable-prefill-cuda-graph")

PHASES = ("answers", "throughput", "kernels", "shadow")
_ASKED = ("answers", "throughput", "kernels")
_ALTERNATING = ("answers", "throughput")


@dataclass(frozen=True)
class Case:
    """One server.

    Args:
        ours: the kernel pack in strict mode, with these families switched on; empty: ``GPUOPS_KERNELS=off``.
        environment: beside the common variables.
        flags: beside the common ones.
        why: what it shows.
        phases: what it is asked, in this order (compare.py).
    """

    ours: tuple[str, ...]
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    why: str
    phases: tuple[str, ...] = _ASKED


def _stock(
    why: str, environment: Mapping[str, str] = SM120, flags: tuple[str, ...] = (), phases: tuple[str, ...] = _ASKED
) -> Case:
    return Case((), environment, flags, why, phases)


def _ours(
    families: tuple[str, ...],
    why: str,
    environment: Mapping[str, str] | None = None,
    flags: tuple[str, ...] = (),
    phases: tuple[str, ...] = _ASKED,
) -> Case:
    return Case(families, {**SM120, **(environment or {})}, flags, why, phases)


# What is on by default on sm_120; `glue` is off there, and a case of its own.
_ALL = ("mla_decode", "indexer", "mhc")

CASES: Mapping[str, Case] = {
    "stock": _stock("SGLang's own sm_120 paths"),
    "stock-again": _stock("a second launch of the same: stock's own noise", phases=_ALTERNATING),
    "ours": _ours(_ALL, "every family, strict"),
    "ours-again": _ours(_ALL, "a second launch of the same", phases=_ALTERNATING),
    "with-glue": _ours(FAMILIES, "every family, glue too"),
    # Without graphs, since each call of a replaced function computes both, and reads the differences back.
    "shadow": _ours(
        _ALL, "stock, ours and planted errors side by side on the engine's own inputs", {"LAB_SHADOW": "1"}, _EAGER, ("shadow",)
    ),
    "drop-split": _ours(
        _ALL,
        "one split of the sparse decode is missing: the comparison must notice",
        {"LAB_PLANT": "drop_split"},
        phases=("answers",),
    ),
    "scale": _ours(
        _ALL,
        "one scale of the sparse decode is wrong: the comparison must notice",
        {"LAB_PLANT": "scale"},
        phases=("answers",),
    ),
    **{f"only-{family}": _ours((family,), f"{family} alone, to attribute a difference", phases=("answers",)) for family in _ALL},
    "hopper": _stock("SGLang's own Hopper paths: FlashMLA, DeepGEMM, TileLang", {}),
    # The steps of torch.compile with our kernels, one change at a time; step 1 is `ours`, and step 4, a line in the stock kernel, is not needed.
    "compile-2": _ours(_ALL, "step 2: torch.compile, multi-stream overlap as it is", None, _COMPILE, _ALTERNATING),
    "compile-3": _ours(_ALL, "step 3: torch.compile without multi-stream overlap", _NO_OVERLAP, _COMPILE, _ALTERNATING),
    "compile-4": _ours(
        _ALL,
        "step 4: step 3, and a product of SGLang's compressor left out of the compiled part",
        {**_NO_OVERLAP, "LAB_COMPRESSOR": "1"},
        _COMPILE,
    ),
    "compile-0": _ours(_ALL, "what giving up the overlap alone costs", _NO_OVERLAP, (), _ALTERNATING),
    "stock-compile-3": _stock(
        "step 3 with SGLang's own kernels: dies in Inductor", {**SM120, **_NO_OVERLAP}, _COMPILE, _ALTERNATING
    ),
}
