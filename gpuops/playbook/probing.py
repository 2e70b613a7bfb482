"""The sections about probes: what is asked of a server, and what makes an answer right."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from .values import Count, Name, NotEmpty, Regex, Section, Text, example


class Expect(Section):
    """What makes an answer right: exactly one of `contains`, `regex`, `equals`, `output_ids`."""

    model_config = example(contains="Paris", ignore_case=True)
    ways: ClassVar[tuple[str, ...]] = ("contains", "regex", "equals", "output_ids")

    contains: Text | None = Field(default=None, description="Text that the answer must hold.")
    regex: Regex | None = Field(
        default=None, description="A regular expression (Python's) that must match somewhere in the answer."
    )
    equals: Text | None = Field(default=None, description="The whole answer, white space around it aside.")
    output_ids: Annotated[tuple[Annotated[Count, Field(ge=0)], ...], NotEmpty] | None = Field(
        default=None, description="The token ids of a greedy completion; only with `prompt`."
    )
    ignore_case: bool = Field(default=False, description="Whether case is of no matter; not for `output_ids`.")

    @model_validator(mode="after")
    def _exactly_one(self) -> "Expect":
        named = [way for way in self.ways if getattr(self, way) is not None]
        if len(named) != 1:
            raise ValueError(f"expected exactly one of {', '.join(self.ways)}; here: {', '.join(named) or 'none'}")
        if self.output_ids is not None and self.ignore_case:
            raise ValueError("ignore_case means nothing for output_ids")
        return self


class Probe(Section):
    """One correctness question, put at temperature 0, one at a time."""

    model_config = example(
        name="capital",
        ask="What is the capital of France? Answer in one word.",
        expect={"contains": "Paris", "ignore_case": True},
        max_tokens=32,
    )

    name: Name = Field(description="What to call it; unique in the playbook.")
    ask: Text | None = Field(default=None, description="A chat message. Exactly one of `ask` and `prompt`.")
    prompt: Text | None = Field(default=None, description="A text to be completed as it is, without chat template.")
    expect: Expect = Field(description="What makes the answer right.")
    max_tokens: Count = Field(default=32, ge=1, le=65536, description="The longest answer, in tokens.")
    gate: Literal["required", "wanted"] = Field(
        default="required", description="Whether a wrong answer fails the candidate (`required`) or is only reported (`wanted`)."
    )

    @model_validator(mode="after")
    def _one_question(self) -> "Probe":
        if (self.ask is None) == (self.prompt is None):
            raise ValueError(f"expected exactly one of ask and prompt; here: {'none' if self.ask is None else 'both'}")
        if self.expect.output_ids is not None and self.prompt is None:
            raise ValueError("output_ids need prompt: a chat answer carries no token ids")
        return self
