"""Every way in which a stream can fail is rejected, on every path of our own client; the engine's clients are in tests/engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_server import KINDS
from measuring import measured, on

PATHS = ("native", "completions", "chat")

# What the rejection has to name, whatever else it names.
NAMED = {
    "error_first": "illegal memory access",
    "error_midway": "illegal memory access",
    "cut_first": "without its end mark",
    "cut_midway": "without its end mark",
    "early_end": "not 16 tokens long",
    "early_end_uncounted": "no token count",
    "overcounted": "the server generated 64",
    "chunked": "carr",
    "garbage": "nothing but '!'",
    "empty": "empty",
    "http_error": "HTTP 503",
    "cached": "prefix cache",
    "restarted": "not the one of the beginning",
    "aborted": "'abort'",
}


@pytest.mark.failure_mode("fast-because-broken")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_fault_is_rejected_and_the_fault_is_named(kind: str, path: str, tmp_path: Path) -> None:
    with on(tmp_path, kind) as target:
        block = measured(target, path)
    assert not block["valid"] and block["rejected"]
    assert NAMED[kind] in "; ".join(block["faults"])
    assert block["figures"] is None


@pytest.mark.parametrize("path", PATHS)
def test_a_clean_run_is_never_rejected(path: str, tmp_path: Path) -> None:
    with on(tmp_path) as target:
        blocks = [measured(target, path, seed=seed) for seed in range(5)]
    assert [block["faults"] for block in blocks] == [[]] * 5
