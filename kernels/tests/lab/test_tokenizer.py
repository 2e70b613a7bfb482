"""The lab's tokenizer has a word for every id that random weights may answer with."""

import importlib.util
import json
from pathlib import Path

LAB = Path(__file__).parents[2] / "lab"


def made():
    spec = importlib.util.spec_from_file_location("lab_tokenizer", LAB / "tokenizer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_what_the_script_writes():
    assert (LAB / "model/tokenizer.json").read_text(encoding="utf-8") == made().text(), "python kernels/lab/tokenizer.py"


def test_every_id_of_the_models_vocabulary_is_a_word_of_its_own():
    size = json.loads((LAB / "model/config.json").read_text(encoding="utf-8"))["vocab_size"]
    words = made().tokenizer(size)["model"]["vocab"]
    assert sorted(words.values()) == list(range(size))


def test_no_word_is_ever_read_from_a_text():
    """Without merges a text is its bytes, so that a prompt has the same ids whatever the vocabulary."""
    model = made().tokenizer(300)["model"]
    assert model["merges"] == [] and model["ignore_merges"] is False
    assert len(set(made().alphabet())) == 256
