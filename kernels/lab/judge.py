"""What the answers of several servers say: pure functions over the results of ``compare.py run``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client import Answer, from_json

# How far a server may be from stock in decode, as a multiple of how far stock is from itself; and at least so much, in nats, should stock be bitwise
# the same. Twice: ours rounds at other places, as stock does in another batch, and what is wrong is to be well beyond.
NOISE_FACTOR = 2.0
FLOOR_NATS = 0.005

# The first prompts count as the 32 that have to be equal (client.LENGTHS).
EQUAL_OF = 32

# What calc_diff (half the squared relative error) may be between stock and ours on the same inputs, at the worst call. Both round their results to
# bf16, 1.1e-3 to 1.7e-3 of a value each, and a decode's weights and values once more: 5e-5 is a relative error of 1%. The indexer's products of e4m3
# are summed in fp32, on a tensor core with some bits fewer. The mixes are fp32 throughout.
SHADOW_BOUNDS = {
    "mla_decode.out": 5e-5,
    "indexer.logits": 1e-5,
    "mhc.input": 2e-5,
    "mhc.post": 1e-7,
    "mhc.comb": 1e-7,
}
# How far beyond that bound a planted error has to be, at its median call, in at least one of its family's results.
SHADOW_FACTOR = 100.0

_PLANTS = ("drop-split", "scale")
_OURS = (
    "ours",
    "ours-again",
    "with-glue",
    "only-mla_decode",
    "only-indexer",
    "only-mhc",
    "compile-0",
    "compile-2",
    "compile-3",
    "compile-4",
)
_OTHERS = ("stock-again", "hopper")
# Whose death fails the report. That a step of torch.compile dies is a finding, and told as one.
_HAVE_TO_LIVE = frozenset({"stock", "shadow", *_OURS, *_PLANTS})
_COMPILED = ("compile-2", "compile-3", "compile-4", "stock-compile-3")
_THROUGHPUT_GOAL = {"64": 2.0}


@dataclass(frozen=True)
class Distance:
    """How far two servers' greedy answers are apart.

    Args:
        equal: prompts with the same tokens to the end, of the first EQUAL_OF.
        prompts: how many of those were asked.
        mean, median: over positions of decode, from the second token on, of the mean |difference of logprob|, in nats, over the tokens that both
            rank among their most likely. Up to and with the first token that differs: beyond it the contexts are different questions.
        worst: the largest of those differences.
        positions: how many positions of decode were compared.
        prefill: the mean at the first token, which prefill alone makes.
    """

    equal: int
    prompts: int
    mean: float
    median: float
    worst: float
    positions: int
    prefill: float

    def __str__(self) -> str:
        return (
            f"{self.equal}/{self.prompts} equal, mean {self.mean:.4f}, median {self.median:.4f}, worst {self.worst:.3f} nats "
            f"over {self.positions} positions (prefill {self.prefill:.4f})"
        )


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
    prefill: list[float] = []
    decode: list[float] = []
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        for position, (here, there, own, its) in enumerate(zip(one.top, other.top, one.tokens, other.tokens, strict=True)):
            gaps = [abs(here[token] - there[token]) for token in here.keys() & there.keys()]
            if gaps:
                (decode if position else prefill).append(statistics.fmean(gaps))
                worst = max(worst, max(gaps) if position else 0.0)
            if own != its:
                break
    if not decode:
        raise ValueError("the answers have no token of decode in common")
    asked = list(zip(left, right, strict=True))[:EQUAL_OF]
    equal = sum(one.tokens == other.tokens for one, other in asked)
    first = statistics.fmean(prefill) if prefill else float("nan")
    return Distance(equal, len(asked), statistics.fmean(decode), statistics.median(decode), worst, len(decode), first)


def judge(results: Mapping[str, Mapping[str, Any]]) -> Report:
    """Compare every case with ``stock``."""
    lines: list[str] = []
    verdicts: list[bool] = []
    data: dict[str, Any] = {}
    for name, result in results.items():
        if "died" in result:
            lines.append(f"{name}: DIED: {result['died']}")
            verdicts += [False] * (name in _HAVE_TO_LIVE and name not in _COMPILED)
    if "shadow" in results.get("shadow", {}):
        said, met = _shadow(results["shadow"]["shadow"])
        lines += said
        verdicts += met
    answers = {name: _answers(result) for name, result in results.items() if {"one_by_one", "together"} <= result.keys()}
    correct: dict[str, bool | None] = {}
    if "stock" in answers:
        bound, said = _bound(answers)
        lines += said
        data["bound_nats"] = bound
        for name in [each for each in (*_OURS, *_PLANTS, *_OTHERS) if each in answers]:
            line, correct[name], found = _correct(name, answers, bound)
            lines.append(line)
            data[f"distance/{name}"] = found
        if not any(correct.get(name) is not None for name in _OURS):
            lines.append("ours against stock: NOT COMPARED, no server with the pack has answered")
            verdicts.append(False)
    verdicts += [verdict for verdict in correct.values() if verdict is not None]
    lines += _table(results, "tokens_per_s", "decode tokens/s")
    lines += _steps(results)
    gains, met = _gains(results)
    lines += gains
    verdicts += met
    lines += _compiled(results, correct)
    return Report(all(verdicts) and bool(verdicts), tuple(lines), {**data, "verdicts": verdicts})


def _answers(result: Mapping[str, Any]) -> dict[str, list[Answer]]:
    return {kind: from_json(result[kind]) for kind in ("one_by_one", "together")}


def _shadow(seen: Mapping[str, Mapping[str, Mapping[str, float]]]) -> tuple[list[str], list[bool]]:
    """Ours within its bound at every call; each planted error far beyond it."""
    lines, verdicts = [], []
    excess: dict[str, float] = {}
    for key, bound in SHADOW_BOUNDS.items():
        if key not in seen:
            lines.append(f"shadow, {key}: NOT COMPARED, the engine never called it")
            verdicts.append(False)
            continue
        right = seen[key]["right"]
        verdicts.append(right["worst"] <= bound)
        word = "within the bound" if verdicts[-1] else "BEYOND THE BOUND"
        lines.append(
            f"shadow, {key}: {word} {bound:.0e}: calc_diff worst {right['worst']:.1e}, median {right['median']:.1e}, "
            f"largest difference {right['largest']:.1e} of the largest value, over {right['calls']:.0f} calls"
        )
        for plant, planted in seen[key].items():
            if plant != "right":
                name = f"{key.partition('.')[0]} with {plant}"
                excess[name] = max(excess.get(name, 0.0), planted["median"] / bound)
    for name, factor in excess.items():
        verdicts.append(factor >= SHADOW_FACTOR)
        lines.append(
            f"shadow, {name}: {'noticed' if verdicts[-1] else 'NOT NOTICED'}, {factor:,.0f} times the bound at the median call"
        )
    return lines, verdicts


def _bound(answers: Mapping[str, Mapping[str, list[Answer]]]) -> tuple[float, list[str]]:
    stock = answers["stock"]
    noises = {"stock alone against stock together": distance(stock["one_by_one"], stock["together"])}
    if "stock-again" in answers:
        for kind, words in (("one_by_one", "alone"), ("together", "together")):
            noises[f"stock against a second launch, {words}"] = distance(stock[kind], answers["stock-again"][kind])
    bound = max(NOISE_FACTOR * max(each.mean for each in noises.values()), FLOOR_NATS)
    return bound, [
        *(f"{name}: {noise}" for name, noise in noises.items()),
        f"bound on the mean: {bound:.4f} nats = max({NOISE_FACTOR:g} x the largest of these, {FLOOR_NATS:g})",
    ]


def _correct(
    name: str, answers: Mapping[str, Mapping[str, list[Answer]]], bound: float
) -> tuple[str, bool | None, dict[str, Any]]:
    found = {kind: distance(answers["stock"][kind], answers[name][kind]) for kind in answers["stock"]}
    verdict: bool | None = None
    word = "not judged"
    if name in _OURS:
        verdict = all(each.mean <= bound for each in found.values())
        word = "within the bound" if verdict else "BEYOND THE BOUND"
    elif name in _PLANTS:
        verdict = all(each.mean > bound for each in found.values())
        word = "noticed" if verdict else "NOT NOTICED"
    text = "; ".join(f"{kind}: {each.mean / bound:.2f} of the bound, {each}" for kind, each in found.items())
    return f"{name} against stock: {word}. {text}", verdict, {kind: vars(each) for kind, each in found.items()}


def _compiled(results: Mapping[str, Mapping[str, Any]], correct: Mapping[str, bool | None]) -> list[str]:
    """The steps of torch.compile, each in one line: does it capture and serve, is it right, is it faster?"""
    base = results.get("ours", {}).get("tokens_per_s", {})
    lines = []
    for name in [each for each in _COMPILED if each in results]:
        result = results[name]
        if "ready_s" not in result:
            lines.append(f"{name}: captures: no")
            continue
        right = {True: "yes", False: "NO", None: "not judged"}[correct.get(name)]
        rates = result.get("tokens_per_s", {})
        faster = ", ".join(f"C={c} {rates[c] / base[c]:.2f}x ours" for c in rates if base.get(c)) or "not measured"
        lines.append(
            f"{name}: captures: yes, {result['ready_s']:.0f} s; serves: {'no' if 'died' in result else 'yes'}; right: {right}; faster: {faster}"
        )
    return lines


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
