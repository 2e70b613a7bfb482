"""What is replaced in which SGLang, with the reason for every default. Data: a row a fact, each read in that version's sources.

To add a version: unpack its wheel, run ``python -m gpuops_kernels.plugin --sources TREE --version NEAREST``, read what it prints as CHANGED, and
either add the fingerprint to the target (its meaning is the same) or a new engine to the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..swiglu import place


@dataclass(frozen=True)
class Target:
    """A function of the engine, and ours.

    Args:
        path: ``module:attribute`` of the engine, the attribute a function or ``Class.method``.
        replacement: ``module:attribute`` of ours, with the same signature; after the engine's own function as first argument when ``around``.
        fingerprints: of the sources that have been read (:func:`.sources.fingerprint`); any other is a change of meaning until somebody has looked.
        around: ours decides at each call whether the engine's own function serves it.
        heads: ours takes ``heads``, the rank's own number of attention heads: to 0.5.19, and later for FlashMLA, SGLang pads them to 64.
    """

    path: str
    replacement: str = ""
    fingerprints: tuple[str, ...] = ()
    around: bool = False
    heads: bool = False

    @property
    def module(self) -> str:
        """The dotted name of the module that defines it."""
        return self.path.partition(":")[0]

    @property
    def attribute(self) -> str:
        """Its name in that module."""
        return self.path.partition(":")[2]


@dataclass(frozen=True)
class Family:
    """A kernel family in one range of versions.

    Args:
        on: the default on the capabilities; a family is on only where the engine's own path is beaten.
        reason: why.
        capabilities: where the engine takes the path that is replaced; None is a machine without a card. On another card the family's switch can
            still put it in place.
        models: how the names of the model classes begin whose path is replaced; empty means every model. The default is DeepseekV4ForCausalLM
            and DeepseekV4ForCausalLMNextN.
        hiddens: the hidden sizes that its kernels are made for; empty means any.
    """

    on: bool
    reason: str
    targets: tuple[Target, ...]
    capabilities: frozenset[tuple[int, int] | None] = frozenset({(12, 0)})
    models: str = "DeepseekV4"
    hiddens: frozenset[int] = frozenset()

    @property
    def without_card(self) -> bool:
        """It replaces what the engine runs on a machine without a card, and nothing elsewhere."""
        return None in self.capabilities


@dataclass(frozen=True)
class Engine:
    """A range of SGLang versions, both ends included, with all releases between them read.

    Args:
        anchor: the method of the model's runner that captures CUDA graphs (and is called without any, too): after the load, before the first request.
    """

    first: str
    last: str
    anchor: Target
    families: Mapping[str, Family]


_SLOW_DECODE = "its own sm_120 decode gathers the cache again for each of 64 padded heads, without tensor cores"
_SLOW_INDEXER = "its own sm_120 indexer is torch in float32 over the captured maximum of the context"
_SLOW_MHC = "its own sm_120 mHC-pre is a float32 F.linear and some 15 elementwise kernels"
_FAST_DECODE = "FlashInfer's sm_120 decode serves here: tensor cores, split-K, native head count"
_FAST_INDEXER = "TileLang's indexer serves here, and its cost follows the actual context"

# mhc.op.HIDDENS, which mHC-post of the glue has, too: DeepSeek-V4-Flash has 4096; a model of another width keeps the engine's own.
_MHC_HIDDENS = frozenset({4096})

_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"

_ATTEND = "gpuops_kernels.mla_decode.op:flash_mla_with_kvcache_sm120"

# In 0.5.13 a rank's heads lie among those of all ranks, later they are the first ones.
_FIRST_DECODE = Target("sglang.srt.layers.attention.flash_mla_sm120:flash_mla_with_kvcache_sm120", _ATTEND, ("a93333322729eea0",))
_OLD_DECODE = Target(
    "sglang.srt.layers.attention.flash_mla_sm120:flash_mla_with_kvcache_sm120",
    _ATTEND,
    ("a93333322729eea0", "db883f9c5b4013fa"),
    heads=True,
)
_OLD_INDEXER = Target(
    "sglang.srt.layers.attention.dsv4.indexer:fp8_paged_mqa_logits_torch_sm120",
    "gpuops_kernels.indexer.op:fp8_paged_mqa_logits",
    ("7419ef2a79815ad9",),
)
_HC_PRE = Target(
    "sglang.srt.models.deepseek_v4:DeepseekV4DecoderLayer.hc_pre",
    "gpuops_kernels.mhc.adapters:hc_pre",
    ("503b5a85e9df1b20", "f7059a80061d120a", "59ac77583191427e", "dfde7401b3361efe"),
)
_DECODE = Target(
    "sglang.kernels.ops.attention.flash_mla_sm120:flash_mla_with_kvcache_sm120",
    _ATTEND,
    ("63f010ca4792e54d", "490d6b137df894fa"),
    heads=True,
)
_INDEXER = Target(
    "sglang.kernels.ops.attention.dsa.tilelang_kernel:tilelang_fp8_paged_mqa_logits",
    "gpuops_kernels.indexer.op:fp8_paged_mqa_logits",
    ("723bd31e279fee8f",),
)
_BOUNDARY = Target(
    "sglang.kernels.ops.layernorm.mhc:mhc_fused_post_pre",
    "gpuops_kernels.mhc.adapters:fused_post_pre",
    ("cf4984441dec965b", "cff34f45ea86ed8b", "8f16a2ae75c579be"),
    around=True,
)

# Each is one kernel in SGLang, too.
_KV_STORE = Target(
    "sglang.jit_kernel.dsv4.elementwise:fused_k_norm_rope_flashmla",
    "gpuops_kernels.glue.adapters:fused_k_norm_rope_flashmla",
    ("28fbf3153040f037",),
)
_POST = Target("sglang.srt.layers.mhc:mhc_post", "gpuops_kernels.glue.adapters:mhc_post", ("b8812b1a3fe9adc6",))

# The engine's CPU path without AMX (forward_cpu hands over to it): a family that shows the whole way of a kernel build where there is no GPU.
_SWIGLU = Family(
    False,
    "it is the engine's own computation in other words: it serves where it is asked for",
    (Target(place.PATH, "gpuops_kernels.swiglu.op:forward_native", place.FINGERPRINTS),),
    frozenset({None}),
    models="",
)

# The top-k is left to SGLang: in one run on an H200 its first one took half to four fifths of our time at every shape.
_SLOW_FALLBACKS = {
    "mla_decode": Family(True, _SLOW_DECODE, (_OLD_DECODE,)),
    "indexer": Family(True, _SLOW_INDEXER, (_OLD_INDEXER,)),
    "mhc": Family(True, _SLOW_MHC, (_HC_PRE,), hiddens=_MHC_HIDDENS),
    "glue": Family(
        False,
        "SGLang has one kernel for each of these here too, and no win is measured",
        (_KV_STORE, _POST),
        hiddens=_MHC_HIDDENS,
    ),
}

ENGINES = (
    Engine(
        "0.5.13",
        "0.5.13",
        Target(f"{_RUNNER}.init_device_graphs"),
        {**_SLOW_FALLBACKS, "mla_decode": Family(True, _SLOW_DECODE, (_FIRST_DECODE,))},
    ),
    # Its FlashInfer backend is the default on sm_120 since 0.5.15, and the FlashInfer that it pins does not have that kernel.
    Engine("0.5.14", "0.5.15.post1", Target(f"{_RUNNER}.init_cuda_graphs"), _SLOW_FALLBACKS),
    Engine(
        "0.5.16",
        "0.5.17",
        Target(f"{_RUNNER}.init_cuda_graphs"),
        {
            "mla_decode": Family(False, _FAST_DECODE, (_DECODE,)),
            "indexer": Family(False, _FAST_INDEXER, (_INDEXER,)),
            "mhc": Family(True, _SLOW_MHC, (_HC_PRE,), hiddens=_MHC_HIDDENS),
        },
    ),
    Engine(
        "0.5.18",
        "0.5.23",
        Target(f"{_RUNNER}.init_cuda_graphs"),
        {
            "mla_decode": Family(False, _FAST_DECODE, (_DECODE,)),
            "indexer": Family(False, _FAST_INDEXER, (_INDEXER,)),
            "mhc": Family(
                True,
                "above 32 tokens its own boundary is mHC-post and a GEMM of two blocks; up to 32, its fused kernel goes on serving",
                (_BOUNDARY,),
                hiddens=_MHC_HIDDENS,
            ),
            "swiglu": _SWIGLU,
        },
    ),
)


def engine(version: str) -> Engine | None:
    """The entry for an SGLang version; None when it is not in the table, which includes development and pre-release versions."""
    number = _parsed(version)
    if number is None:
        return None
    return next((each for each in ENGINES if _required(each.first) <= number <= _required(each.last)), None)


def known() -> str:
    """The versions of the table, in words."""
    return f"{ENGINES[0].first} to {ENGINES[-1].last}"


def _parsed(version: str) -> tuple[int, int, int, int] | None:
    # A local part (+cu130) names a build of the same sources.
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?(?:\+[A-Za-z0-9.]+)?", version)
    if found is None:
        return None
    major, minor, patch, post = (int(group or 0) for group in found.groups())
    return major, minor, patch, post


def _required(version: str) -> tuple[int, int, int, int]:
    number = _parsed(version)
    assert number is not None, version
    return number
