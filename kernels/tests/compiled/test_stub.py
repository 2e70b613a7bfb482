"""What happens to a launch that Triton does not compile."""

from __future__ import annotations

from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from gpuops_kernels.gate import stub
from gpuops_kernels.glue import launches


@pytest.mark.parametrize(
    ("failures", "words", "compiles"),
    [(1, "PassManager::run failed", True), (2, "PassManager::run failed", False), (1, "out of resources", False)],
)
def test_passes_that_fail_once_are_run_again_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch, failures: int, words: str, compiles: bool
) -> None:
    tried = []
    original = JITFunction.run

    def run(*arguments: Any, **options: Any) -> Any:
        tried.append(1)
        if len(tried) <= failures:
            raise RuntimeError(words)
        return original(*arguments, **options)

    monkeypatch.setattr(JITFunction, "run", run)
    with stub.compiling((12, 0)) as binaries:
        if compiles:
            launches._streams_update(1)
            assert len(binaries) == 1
        else:
            with pytest.raises(stub.NotCompiledError, match=f"does not compile: RuntimeError: {words}"):
                launches._streams_update(1)
