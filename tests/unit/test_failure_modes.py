"""``docs/failure-modes.md`` and the tests that prove it say the same: the page is held against the tests' own markers."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "failure-modes.md"

ROW = re.compile(r"^\| `(?P<id>[a-z0-9-]+)` \|(?P<cells>.*)\| (?P<proof>[^|]*) \|$")
UNTESTED = "untested: "


@functools.cache
def marked() -> dict[str, list[str]]:
    """Failure modes with the tests that are marked with them, ``file::test`` below ``tests/``, sorted; read, not imported."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for mode in (each for decorator in function.decorator_list for each in modes(decorator)):
                    found[mode].append(f"{path.relative_to(TESTS)}::{function.name}")
    return {mode: sorted(tests) for mode, tests in found.items()}


def modes(decorator: ast.expr) -> list[str]:
    """The arguments of a ``@pytest.mark.failure_mode``; nothing for other decorators."""
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.failure_mode":
        return []
    return [str(ast.literal_eval(argument)) for argument in decorator.args]


@functools.cache
def rows() -> dict[str, str]:
    """The page's failure modes with what stands as their proof."""
    matches = [match for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := ROW.match(line))]
    ids = [match["id"] for match in matches]
    assert len(set(ids)) == len(ids), "a failure mode has two rows"
    return {match["id"]: match["proof"].strip() for match in matches}


def proof(tests: list[str]) -> str:
    """The last cell of a row."""
    return "<br>".join(f"`{test}`" for test in tests)


def test_every_marked_failure_mode_has_a_row() -> None:
    assert marked().keys() <= rows().keys()


@pytest.mark.parametrize(("mode", "proved_by"), rows().items())
def test_a_row_names_the_tests_that_are_marked_with_it(mode: str, proved_by: str) -> None:
    tests = marked().get(mode, [])
    if tests:
        assert proved_by == proof(tests), f"write this into the row of {mode}: {proof(tests)}"
    else:
        assert proved_by.startswith(UNTESTED) and len(proved_by) > len(UNTESTED), (
            f"{mode} needs a marked test, or the reason why none"
        )


def test_the_page_is_no_empty_table() -> None:
    assert len(rows()) > 50
