"""What the answers of several servers say: pure functions over the results of ``compare.py run``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client import Answer, from_json

# How far a server may be from stock, as a multiple of how far stock is from itself when it computes the same answers in another batch (other GEMM
# and split shapes round otherwise); and at least so much, in nats, should stock be bitwise the same.
NOISE_FACTOR = 3.0
FLOOR_NATS = 0.005

_PLANTS = ("drop-split", "scale")
_OURS = ("ours", "ours-again", "with-glue", "only-mla_decode", "only-indexer", "only-mhc", "compile-0", "compile-2", "compile-3")
_THROUGHPUT_GOAL = {"64": 2.0}


@dataclass(frozen=True)
class Distance:
    """How far two servers' greedy answers are apart.

    Args:
        equal: prompts with the same tokens to the end.
        prompts: how many were asked.
        mean, worst: of |difference of logprob|, in nats, over the tokens that both rank among their most likely, at every position up to and with
            the first that differs: beyond it the contexts are different questions.
        positions: how many positions were compared.
    """

    equal: int
    prompts: int
    mean: float
    worst: float
    positions: int

    def __str__(self) -> str:
        return f"{self.equal}/{self.prompts} equal, mean {self.mean:.5f}, worst {self.worst:.4f} nats over {self.positions} positions"


@dataclass(frozen=True)
class Report:
    """Lines for people, data for machines, and whether every verdict is yes."""

    passed: bool
    lines: tuple[str, ...]
    data: Mapping[str, Any]


def distance(left: Sequence[Answer], right: Sequence[Answer]) -> Distance:
    """Compare two servers' answers to the same prompts.

    Raises:
        ValueError: not as many answers, or nothing in common to compare.
    """
    if len(left) != len(right):
        raise ValueError(f"{len(left)} answers against {len(right)}")
    gaps: list[float] = []
    positions = 0
    for one, other in zip(left, right, strict=True):
        for here, there, own, its in zip(one.top, other.top, one.tokens, other.tokens, strict=True):
            positions += 1
            gaps += [abs(here[token] - there[token]) for token in here.keys() & there.keys()]
            if own != its:
                break
    if not gaps:
        raise ValueError("the answers have no token in common")
    equal = sum(one.tokens == other.tokens for one, other in zip(left, right, strict=True))
    return Distance(equal, len(left), statistics.fmean(gaps), max(gaps), positions)


def judge(results: Mapping[str, Mapping[str, Any]]) -> Report:
    """Compare every case with ``stock``."""
    lines: list[str] = []
    verdicts: list[bool] = []
    data: dict[str, Any] = {}
    for name, result in results.items():
        if "died" in result:
            lines.append(f"{name}: DIED: {result['died']}")
    answers = {name: _answers(result) for name, result in results.items() if "one_by_one" in result}
    if "stock" in answers:
        bound, said = _bound(answers)
        lines += said
        data["bound_nats"] = bound
        for name in [each for each in (*_OURS, *_PLANTS, "stock-again", "hopper") if each in answers]:
            line, verdict, found = _correct(name, answers, bound)
            lines.append(line)
            verdicts += [verdict] if verdict is not None else []
            data[f"distance/{name}"] = found
    lines += _table(results, "tokens_per_s", "decode tokens/s")
    lines += _steps(results)
    gains, met = _gains(results)
    lines += gains
    verdicts += met
    return Report(all(verdicts) and bool(verdicts), tuple(lines), {**data, "verdicts": verdicts})


def _answers(result: Mapping[str, Any]) -> dict[str, list[Answer]]:
    return {kind: from_json(result[kind]) for kind in ("one_by_one", "together") if kind in result}


def _bound(answers: Mapping[str, Mapping[str, list[Answer]]]) -> tuple[float, list[str]]:
    noise = distance(answers["stock"]["one_by_one"], answers["stock"]["together"])
    bound = max(NOISE_FACTOR * noise.mean, FLOOR_NATS)
    return bound, [
        f"stock against itself, batch 1 against batch 32: {noise}",
        f"bound on the mean: {bound:.5f} nats = max({NOISE_FACTOR:g} x stock's own, {FLOOR_NATS:g})",
    ]


def _correct(
    name: str, answers: Mapping[str, Mapping[str, list[Answer]]], bound: float
) -> tuple[str, bool | None, dict[str, Any]]:
    found = {kind: distance(answers["stock"][kind], answers[name][kind]) for kind in answers["stock"]}
    worst = max(each.mean for each in found.values())
    verdict: bool | None = None
    word = "not judged"
    if name in _OURS:
        verdict = worst <= bound
        word = "within the bound" if verdict else "BEYOND THE BOUND"
    elif name in _PLANTS:
        verdict = all(each.mean > bound for each in found.values())
        word = "noticed" if verdict else "NOT NOTICED"
    text = "; ".join(f"{kind}: {each}" for kind, each in found.items())
    return f"{name} against stock: {word}. {text}", verdict, {kind: vars(each) for kind, each in found.items()}


def _table(results: Mapping[str, Mapping[str, Any]], key: str, title: str) -> list[str]:
    rows = {name: result[key] for name, result in results.items() if key in result}
    return [f"{title:<20}" + "".join(f"{'C=' + c:>10}" for c in ("1", "16", "64"))] * bool(rows) + [
        f"  {name:<18}" + "".join(f"{row[c]:>10,.1f}" for c in row) for name, row in rows.items()
    ]


def _steps(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"decode step, {name}, batch {batch}: {step['kernels']:.0f} kernels, {step['copies']:.0f} copies, {step['gpu_us']:.0f} us"
        for name, result in results.items()
        for batch, step in result.get("step", {}).items()
    ]


def _gains(results: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[bool]]:
    """Ours against stock, each the median of its launches."""
    groups = {
        kind: [results[name]["tokens_per_s"] for name in (kind, f"{kind}-again") if "tokens_per_s" in results.get(name, {})]
        for kind in ("stock", "ours")
    }
    if not all(groups.values()):
        return [], []
    lines, met = [], []
    for c in groups["stock"][0]:
        stock, ours = (statistics.median(run[c] for run in groups[kind]) for kind in ("stock", "ours"))
        goal = _THROUGHPUT_GOAL.get(c, 1.0)
        met.append(ours >= goal * stock)
        lines.append(f"C={c}: {ours / stock:.2f}x stock, goal {goal:g}x: {'met' if met[-1] else 'MISSED'}")
    return lines, met
