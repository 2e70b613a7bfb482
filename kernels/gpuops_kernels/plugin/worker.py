"""What the plugin does in a process of the engine, from its start to the proof."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import __version__, configs, registry
from . import imports, plan, proof, targets
from .proof import FamilyProof, Proof, TargetProof
from .refusal import refuse, say
from .replacement import Replacement, ReplacementError
from .settings import Settings

_NO_TORCH = "torch is not installed: nothing applies"
_TOO_SMALL = "in place, but no captured batch was large enough to use it"


def start(wanted: Settings, in_worker: bool) -> None:
    """Check the version and, in a worker process, arrange for replacements and proofs."""
    version = _engine_version()
    engine = targets.engine(version)
    unknown = "" if engine else f"SGLang {version} is not in the table of targets, which has {targets.known()}"
    if unknown and wanted.mode == "strict":
        refuse(f"{unknown}. Install a gpuops-kernels that knows it, or set GPUOPS_KERNELS=auto to serve SGLang's own kernels")
    if unknown:
        say(f"{unknown}: nothing is replaced")
    if in_worker:
        Worker(wanted, version, engine, _machine(), unknown or ("" if _torch_is_there() else _NO_TORCH)).install()


class Worker:
    """The plugin in one worker process."""

    def __init__(
        self, wanted: Settings, version: str, engine: targets.Engine | None, machine: plan.Machine, unknown: str
    ) -> None:
        self._wanted = wanted
        self._version = version
        self._engine = engine
        self._machine = machine
        # Of what this process imports, and not of what lies there when a proof is written: an installation may be replaced under a server.
        self._content = proof.content_hash()
        self._choices = plan.choose(wanted, engine, machine, unknown)
        self._replacements = {
            family: [Replacement(target, self._first_call) for target in choice.targets]
            for family, choice in self._choices.items()
        }
        self._stage = "started"
        self._rank: Mapping[str, int] = {}
        self._families: dict[str, FamilyProof] = {}

    def install(self) -> None:
        """Patch what is imported, and what will be; take hold of the moment before and after graph capture."""
        if self._engine is None or not _torch_is_there():
            self._settle({family: self._outside(choice) for family, choice in self._choices.items()})
            return
        for replacements in self._replacements.values():
            for each in replacements:
                imports.after(each.target.module, each.put_in)
        imports.after(self._engine.anchor.module, self._surround)

    def _surround(self, module: ModuleType) -> None:
        assert self._engine is not None
        name, method = self._engine.anchor.attribute.split(".")
        holder = getattr(module, name, None)
        stock = getattr(holder, method, None)
        if stock is None:
            self._no_anchor()
            return

        @functools.wraps(stock)
        def surrounded(runner: Any, *args: Any, **kwargs: Any) -> Any:
            # A draft model's runner comes after the target's, in the same process and with the same modules.
            if getattr(runner, "is_draft_worker", False):
                return stock(runner, *args, **kwargs)
            self.loaded(runner)
            result = stock(runner, *args, **kwargs)
            self.captured(runner)
            return result

        setattr(holder, method, surrounded)

    def _no_anchor(self) -> None:
        assert self._engine is not None
        reason = f"{self._engine.anchor.path} is missing, where the proof is made before graph capture"
        self._settle(
            {
                family: self._failed(family, reason) if choice.targets else self._outside(choice)
                for family, choice in self._choices.items()
            }
        )

    def loaded(self, runner: Any) -> None:
        """The model is there, nothing is captured: verify every replacement and write the proof."""
        self._stage = "loaded"
        self._rank = _ranks(runner)
        model, heads = runner.model, _heads(runner.model)
        # What called ours until here was no capture.
        for replacements in self._replacements.values():
            for each in replacements:
                each.calls.forget()
        self._settle({family: self._judge(family, choice, model, heads) for family, choice in self._choices.items()})

    def captured(self, runner: Any) -> None:
        """The graphs are captured: verify again, and count the calls that the replacements got."""
        self._stage = "captured"
        families = {name: self._again(name, family, _captures(runner)) for name, family in self._families.items()}
        self._settle(families)

    def _judge(self, family: str, choice: plan.Choice, model: Any, heads: int | None) -> FamilyProof:
        if not choice.targets:
            return self._outside(choice)
        unfit = _unfit(choice, model)
        if unfit:
            self._take_out(family)
            return self._outside(plan.Choice((), proof.NOT_APPLICABLE, unfit, choice.insisted))
        for each in self._replacements[family]:
            each.bind(heads)
        try:
            self._require_configurations(family)
            proved = tuple(TargetProof(each.target.path, True, tuple(each.verify())) for each in self._replacements[family])
        except Exception as error:
            return self._failed(family, str(error))
        return FamilyProof(proof.ACTIVE, choice.reason, proved)

    def _again(self, name: str, family: FamilyProof, captured: bool) -> FamilyProof:
        if family.state != proof.ACTIVE:
            return family
        try:
            now = FamilyProof(family.state, family.reason, self._counted(name))
        except ReplacementError as error:
            return self._failed(name, str(error))
        if not captured or now.calls:
            return now
        if now.passed_on:
            # No failure, also in strict mode: that is what ours does with a small batch, and a larger one would be served by it.
            reason = f"{_TOO_SMALL}: all {now.passed_on} calls of the capture were passed on to SGLang's own"
            say(f"{name}: {reason}")
            return FamilyProof(family.state, reason, now.targets)
        if self._wanted.mode == "strict":
            return FamilyProof(
                proof.FAILED, "in place, but graph capture never called it: the engine takes another path", now.targets
            )
        return now

    def _first_call(self) -> None:
        # During capture nothing is written: `captured` is about to. Without capture the first request is the first call.
        if self._stage != "captured":
            return
        for name, family in self._families.items():
            if family.state == proof.ACTIVE:
                self._families[name] = FamilyProof(family.state, family.reason, self._counted(name))
        self._write()

    def _counted(self, family: str) -> tuple[TargetProof, ...]:
        return tuple(
            TargetProof(each.target.path, True, tuple(each.verify()), each.calls.count, passed_on=each.calls.passed_on)
            for each in self._replacements[family]
        )

    def _require_configurations(self, family: str) -> None:
        if self._machine.capability is None:
            # Plain torch, which has none.
            return
        import torch

        capability = torch.cuda.get_device_capability()
        if capability != self._machine.capability:
            raise ReplacementError(
                f"the engine's card has compute capability {capability}, the first one has {self._machine.capability}"
            )
        configs.require(capability, registry.family(family).keys)

    def _outside(self, choice: plan.Choice) -> FamilyProof:
        if choice.insisted and self._wanted.mode == "strict":
            return FamilyProof(proof.FAILED, f"it is switched on, but {choice.reason}")
        return FamilyProof(choice.state, choice.reason)

    def _failed(self, family: str, reason: str) -> FamilyProof:
        self._take_out(family)
        left = tuple(TargetProof(each.target.path, False, reason=each.error or "") for each in self._replacements[family])
        return FamilyProof(proof.FAILED, reason, left)

    def _take_out(self, family: str) -> None:
        for each in self._replacements[family]:
            each.take_out()

    def _settle(self, families: dict[str, FamilyProof]) -> None:
        self._families = families
        made = self._write()
        if made is None:
            return
        failures = made.failures()
        if failures and self._wanted.mode == "strict":
            refuse(f"rank {made.label}, stage {made.stage}: {'; '.join(failures)}")
        for failure in failures:
            say(f"SGLang's own kernels serve instead: {failure}")
        if self._stage != "captured":
            say(", ".join(f"{name} {family.state}" for name, family in families.items()))

    def _write(self) -> Proof | None:
        made = self._proof()
        if self._wanted.proof is None:
            return made
        try:
            proof.write(made, self._wanted.proof)
        except OSError as error:
            if self._wanted.mode == "strict":
                refuse(f"the proof cannot be written to {self._wanted.proof}: {error}")
            say(f"the proof cannot be written to {self._wanted.proof}: {error}")
        return made

    def _proof(self) -> Proof:
        capability = self._machine.capability
        pid = os.getpid()
        return Proof(
            stage=self._stage,
            rank=self._rank,
            pid=pid,
            start=proof.start_of(pid) or 0,
            title=Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace"),
            mode=self._wanted.mode,
            package=__version__,
            content=self._content,
            build=self._wanted.build or "",
            capability=f"{capability[0]}.{capability[1]}" if capability else "",
            versions={"sglang": self._version, **_versions("torch", "triton")},
            families=dict(self._families),
        )


def _engine_version() -> str:
    try:
        version = importlib.import_module("sglang.version").__version__
    except (ImportError, AttributeError):
        return "unknown"
    return str(version)


def _machine() -> plan.Machine:
    if not _torch_is_there():
        return plan.Machine(None, _NO_TORCH)
    import torch

    # Reads the driver's list of devices and makes no context: the engine has done the same while it was imported.
    if not torch.cuda.is_available():
        return plan.Machine(None, "no CUDA device: nothing applies")
    return plan.Machine(torch.cuda.get_device_capability())


def _torch_is_there() -> bool:
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _ranks(runner: Any) -> dict[str, int]:
    """Ranks by kind. They live in the runner (to 0.5.15), in its ``ps`` (0.5.16 to 0.5.20) or in a global (since 0.5.21)."""
    places = [runner, getattr(runner, "ps", None)]
    context = sys.modules.get("sglang.srt.runtime_context")
    if context is not None and hasattr(context, "get_parallel"):
        places.append(context.get_parallel())
    found = {}
    for kind in ("dp", "pp", "tp"):
        values = [getattr(place, f"{kind}_rank", None) for place in places]
        known = [value for value in values if isinstance(value, int)]
        if known:
            found[kind] = known[0]
    return found


def _heads(model: Any) -> int | None:
    """Attention heads of this rank; None when no layer of this rank says so."""
    layers = getattr(getattr(model, "model", None), "layers", ())
    counts = {getattr(getattr(layer, "self_attn", None), "n_local_heads", None) for layer in layers} - {None}
    return counts.pop() if len(counts) == 1 else None


def _unfit(choice: plan.Choice, model: Any) -> str:
    """Why a family's kernels are not for this model; empty when they are, as far as its class and its configuration say so."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if not name.startswith(choice.models):
        return f"the model is {name}, not DeepSeek-V4"
    # 0.5.23 loads DeepSeek-V4.1 as the class of DeepSeek-V4; its layers take mHC-pre from the sublayer before, past mhc_fused_post_pre.
    newer = getattr(config, "model_type", "") == "deepseek_v41" or getattr(config, "hc_pre_from_prev_sublayer", False)
    if choice.models and newer:
        return f"the model is DeepSeek-V4.1, loaded as {name}, not DeepSeek-V4"
    hidden = getattr(config, "hidden_size", None)
    if choice.hiddens and isinstance(hidden, int) and hidden not in choice.hiddens:
        return f"the model's hidden size is {hidden}, its kernels are made for {', '.join(map(str, sorted(choice.hiddens)))}"
    return ""


def _captures(runner: Any) -> bool:
    """Whether decode graphs were captured with our functions called from Python."""
    graphs = getattr(runner, "decode_cuda_graph_runner", None) or getattr(runner, "graph_runner", None)
    eager = getattr(runner, "eager_runner", None)
    # What torch.compile traced is not counted (see replacement.py).
    compiled = getattr(getattr(runner, "server_args", None), "enable_torch_compile", False)
    return graphs is not None and graphs is not eager and not compiled
