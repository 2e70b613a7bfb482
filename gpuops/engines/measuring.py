"""What is known of an engine for measuring it: its load generators, its counters, the signs of a compile under load.

Unlike :mod:`gpuops.engines.facts` this goes with the question and not with the release: which client a runtime has is found by looking.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from gpuops.errors import Exit, GpuopsError

_HERE = Path(__file__).parent / "load"


@cache
def load_words(engine: str = "sglang") -> dict[str, Any]:
    """The agent's ``load`` argument, plain JSON.

    ::

        metrics, flush        HTTP paths: the counters; emptying the prefix cache (POST)
        counters              {generated|prompt|cached|aborted|running|queued: metric}
        clients               [{name, file, extension | module, tokens, text}], the preferred one first: a client is there when ``file`` (a pattern)
                              is in the runtime's packages; ``tokens`` and ``text`` are its options for prompts of either kind
        paths                 {native|completions|chat: the client's word for it}
        per_token             paths whose gaps the client divides among the tokens of a chunk
        argv                  options of every client, with @{...}
        closed, open          further ones, for a closed loop and for an open one
        key_variable          the environment variable by which it takes an API key
        ids                   the body of a native request for exactly @{max_tokens} tokens after @{ids}
        canary                {body, text, tokens, finish, expected}: one native request, and where its answer has what
        prompt_tokens         where a native answer has the length of its prompt
        longest_prompt        where the server's info has the most tokens of a prompt
        acceptance            {when, body, length}: where the server's info says that it speculates; a native request, and where its answer says
                              how many tokens a step brought
        tools                 {body, call, name, required}: a chat that must call a tool, and where its answer has the call
        logprobs              {body, tokens, top}: a native request for the log probabilities of a text, and where its answer has them
        continuation          {body, tokens, top}: a native request for a greedy continuation of @{text} by @{tokens} tokens with the likeliest
                              tokens of each place, and where its answer has them
        changing              keys of the server's info that are not arguments
        single_token_chunks   keys of the server's info: a chunk may carry several tokens where one of ``unless`` is set
        jit                   {programs: [...], lines: [regex]}: compilers, and what the log says of a compile

    Raises:
        GpuopsError: nothing is known of this engine.
    """
    path = _HERE / f"{engine}.json"
    if not path.is_file():
        raise GpuopsError(
            f"gpuops does not know how to measure the engine {engine!r}",
            evidence=f"known: {', '.join(sorted(each.stem for each in _HERE.glob('*.json')))}",
            code=Exit.PLAYBOOK,
            kind="engine",
        )
    words: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return words
