"""Sections of the playbook about measuring a server: how fast it is (`bench`), and how right (`ladder`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from .values import Count, Name, NotEmpty, Seconds, Section, Text, example, no_switch


def _percent(value: Any) -> Any:
    """A share as text in percent, or as a number."""
    if isinstance(value, str):
        number, percent, rest = value.strip().partition("%")
        try:
            return float(number) / 100 if percent and not rest else value
        except ValueError:
            raise ValueError(f"expected a share such as 3% or 0.03, not {value!r}") from None
    return no_switch(value)


Gate = Literal["required", "wanted", "off"]
Share = Annotated[float, BeforeValidator(no_switch), Field(gt=0, le=1)]
Positive = Annotated[float, BeforeValidator(no_switch), Field(gt=0, allow_inf_nan=False)]
Part = Annotated[float, BeforeValidator(_percent), Field(gt=0, lt=1)]
Length = Annotated[Count, Field(ge=16, le=4_000_000)]


class Goodput(Section):
    """Limits of a request that is good enough; goodput is how many requests a second meet all of them. It needs one at least."""

    model_config = example(ttft_ms=500, itl_ms=30)

    ttft_ms: Positive | None = Field(default=None, description="The most until its first token, in milliseconds.")
    itl_ms: Positive | None = Field(
        default=None, description="The most between two of its tokens, their mean (TPOT), in milliseconds."
    )
    e2e_ms: Positive | None = Field(default=None, description="The most until its last token, in milliseconds.")

    @model_validator(mode="after")
    def _limits_something(self) -> "Goodput":
        if not self.model_dump(exclude_none=True):
            raise ValueError("no limit: name ttft_ms, itl_ms or e2e_ms")
        return self


class Cell(Section):
    """One point at which the server is measured: a closed loop (`concurrency`) or an open one (`rate`).

    In a closed loop a request is sent when another has been answered. In an open loop requests come at random times (Poisson) whether or not the
    server keeps up, as users do: latency is that of the rate, and the throughput says nothing, so verdicts about speed (`gates.performance`, trials)
    leave those cells out, and `gpuops ab` compares their times. The achieved rate stands beside the asked one.
    """

    model_config = example(name="c16", concurrency=16, input=1024, output=256)

    name: Name = Field(description="What to call it; unique in the playbook.")
    concurrency: Count | None = Field(default=None, ge=1, le=4096, description="How many requests run at a time.")
    rate: Positive | None = Field(default=None, le=10_000, description="How many requests come a second, on average.")
    input: Count = Field(default=1024, ge=1, le=4_000_000, description="The length of each prompt, in tokens.")
    output: Count = Field(
        default=256, ge=1, le=1_000_000, description="The length of each answer, in tokens; 1 measures the prefill."
    )
    requests: Count | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="How many requests. Default: four times the concurrency, and at least 16; a minute of the rate, and at least 64.",
    )
    cold: bool = Field(
        default=True,
        description="Whether the prefix cache is emptied before, and must not be used (beyond 1 % of the prompts: some begin alike).",
    )
    goodput: Goodput | None = Field(default=None, description="Limits: requests a second that meet all of them are counted too.")
    client: Literal["aiperf"] | None = Field(
        default=None,
        description="What sends at the rate: `aiperf`, if the runtime has it; it alone tells when each was sent. Default: the engine's client.",
    )

    @model_validator(mode="after")
    def _one_loop(self) -> "Cell":
        if (self.concurrency is None) == (self.rate is None):
            raise ValueError("a cell has a concurrency (a closed loop) or a rate (an open one)")
        if self.client is not None and self.rate is None:
            raise ValueError(f"{self.client} measures open loops: the cell needs a rate")
        if self.concurrency is not None and self.requests is not None and self.requests < self.concurrency:
            raise ValueError(f"{self.requests} requests never run {self.concurrency} at a time")
        return self


class Bench(Section):
    """What `gpuops bench` measures, in this order."""

    model_config = example(
        cells=[
            {"name": "c1", "concurrency": 1},
            {"name": "c64", "concurrency": 64, "output": 512},
            {"name": "users", "rate": 4, "goodput": {"ttft_ms": 500, "itl_ms": 30}},
        ]
    )

    cells: Annotated[tuple[Cell, ...], NotEmpty] = Field(
        default=(
            *(Cell(name=f"c{number}", concurrency=number) for number in (1, 8, 16, 64)),
            Cell(name="prefill-8k", concurrency=1, input=8192, output=1, requests=8),
        ),
        description="The points. Default: 1, 8, 16 and 64 at a time, and the cold prefill of 8192 tokens.",
    )
    deadline_s: Seconds = Field(default=1800.0, description="How long one cell may take, in seconds.")

    @field_validator("cells")
    @classmethod
    def _distinct_names(cls, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
        names = [cell.name for cell in cells]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two cells are called {name!r}")
        return cells


class Performance(Section):
    """The performance gate: a candidate must not be slower than the known-good release, by one measurement at each cell.

    It is held against the stored measurements of the known-good release (`gpuops bench`, `gpuops ab`) with the noise that `gpuops ab known-good
    known-good` has shown on this host. Without either nothing is proved: `wanted` warns then, and `required` restores.
    """

    model_config = example(gate="wanted", cells=["c1", "c16"], not_slower_than="3%")

    gate: Gate = Field(
        default="wanted",
        description="Whether a candidate that is not proved fast enough gives way (`required`) or is only reported.",
    )
    cells: Annotated[tuple[Name, ...], NotEmpty] | None = Field(
        default=None, description="Names of cells of `bench`. Default: all of them."
    )
    not_slower_than: Part = Field(default=0.03, description="The slowdown that is allowed: `3%`, or 0.03.")


class Rungs(Section):
    """The ladder as a gate: a candidate is put to the rungs of `ladder` up to a level before it is promoted; a required rung that is wrong restores.

    Its rung 7 is held against the known-good release. A release that passes has recorded its own answers, and is the reference once it is the
    known-good one. A trial's steps pass the same gate.
    """

    model_config = example(level=7)

    level: Count = Field(ge=1, le=8, description="The highest rung; which of them are required says `ladder`.")


class Gates(Section):
    """Gates of a rollout besides the probes."""

    model_config = example(ladder={"level": 7}, performance={"gate": "required", "cells": ["c16"], "not_slower_than": "5%"})

    ladder: Rungs | None = Field(default=None, description="How right a candidate must be. Default: the probes decide.")
    performance: Performance | None = Field(
        default=None, description="How fast a candidate must be. Default: it is not measured."
    )


class Identity(Section):
    """Rung 1: the server says that it runs the model, the version and the arguments of the release."""

    model_config = example(gate="required")

    gate: Gate = Field(default="required", description="Whether the rung counts.")


class Answers(Section):
    """Rung 2: the playbook's probes, and whether their answers are text at all: not empty, no loop, no NaN signs, the right script."""

    model_config = example(gate="required", script="LATIN")

    gate: Gate = Field(default="required", description="Whether the rung counts; single probes keep their own gates.")
    script: Literal["LATIN", "CJK", "CYRILLIC", "ARABIC", "GREEK", "HANGUL"] | None = Field(
        default=None, description="The script that the letters of answers must have. Default: any."
    )


class Arithmetic(Section):
    """Rung 3: sums, many at a time, so that answers are made in one batch."""

    model_config = example(gate="required", sums=["17 * 23 = 391", "48 + 91 = 139"], concurrency=16, least=0.9)

    gate: Gate = Field(default="required", description="Whether the rung counts.")
    sums: Annotated[tuple[Annotated[str, Field(pattern=r"^\s*\S[^=]*=\s*-?[0-9]+\s*$")], ...], NotEmpty] = Field(
        default=tuple(f"{11 + 4 * at} + {7 + 5 * at} = {18 + 9 * at}" for at in range(20)),
        description="The sums, each with its result, as `2 + 2 = 4`. Default: 20 additions below 200.",
    )
    template: Text = Field(
        default="What is {sum}? Answer with the number only.", description="The question; `{sum}` is replaced by the left side."
    )
    chat: bool = Field(default=True, description="Whether it is a chat message; else a text that the model completes.")
    concurrency: Count = Field(default=16, ge=1, le=1024, description="How many at a time.")
    max_tokens: Count = Field(default=64, ge=1, le=65536, description="The longest answer, in tokens.")
    least: Share = Field(default=0.9, description="The share that must be right.")

    @model_validator(mode="after")
    def _has_a_place(self) -> "Arithmetic":
        if "{sum}" not in self.template:
            raise ValueError("the template has no {sum}")
        return self


class Needles(Section):
    """Rung 4: one sentence hidden in a long text must be found again. Sparse attention selects only from some length on."""

    model_config = example(gate="required", lengths=[600, 6000, 60000], depths=[0.1, 0.5, 0.9], least=1.0)

    gate: Gate = Field(default="required", description="Whether the rung counts.")
    lengths: Annotated[tuple[Length, ...], NotEmpty] = Field(
        default=(600, 6000, 12000), description="About how long the texts are, in tokens."
    )
    depths: Annotated[tuple[Share, ...], NotEmpty] = Field(
        default=(0.1, 0.5, 0.9), description="Where the sentence stands in them."
    )
    least: Share = Field(default=1.0, description="The share that must be found.")


class Mixed(Section):
    """Rung 5: a short question is put while a long prompt is being read; both must be answered right."""

    model_config = example(gate="required", length=16000)

    gate: Gate = Field(default="required", description="Whether the rung counts.")
    length: Length = Field(default=16000, description="About how long the long prompt is, in tokens.")


class Tools(Section):
    """Rung 6: a tool call whose arguments are JSON of the tool's schema."""

    model_config = example(gate="wanted")

    gate: Gate = Field(default="wanted", description="Whether the rung counts; the server may need a tool parser.")


class Continuations(Section):
    """The part of rung 7 that decode decides: greedy continuations, each alone and many together, against the known-good release's.

    Compared are the log probabilities of the likeliest tokens, place by place, up to the first token that differs. The known-good release
    differs from itself in a batch and from start to start: that is the noise. A start of its own that is farther off than `factor` times what a
    batch does is wrong, and no noise.
    """

    model_config = example(lengths=[60, 700, 2400], prompts=8)

    lengths: Annotated[tuple[Length, ...], NotEmpty] = Field(
        default=(60, 700),
        description="About how long the texts are, in tokens. Sparse attention selects only from some length on.",
    )
    prompts: Count = Field(
        default=8, ge=0, le=1000, description="How many texts of each length; 0 leaves this part of the rung out."
    )
    tokens: Count = Field(
        default=12,
        ge=2,
        le=1000,
        description="How far each is continued, in tokens: many short ones say more than a few long ones.",
    )
    factor: Annotated[float, BeforeValidator(no_switch), Field(ge=1, le=100)] = Field(
        default=2.0, description="How many times the known-good release's own noise is allowed."
    )
    floor: Annotated[float, BeforeValidator(no_switch), Field(gt=0, le=10)] = Field(
        default=0.005, description="The mean difference (nats a place) that is always allowed."
    )


class Logprobs(Section):
    """Rung 7: the log probabilities of fixed texts and of their own continuations, against those that the known-good release gave.

    A release's are recorded when the rung is first put to it. What the known-good release's later starts differ from its own is noise of this host: a
    release is right when it differs no more than `factor` times that, or than `floor`.
    """

    model_config = example(gate="required", factor=3, floor=0.001)

    gate: Gate = Field(default="wanted", description="Whether the rung counts.")
    texts: tuple[Text, ...] = Field(
        default=(), description="The texts. Default: four of our own: prose, code, arithmetic, another language."
    )
    factor: Annotated[float, BeforeValidator(no_switch), Field(ge=1, le=100)] = Field(
        default=3.0, description="How many times the known-good release's own noise is allowed."
    )
    floor: Annotated[float, BeforeValidator(no_switch), Field(gt=0, le=10)] = Field(
        default=0.001, description="The divergence (k3 estimate of KL, nats a token) that is always allowed."
    )
    agreement: Share = Field(
        default=0.99,
        description="The share of clear positions whose likeliest token must be the same; of those whose margin is 0.5 or more.",
    )
    continuations: Continuations = Field(
        default_factory=Continuations, description="The part that the kernels of decode are judged by."
    )


class Soak(Section):
    """Rung 8: many short requests; an engine may die, or go silent, only after a hundred. Where speculation is on, drafts must be accepted too."""

    model_config = example(gate="required", requests=160, concurrency=8)

    gate: Gate = Field(default="required", description="Whether the rung counts.")
    requests: Count = Field(default=160, ge=1, le=100_000, description="How many.")
    concurrency: Count = Field(default=8, ge=1, le=1024, description="How many at a time.")
    accept_length_above: Annotated[float, BeforeValidator(no_switch), Field(ge=1, le=100)] = Field(
        default=1.0,
        description="With speculation, more tokens than this must come a step; 1 means that no draft is accepted: a broken drafter.",
    )


class Evaluation(Section):
    """A task of a tool that the server's runtime has, put to the server over loopback. One empty answer fails it, whatever its score."""

    model_config = example(name="gsm8k", tool="lm-eval", task="gsm8k", limit=100, metric="exact_match,strict-match", least=0.9)

    name: Name = Field(description="What to call it; unique in the playbook.")
    tool: Literal["lm-eval", "sgl-eval"] = Field(description="The tool; the runtime must have it, so its lock names it.")
    task: Text = Field(description="The tool's own name of the task or benchmark.")
    limit: Count | None = Field(default=None, ge=1, le=1_000_000, description="How many of its questions. Default: all.")
    metric: Text | None = Field(
        default=None, description="The tool's name of the score. Default: the only one it has; of `sgl-eval` its `score`."
    )
    least: Share = Field(description="The score that must be reached, as the tool tells it.")
    chat: bool = Field(default=True, description="Whether questions are chat messages (lm-eval; `sgl-eval` knows nothing else).")
    concurrency: Count = Field(default=8, ge=1, le=4096, description="How many questions at a time.")
    options: tuple[Text, ...] = Field(default=(), description="Further arguments of the tool; paths are on the host.")
    when_missing: Literal["skip", "fail"] = Field(
        default="skip", description="What a runtime without the tool means: the evaluation is left out by name, or it has failed."
    )
    deadline_s: Seconds = Field(default=3600.0, description="How long it may take, in seconds.")


class Evaluations(Section):
    """Rung 9: evaluations by tools that exist, in their order. It is put by `gpuops smoke --level 9` alone, and no gate of a rollout."""

    model_config = example(run=[{"name": "math", "tool": "sgl-eval", "task": "gsm8k", "limit": 200, "least": 0.9}])

    gate: Gate = Field(default="required", description="Whether the rung counts.")
    run: tuple[Evaluation, ...] = Field(default=(), description="The evaluations. Default: none, and the rung is left out.")

    @field_validator("run")
    @classmethod
    def _distinct_names(cls, run: tuple[Evaluation, ...]) -> tuple[Evaluation, ...]:
        names = [each.name for each in run]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two evaluations are called {name!r}")
        return run


class Ladder(Section):
    """The rungs of `gpuops smoke --level N`: rungs 1 to N are put in their order, until the server is down."""

    model_config = example(needles={"lengths": [600, 6000]}, tools={"gate": "required"})

    identity: Identity = Field(default_factory=Identity, description="Rung 1.")
    answers: Answers = Field(default_factory=Answers, description="Rung 2.")
    arithmetic: Arithmetic = Field(default_factory=Arithmetic, description="Rung 3.")
    needles: Needles = Field(default_factory=Needles, description="Rung 4.")
    mixed: Mixed = Field(default_factory=Mixed, description="Rung 5.")
    tools: Tools = Field(default_factory=Tools, description="Rung 6.")
    logprobs: Logprobs = Field(default_factory=Logprobs, description="Rung 7.")
    soak: Soak = Field(default_factory=Soak, description="Rung 8.")
    evaluations: Evaluations = Field(default_factory=Evaluations, description="Rung 9.")
