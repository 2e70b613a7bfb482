"""May a run be believed? A pure judgement over its records: everything that is wrong with it, in words.

Load generators take a stream that broke half-way for a finished one, or the length that was asked for as the length that came. A kernel that crashes
then looks twice as fast. So a run is held against what the server itself counted, and against what was asked; a number is never a reason to reject.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

from . import text_sanity
from .counters import Counters
from .load_run import Cell, Run

# How far the client's and the server's token counts may differ: requests that are aborted at the end, and nothing else. And how much of a cold cell's
# prompts may come from the prefix cache.
TOLERANCE = 0.01

# Tokens a chunk above which the gaps between chunks are not gaps between tokens: a chunk now and then carries two when the host is busy.
CROWDED = 1.5


@dataclass(frozen=True)
class Canary:
    """One request outside the run, answered in one piece: the server's own word for how an answer ends. ``error`` is empty without one."""

    text: str
    tokens: Any
    finish: Any
    error: str = ""


@dataclass(frozen=True)
class Witness:
    """What the server was before or after the run: ``identity`` is its process and arguments, ``counters`` None when it publishes none."""

    identity: Dict[str, Any]
    counters: Optional[Counters]
    canary: Canary


@dataclass(frozen=True)
class Block:
    """A run with what is needed to judge it. ``one_token_chunks``: no chunk may carry several tokens (no speculation, no stream interval)."""

    cell: Cell
    run: Run
    before: Witness
    after: Witness
    one_token_chunks: bool = True
    finish_expected: str = "length"
    canary_tokens: int = 16


def faults(block: Block) -> List[str]:
    """Every reason not to believe the run; [] for a valid one."""
    if block.run.failure:
        return [block.run.failure]
    found: List[str] = []
    for judge in _JUDGES:
        found += judge(block)
    return found


def _complete(block: Block) -> List[str]:
    run, wanted = block.run, block.cell.requests
    found = []
    if run.completed != wanted or len(run.requests) != wanted:
        found.append(f"{run.completed} of {wanted} requests completed")
    errors = [request.error for request in run.requests if request.error]
    if errors:
        found.append(f"{len(errors)} requests failed, the first: {_short(errors[0])}")
    return found


def _times(block: Block) -> List[str]:
    run = block.run
    found = []
    instant = sum(request.ttft <= 0 for request in run.requests)
    if instant:
        found.append(f"{instant} requests have no first token (TTFT 0)")
    if run.duration_s <= 0:
        found.append("the run has no duration")
    return found


def _lengths(block: Block) -> List[str]:
    wanted = block.cell.output_tokens
    wrong = [request.tokens for request in block.run.requests if request.tokens != wanted]
    return [f"{len(wrong)} answers are not {wanted} tokens long, the first has {wrong[0]}"] if wrong else []


def _finishes(block: Block) -> List[str]:
    told = [request.finish for request in block.run.requests if request.finish is not None and not request.error]
    odd = [finish for finish in told if finish != block.finish_expected]
    return [f"{len(odd)} answers ended by {odd[0]!r} instead of {block.finish_expected!r}"] if odd else []


def _counted(block: Block) -> List[str]:
    before, after = block.before.counters, block.after.counters
    if before is None or after is None:
        return ["the server publishes no token counters (/metrics), so nothing confirms the client's"]
    found = []
    generated = after.generated - before.generated
    told = block.run.tokens
    if abs(generated - told) > TOLERANCE * told:
        found.append(f"the client counts {told} tokens, the server generated {generated:.0f}")
    if after.aborted > before.aborted:
        found.append(f"the server aborted {after.aborted - before.aborted:.0f} requests")
    cached = after.cached - before.cached
    # Random prompts may begin alike: of 256, two do in a fifth of all runs (a vocabulary of 129,280), and two may be wholly equal, as the engine's
    # client makes them (number i counts up from a random token plus i).
    if block.cell.cold and cached > TOLERANCE * block.cell.input_tokens * block.cell.requests:
        found.append(f"{cached:.0f} prompt tokens came from the prefix cache in a cold cell")
    return found


def _same_server(block: Block) -> List[str]:
    before, after = block.before.identity, block.after.identity
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    if not changed:
        return []
    key = changed[0]
    return [f"the server is not the one of the beginning: {key} was {before.get(key)!r}, is {after.get(key)!r}"]


def _chunks(block: Block) -> List[str]:
    """Several tokens in a chunk where there should be one: the first chunk is not the first token, and gaps are not between tokens."""
    answers = [request for request in block.run.requests if request.tokens > 1]
    if not block.one_token_chunks or not answers:
        return []
    if block.run.per_token:
        late = [request.tokens - len(request.gaps) for request in answers if request.tokens - len(request.gaps) > 1]
        if 2 * len(late) > len(answers):
            return [f"first chunks carry {late[0]} tokens, so TTFT is not that of the first token"]
        return []
    tokens, chunks = sum(request.tokens for request in answers), sum(len(request.gaps) + 1 for request in answers)
    return (
        [f"a chunk carries {tokens / chunks:.1f} tokens, so the gaps are not between tokens"] if tokens > CROWDED * chunks else []
    )


def _texts(block: Block) -> List[str]:
    texts = [request.text for request in block.run.requests if not request.error]
    wrong = text_sanity.all_the_same(texts)
    return [wrong] if wrong and block.cell.output_tokens > 1 else []


def _canaries(block: Block) -> List[str]:
    found = []
    for when, witness in (("before", block.before), ("after", block.after)):
        complaint = _canary(witness.canary, block)
        if complaint:
            found.append(f"{when} the run, a question of our own: {complaint}")
    return found


def _canary(canary: Canary, block: Block) -> str:
    if canary.error:
        return canary.error
    if canary.finish != block.finish_expected:
        return f"the answer ended by {canary.finish!r} instead of {block.finish_expected!r}"
    if canary.tokens != block.canary_tokens:
        return f"{canary.tokens!r} tokens instead of {block.canary_tokens}"
    return text_sanity.complaint(canary.text)


def _short(text: str) -> str:
    line = text.strip().splitlines()[-1] if text.strip() else ""
    return line if len(line) <= 200 else f"{line[:200]}..."


_JUDGES: "tuple[Callable[[Block], List[str]], ...]" = (
    _complete,
    _times,
    _lengths,
    _finishes,
    _counted,
    _same_server,
    _chunks,
    _texts,
    _canaries,
)
