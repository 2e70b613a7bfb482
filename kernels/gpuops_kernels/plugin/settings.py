"""What the environment asks of the plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..registry import PLACED

MODES = ("off", "auto", "strict")
MODE = "GPUOPS_KERNELS"
PROOF = "GPUOPS_KERNELS_PROOF"
BUILD = "GPUOPS_BUILD"


class SettingsError(ValueError):
    """A variable holds a value that it cannot have. Never ignored: a typing error must not serve stock kernels in silence."""


@dataclass(frozen=True)
class Settings:
    """The environment, read.

    Args:
        mode: ``off``: nothing is touched. ``auto``: what cannot be put in place is left to SGLang, with a line on stderr. ``strict``: it ends the
            process, and so the start of the server.
        switches: by family, True or False where ``GPUOPS_KERNELS_<FAMILY>`` is 1 or 0; families without a switch follow the table's default.
        proof: the folder (or the file, when it ends in ``.json``) for the proofs; None: none are written.
        build: an identifier of the build that the controller gives, repeated in the proof.
    """

    mode: str
    switches: Mapping[str, bool]
    proof: Path | None
    build: str | None


def read(environment: Mapping[str, str]) -> Settings:
    """The settings in an environment.

    Raises:
        SettingsError
    """
    mode = environment.get(MODE, "").strip() or "auto"
    if mode not in MODES:
        raise SettingsError(f"{MODE}={mode} is not a mode: set it to {', '.join(MODES[:-1])} or {MODES[-1]}")
    switches = {
        family: _switch(switch(family), environment[switch(family)]) for family in PLACED if environment.get(switch(family))
    }
    proof = environment.get(PROOF)
    return Settings(mode, switches, Path(proof) if proof else None, environment.get(BUILD) or None)


def switch(family: str) -> str:
    """The variable that switches a family."""
    return f"{MODE}_{family.upper()}"


def _switch(variable: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise SettingsError(
            f"{variable}={value} is not a switch: set it to 0 or 1, or unset it for the default of this SGLang version"
        )
    return value == "1"
