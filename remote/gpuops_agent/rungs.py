"""The rungs of the ladder: nine questions about a server, each harder than the one before."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Callable, Dict, List, Tuple

from . import acceptance, evaluations, likeness, needles, probes, text_sanity
from .asking import RIGHT, WRONG, Asked, Finding, skipped
from .server import Generation, at

Section = Dict[str, Any]
"""A rung's part of the playbook's ``ladder``."""

Emit = Callable[..., None]

# What the long prompt of the mixed rung is ahead of the short question, in seconds: it is on its way, and far from read. (The engine's gauges tell
# of a batch only when it is done.)
HEAD_START_S = 0.2

# Tokens of an answer to a needle: the number and little more.
_KEY_TOKENS = 12
_SOAK_TOKENS = 8


def identity(asked: Asked, section: Section, emit: Emit) -> Finding:
    """Rung 1: the server names the release's model, version and port."""
    info = asked.server.info(asked.timeout).value
    question = f"GET {asked.server.engine['endpoints']['info'][0]}"
    wanted = f"model {asked.server.model}, version {asked.server.engine['version']}, port {asked.server.port}"
    if info is None:
        return Finding(WRONG, question, "no answer in these words", wanted)
    wrong = asked.server.mismatch(info)
    return Finding(WRONG if wrong else RIGHT, question, wrong or "as expected", wanted)


def answers(asked: Asked, section: Section, emit: Emit) -> Finding:
    """Rung 2: the probes, greedy, one at a time; and their answers are text."""
    if not asked.probes:
        return skipped("the release has no probes")
    bad: List[Tuple[Dict[str, Any], str]] = []
    passed = 0
    for probe in asked.probes:
        began = time.monotonic()
        result = {**probes.run(asked.server, probe, asked.timeout), "seconds": 0.0}
        result["seconds"] = round(time.monotonic() - began, 3)
        fingerprint = "output_ids" in probe["expect"]
        complaint = "" if result["error"] or fingerprint else text_sanity.complaint(result["answer"], section.get("script"))
        if complaint:
            result.update(passed=False, error=complaint)
        emit("probe", **result)
        passed += bool(result["passed"])
        if complaint or (not result["passed"] and result["gate"] == probes.REQUIRED):
            bad.append((result, complaint or result["error"] or result["answer"]))
    detail = f"{passed} of {len(asked.probes)} probes passed"
    if bad:
        result, came = bad[0]
        return Finding(WRONG, result["question"], came, result["expectation"], detail)
    return Finding(RIGHT, f"{len(asked.probes)} probes", detail, "every required one passes, and answers are text")


def arithmetic(asked: Asked, section: Section, emit: Emit) -> Finding:
    """Rung 3: sums in one batch."""
    sums = [(text.rpartition("=")[0].strip(), text.rpartition("=")[2].strip()) for text in section["sums"]]
    put = asked.server.chat if section["chat"] else asked.server.generate

    def one(pair: Tuple[str, str]) -> Generation:
        return put(section["template"].replace("{sum}", pair[0]), section["max_tokens"], asked.timeout)

    with ThreadPoolExecutor(section["concurrency"]) as pool:
        came = list(pool.map(one, sums))
    missed = [at_ for at_, (_, result) in enumerate(sums) if not _says(came[at_].text, result)]
    share = 1 - len(missed) / len(sums)
    answer = f"{len(sums) - len(missed)} of {len(sums)} right"
    question = f"{len(sums)} sums, {section['concurrency']} at a time"
    detail = ""
    if missed:
        first = missed[0]
        detail = f"{sums[first][0]} = {sums[first][1]}: {_shown(came[first])}"
    verdict = RIGHT if share >= section["least"] else WRONG
    return Finding(verdict, question, answer, f"at least {section['least']:.0%}", detail)


def find_needles(asked: Asked, section: Section, emit: Emit) -> Finding:
    """Rung 4: needles at several lengths and depths, one at a time."""
    lengths, left_out = _fitting(asked, section["lengths"])
    if not lengths:
        return skipped(left_out)
    per_sentence = needles.tokens_per_sentence(asked)
    found, missed = 0, []
    for length in lengths:
        for depth in section["depths"]:
            needle = needles.make(length, depth, per_sentence, seed=length + round(100 * depth))
            came = asked.server.generate(needle.prompt, _KEY_TOKENS, asked.timeout)
            if _says(came.text, needle.key):
                found += 1
            else:
                missed.append(f"{length} tokens at {depth:.0%}: {_shown(came)} instead of {needle.key}")
    put = len(lengths) * len(section["depths"])
    verdict = RIGHT if found >= section["least"] * put else WRONG
    question = f"a number hidden in texts of {', '.join(map(str, lengths))} tokens"
    return Finding(
        verdict,
        question,
        f"{found} of {put} found",
        f"at least {section['least']:.0%}",
        "; ".join([*missed[:3], left_out]).strip("; "),
    )


def mixed(asked: Asked, section: Section, emit: Emit) -> Finding:
    """Rung 5: a short question while a long prompt is read."""
    short = next((probe for probe in probes.required(asked.probes) if "output_ids" not in probe["expect"]), None)
    lengths, left_out = _fitting(asked, [section["length"]])
    if short is None or not lengths:
        return skipped(left_out or "the release has no required probe")
    needle = needles.make(lengths[0], 0.5, needles.tokens_per_sentence(asked), seed=lengths[0] + 7)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(asked.server.generate, needle.prompt, _KEY_TOKENS, asked.timeout)
        wait([long], HEAD_START_S)
        overlapped = not long.done()
        result = probes.run(asked.server, short, asked.timeout)
        came = long.result()
    question = f"{short['name']}, while a prompt of {lengths[0]} tokens is read"
    wanted = f"{result['expectation']}; and {needle.key}"
    right = result["passed"] and _says(came.text, needle.key)
    detail = "" if overlapped else "the long prompt was answered before the short question was put"
    return Finding(
        RIGHT if right else WRONG, question, f"{result['error'] or result['answer']!r}; and {_shown(came)}", wanted, detail
    )


def tools(asked: Asked, section: Section, emit: Emit) -> Finding:
    """Rung 6: a tool call whose arguments are JSON with the tool's keys."""
    words = asked.words["tools"]
    answer = asked.chat(words["body"])
    question = words["body"]["messages"][-1]["content"]
    wanted = f"a call of {words['name']} with {', '.join(words['required'])}"
    refused = asked.refused(answer)
    if refused:
        return Finding(WRONG, question, refused, wanted)
    call = at(answer.json(), words["call"])
    try:
        arguments = json.loads(call["arguments"])
        right = call["name"] == words["name"] and all(
            isinstance(arguments[key], str) and arguments[key] for key in words["required"]
        )
        return Finding(RIGHT if right else WRONG, question, f"{call['name']}({json.dumps(arguments)})", wanted)
    except (TypeError, KeyError, ValueError):
        return Finding(WRONG, question, asked.server.redact(answer.body.decode("utf-8", "replace"))[:300], wanted)


def soak(asked: Asked, section: Section, emit: Emit) -> Finding:
    """Rung 8: many short requests; and, where speculation is on, whether drafts are accepted."""
    number = section["requests"]

    def one(which: int) -> str:
        came = asked.server.generate(f"Note {which}: the capital of France is", _SOAK_TOKENS, asked.timeout)
        return came.error or ("" if came.text.strip() else "the answer is empty")

    with ThreadPoolExecutor(section["concurrency"]) as pool:
        wrong = [complaint for complaint in pool.map(one, range(number)) if complaint]
    question, wanted = f"{number} short requests, {section['concurrency']} at a time", f"{number} answered"
    answer, detail = f"{number - len(wrong)} answered", wrong[0] if wrong else ""
    accepted = None if wrong else acceptance.measure(asked)
    if accepted is None:
        return Finding(WRONG if wrong else RIGHT, question, answer, wanted, detail)
    # Releases that are older than this question have no key for it.
    least = section.get("accept_length_above", 1.0)
    few = accepted.length is not None and accepted.length <= least
    wanted = f"{wanted}, more than {least:g} tokens a step"
    return Finding(WRONG if few or accepted.error else RIGHT, question, answer, wanted, str(accepted))


RUNGS: "Tuple[Tuple[str, Callable[[Asked, Section, Emit], Finding]], ...]" = (
    ("identity", identity),
    ("answers", answers),
    ("arithmetic", arithmetic),
    ("needles", find_needles),
    ("mixed", mixed),
    ("tools", tools),
    ("logprobs", likeness.compare),
    ("soak", soak),
    ("evaluations", evaluations.evaluate),
)
"""By level, from 1 on: the rung's key in the playbook, and its question."""


def _says(text: str, number: str) -> bool:
    """Whether a number stands in a text by itself; thousands may be separated."""
    return re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", re.sub(r"(?<=\d),(?=\d{3})", "", text)) is not None


def _shown(came: Generation) -> str:
    return came.error or repr(came.text.strip()[:80])


def _fitting(asked: Asked, lengths: List[int]) -> Tuple[List[int], str]:
    """The lengths that the server takes, and which it does not, in words. Some room is kept for the question and the answer."""
    most = at(asked.server.info(asked.timeout).value, asked.words["longest_prompt"])
    if not isinstance(most, int):
        return list(lengths), ""
    long = [length for length in lengths if length > 0.9 * most]
    said = f"left out, longer than the server takes ({most} tokens): {', '.join(map(str, long))}" if long else ""
    return [length for length in lengths if length not in long], said
