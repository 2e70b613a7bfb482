"""Correctness probes: one question at a time, and the judgement of its answer.

Greedy answers of SGLang are equal from run to run only when nothing else is in the batch, so probes are never sent in parallel.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List

from .server import Generation, Server

REQUIRED = "required"


def run(server: Server, probe: Dict[str, Any], timeout: float) -> Dict[str, Any]:
    """Put one probe to the server. ``timeout`` in seconds.

    Returns:
        ``{name, gate, question, answer, expectation, passed, error}``: the evidence, as it is stored and shown.
    """
    chat = "ask" in probe
    question = probe["ask"] if chat else probe["prompt"]
    put = server.chat if chat else server.generate
    answer = put(question, probe["max_tokens"], timeout)
    fingerprint = "output_ids" in probe["expect"]
    return {
        "name": probe["name"],
        "gate": probe["gate"],
        "question": question,
        "answer": str(answer.output_ids) if fingerprint and answer.ok else answer.text,
        "expectation": describe(probe["expect"]),
        "passed": answer.ok and fulfils(answer, probe["expect"]),
        "error": answer.error,
        "timed_out": answer.timed_out,
    }


def fulfils(answer: Generation, expect: Dict[str, Any]) -> bool:
    """Whether an answer is what the probe expects: one of contains, regex, equals, output_ids."""
    if "output_ids" in expect:
        return bool(answer.output_ids == expect["output_ids"])
    fold = expect.get("ignore_case", False)
    text = answer.text.strip()
    if "regex" in expect:
        return re.search(expect["regex"], text, re.IGNORECASE if fold else 0) is not None
    wanted = expect["contains"] if "contains" in expect else expect["equals"].strip()
    if fold:
        text, wanted = text.casefold(), wanted.casefold()
    return bool(wanted in text if "contains" in expect else text == wanted)


def describe(expect: Dict[str, Any]) -> str:
    """The expectation in words: ``contains 'Paris' (any case)``."""
    kind = next(key for key in ("contains", "regex", "equals", "output_ids") if key in expect)
    case = " (any case)" if expect.get("ignore_case") else ""
    return f"{kind} {expect[kind]!r}{case}"


def required(asked: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The probes whose failure fails the candidate."""
    return [probe for probe in asked if probe["gate"] == REQUIRED]


def failed(results: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The results that fail the candidate: required and not passed."""
    return [result for result in results if result["gate"] == REQUIRED and not result["passed"]]
