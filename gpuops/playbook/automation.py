"""Sections of the playbook about what host and laptop do by themselves: starting a dead server again, hooks, notifications."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .values import Count, NotEmpty, Seconds, Section, Text, Webhook, example


class Restart(Section):
    """Starting a server again that died by itself while it served."""

    model_config = example(max=3, backoff_s=10)

    max: Count = Field(
        default=0,
        ge=0,
        le=100,
        description="How many times in a row, and only for causes that a restart can cure; 0 leaves a dead server dead.",
    )
    backoff_s: Seconds = Field(default=10.0, description="The wait before the first of them, in seconds; it doubles each time.")


class Hooks(Section):
    """Scripts of yours that the host runs at four moments of a rollout.

    A script is executed directly, so it must begin with a `#!` line. It runs in a session of its own, under `deadlines.hook_s`,
    without the playbook's secrets, and is told what goes on by its environment: GPUOPS_SERVICE, GPUOPS_RELEASE,
    GPUOPS_PREVIOUS_RELEASE, GPUOPS_KNOWN_GOOD, GPUOPS_OPERATION, GPUOPS_HOOK, GPUOPS_PORT, GPUOPS_PID, GPUOPS_OUTCOME,
    GPUOPS_REASON and GPUOPS_ROOT; what has no value at that moment is empty. Its output is kept with the operation, and shown
    when it fails. A hook changes nothing of what runs: the same release with other hooks is the same release.
    """

    model_config = example(**{"before-stop": "hooks/drain.sh", "after-promote": "hooks/announce.py"})

    before_stop: Text | None = Field(
        default=None,
        alias="before-stop",
        description="Before the old server is stopped; its failure refuses the rollout before anything is touched.",
    )
    after_ready: Text | None = Field(
        default=None, alias="after-ready", description="When the candidate generates; its failure fails the candidate."
    )
    after_promote: Text | None = Field(
        default=None, alias="after-promote", description="When the candidate was promoted; its failure is only a warning."
    )
    after_restore: Text | None = Field(
        default=None,
        alias="after-restore",
        description="When the known-good release was put back; its failure is only a warning.",
    )

    def files(self) -> dict[str, str]:
        """The hooks that are set: their names, as in the playbook, and the paths of their scripts."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Notify(Section):
    """A webhook that hears how an operation ended, from the laptop that ordered it.

    It gets a POST with a JSON object: service, host, outcome, code, release, failed, reason, evidence, op, at (seconds since the
    epoch) and text (one sentence). A webhook that cannot be reached is a warning and changes no exit code.
    """

    model_config = example(webhook="https://chat.example.com/hooks/${CHAT_HOOK}", on=["restored", "failed"])

    webhook: Webhook = Field(
        description="Its address. A `${NAME}` of a secret may stand in it: that secret stays on the laptop and out of every record."
    )
    on: Annotated[tuple[Literal["promoted", "restored", "failed"], ...], NotEmpty] = Field(
        default=("promoted", "restored", "failed"),
        description="Which ends it hears of: `promoted`; `restored` (a known-good release was put back); `failed` (every other failure).",
    )
