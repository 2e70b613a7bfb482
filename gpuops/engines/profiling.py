"""What is known of an engine's profiler, and of the kernels that it runs: data, one row a fact, as in :mod:`gpuops.engines.facts`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent / "categories"

UNCLASSIFIED = "unclassified"
COPIES = "copies"


@dataclass(frozen=True)
class Rule:
    """Names that hold ``pattern`` belong to ``category``; the first rule that matches wins."""

    category: str
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Categories:
    """The categories of an engine's work.

    Attributes:
        titles: what people call them, in the order in which they are shown.
        gpu, cpu: the rules for kernels, and for operators of a trace that holds no kernels.
    """

    titles: dict[str, str]
    gpu: tuple[Rule, ...]
    cpu: tuple[Rule, ...]

    def of(self, name: str, *, cpu: bool = False) -> str:
        """The category of a kernel (or operator) by its name; :data:`UNCLASSIFIED` when no rule knows it."""
        for rule in self.cpu if cpu else self.gpu:
            if rule.pattern.search(name):
                return rule.category
        return UNCLASSIFIED


@cache
def categories(engine: str = "sglang") -> Categories:
    """The categories of an engine. Case is of no matter: the same kernel is CamelCase in one library and snake_case in the next."""
    data = _load(engine)
    rules = {
        kind: tuple(Rule(row["category"], re.compile(row["pattern"], re.IGNORECASE)) for row in data[kind])
        for kind in ("gpu", "cpu")
    }
    titles = {row["name"]: row["title"] for row in data["categories"]}
    return Categories({**titles, UNCLASSIFIED: UNCLASSIFIED}, rules["gpu"], rules["cpu"])


def profiler_words(engine: str = "sglang") -> dict[str, Any]:
    """The agent's ``profiler`` argument, plain JSON.

    ::

        start, stop     HTTP paths (POST)
        body            of the start; @{folder}, @{steps} (a number) and @{activities} (a list) are replaced
        traces          the pattern of the files that it writes, one a rank
        rank            what names the rank in a file's name
        sampling        sampling parameters of the load, beside those of ``load_words()["ids"]``
        index, tokens   where an event of a stream of several answers says which one it is of, and how many tokens that has
    """
    words: dict[str, Any] = json.loads(json.dumps(_load(engine)["profiler"]))
    return {key: value for key, value in words.items() if not key.endswith("_source")}


@cache
def _load(engine: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_HERE / f"{engine}.json").read_text(encoding="utf-8"))
    return data
