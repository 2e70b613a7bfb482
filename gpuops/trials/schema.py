"""A trial file as pydantic models: the question, the base, and the steps, each a few changes to it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from gpuops.playbook.values import Env, Flags, Name, NotEmpty, Seconds, Section, Text, example

# Every subset of more changes than these is no trial but a weekend.
MOST_OF_A_MATRIX = 5

Mode = Literal["sequence", "matrix", "bisect"]


class Step(Section):
    """One step: what it changes of the base, or of steps before it."""

    model_config = example(name="on", flags={"enable-torch-compile": True}, expect="fails", why="the campaign's finding")

    name: Name = Field(description="What to call it; unique in the trial.")
    on: tuple[Name, ...] = Field(default=(), description="Earlier steps whose changes this one adds to; the base alone if empty.")
    env: dict[str, Any] = Field(default_factory=dict, description="Environment of the server; null removes a variable.")
    flags: dict[str, Any] = Field(default_factory=dict, description="Flags of the engine; null removes one.")
    build: Text | Literal[False] | None = Field(
        default=None, description="A build by its id, its beginning or its folder, in the place of the base's; `false`: none."
    )
    patch: Text | None = Field(
        default=None, description="A folder of ENGINE-VERSION/*.patch, which becomes a build. A path beside the trial file."
    )
    set: dict[str, Any] = Field(
        default_factory=dict, description="Any other key of the playbook by its dotted path, as with --set."
    )
    bench: bool | tuple[Name, ...] | None = Field(
        default=None, description="Whether it is measured when it passes, or at which cells. Default: as the trial says."
    )
    deadline_s: Seconds | None = Field(
        default=None, description="How long it may take, measuring included. Default: as the trial says."
    )
    expect: Literal["passes", "fails"] | None = Field(
        default=None, description="What is expected of it; the record says where it was otherwise."
    )
    why: Text | None = Field(default=None, description="What it is for, and its expected effect.")
    source: Text | None = Field(default=None, description="Where that comes from.")

    @field_validator("on", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("env")
    @classmethod
    def _env(cls, env: dict[str, Any]) -> dict[str, Any]:
        return _checked(env, Env, "env")

    @field_validator("flags")
    @classmethod
    def _flags(cls, flags: dict[str, Any]) -> dict[str, Any]:
        return _checked(flags, Flags, "flags")

    @model_validator(mode="after")
    def _one_build(self) -> "Step":
        if self.patch is not None and self.build:
            raise ValueError(
                "build and patch are both builds: gpuops builds make --from FOLDER --patches FOLDER makes one of both"
            )
        return self

    @property
    def changes(self) -> bool:
        """Whether it changes anything by itself."""
        return bool(self.env or self.flags or self.set or self.patch) or self.build is not None


class Judged(Section):
    """Which step would be adopted, and what it must be better than."""

    model_config = example(step="on", against="off", margin=0.05)

    step: Name = Field(description="The step that would be adopted.")
    against: Name = Field(description="The step that it is compared with.")
    margin: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.05,
        description="The change of throughput that counts, as a fraction. One launch each is a screen: `gpuops ab` decides what is close.",
    )


class TrialFile(Section):
    """A trial: a question, the base that it is asked of, and the steps that answer it."""

    question: Text = Field(description="What shall be found out.")
    hypothesis: Text = Field(description="What is expected, and why.")
    base: Text = Field(description="The playbook that every step starts from. A path beside the trial file.")
    set: dict[str, Any] = Field(default_factory=dict, description="What the trial changes of the base for all of its steps.")
    mode: Mode = Field(
        default="sequence",
        description=(
            "`sequence`: the steps as they stand. `matrix`: every combination of their changes, the base alone among them. `bisect`: which of "
            "the changes, added in their order, is the first that breaks (or fixes) it."
        ),
    )
    find: Literal["breaks", "fixes"] = Field(default="breaks", description="What a bisect looks for.")
    stop: Literal["never", "first-failure", "first-pass"] = Field(
        default="never", description="After which step no further one is wanted."
    )
    caches: Literal["own", "shared"] = Field(
        default="own",
        description="Whether each step has JIT caches of its own, which begin as a copy of the known-good release's, or uses those of its build.",
    )
    deadline_s: Seconds = Field(default=3600.0, description="How long a step may take, measuring included.")
    bench: bool | tuple[Name, ...] = Field(
        default=False, description="Whether steps that pass are measured, or at which cells of the base."
    )
    steps: Annotated[tuple[Step, ...], NotEmpty] = Field(description="The steps, in their order.")
    verdict: Judged | None = Field(
        default=None, description="What the record's verdict is about. Default: none is given on the figures."
    )

    @model_validator(mode="after")
    def _fits(self) -> "TrialFile":
        names = [step.name for step in self.steps]
        for at, step in enumerate(self.steps):
            if names.count(step.name) > 1:
                raise ValueError(f"two steps are called {step.name!r}")
            unknown = [name for name in step.on if name not in names[:at]]
            if unknown:
                raise ValueError(f"step {step.name!r} is on {unknown[0]!r}, which is no step before it")
        if self.mode != "sequence":
            self._of_changes(names)
        for name in (self.verdict.step, self.verdict.against) if self.verdict else ():
            if name not in names:
                raise ValueError(f"the verdict is about {name!r}, which is no step")
        return self

    def _of_changes(self, names: list[str]) -> None:
        for step in self.steps:
            if not step.changes or step.on:
                raise ValueError(
                    f"step {step.name!r}: a {self.mode} combines changes by itself, so each step is one, without `on`"
                )
        if "base" in names:
            raise ValueError(f"no step of a {self.mode} may be called 'base': that is the base alone")
        if self.mode == "matrix" and len(names) > MOST_OF_A_MATRIX:
            raise ValueError(
                f"a matrix of {len(names)} changes has {2 ** len(names)} steps; {MOST_OF_A_MATRIX} changes are the most"
            )
        if self.verdict is not None:
            raise ValueError(f"`verdict` is for a sequence, not for a {self.mode}")


def _checked(values: dict[str, Any], kind: Any, what: str) -> dict[str, Any]:
    """The values as a playbook takes them; those that are null stay, since they remove a key."""
    present = {key: value for key, value in values.items() if value is not None}
    try:
        checked = TypeAdapter(kind).validate_python(present)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"] if part != "[key]")
        said = str(first["ctx"]["error"]) if "error" in first.get("ctx", {}) else first["msg"]
        raise ValueError(f"{what}.{where}: {said}") from None
    return {key: checked.get(key) for key in values}
