#!/usr/bin/env python3
"""Makes ``model/tokenizer.json``: bytes for what is asked, and a word for each id that may be answered.

Random weights answer with any of the 129,280 ids. A tokenizer that knows the first 258 of them makes nearly every answer the empty text: then the
first token of a stream is not to be seen, and no measurement of it can be believed. So the ids after the bytes are written as words, `` 1f8ff`` for
0x1f8ff. There are no merges: text is always read as bytes, and no prompt means anything else for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parent / "model"
SPECIAL = ("<bos>", "<eos>")


def alphabet() -> list[str]:
    """The characters that byte-level BPE writes for the bytes: the printable ones as they are, the others from U+0100 on (GPT-2's encoder.py)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [chr(256 + number) for number in range(256 - len(shown))]
    return [*map(chr, shown), *hidden]


def tokenizer(size: int) -> dict[str, Any]:
    """What Hugging Face's tokenizers reads, for a vocabulary of ``size``."""
    words = [*SPECIAL, *alphabet()]
    words += [f"Ġ{number:x}" for number in range(len(words), size)]
    level = {"type": "ByteLevel", "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {**level, "add_prefix_space": False, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [],
        },
    }


def text() -> str:
    """The file's text, for the model's own vocabulary."""
    size = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    return json.dumps(tokenizer(size), ensure_ascii=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    (MODEL / "tokenizer.json").write_text(text(), encoding="utf-8")
