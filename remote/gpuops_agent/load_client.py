"""Load by the engine's own client, in the server's runtime, over loopback on the host.

Which client there is is found by looking into the packages that the server itself runs from, its build first. Every word of the engine comes
with the request (``load`` of the engine's facts).
"""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from .load_run import CHAT, NATIVE, Cell, Request, Run
from .releases import Release
from .server import Server
from .wire import AgentError

# Runs a client that is an extension module without importing the package around it.
_LOADER = (
    "import importlib.util, sys; spec = importlib.util.spec_from_file_location(sys.argv[2], sys.argv[1]); "
    "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); module.run_argv([sys.argv[2], *sys.argv[3:]])"
)
# Seconds that a client gets between TERM and KILL.
GRACE_S = 5.0
_LAST_WORDS = 500


@dataclass(frozen=True)
class Client:
    """A load generator of a runtime: ``begin`` is its argv up to its own options; ``tokens`` and ``text`` are those for prompts of either kind."""

    name: str
    begin: List[str]
    tokens: List[str]
    text: List[str]


def find(release: Release, words: Mapping[str, Any]) -> Optional[Client]:
    """The best client that the release's packages hold; None when they hold none."""
    python, folders = release.document["argv"][0], packages(release)
    for row in words["clients"]:
        for folder in folders:
            files = sorted(glob.glob(os.path.join(glob.escape(str(folder)), row["file"])))
            if files:
                begin = ["-c", _LOADER, files[0], row["extension"]] if "extension" in row else ["-m", row["module"]]
                return Client(row["name"], [python, *begin], row["tokens"], row["text"])
    return None


def environment(release: Release) -> Dict[str, str]:
    """The release's environment without its secrets."""
    own: Dict[str, str] = release.document["env"]
    return {**os.environ, **{name: value for name, value in own.items() if "@{secret:" not in value}}


def packages(release: Release) -> List[Path]:
    """Where the release's Python finds packages: its path in the release's environment, in order. Raises AgentError when it cannot be run."""
    python = release.document["argv"][0]
    code = "import sys, json; print(json.dumps(sys.path))"
    try:
        ended = subprocess.run(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(release),
            timeout=60,
            check=True,
        )
        return [Path(folder) for folder in json.loads(ended.stdout.splitlines()[-1]) if folder]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise AgentError(f"{python} cannot be run", evidence=str(error), kind="runtime") from error


def vocabulary(model: Path) -> int:
    """The number of token ids that the model knows.

    Raises:
        AgentError: its ``config.json`` does not tell.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        return int(config["vocab_size"] if "vocab_size" in config else config["text_config"]["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AgentError(
            "the model's vocabulary is not known, so no prompts can be made for it",
            evidence=f"{model / 'config.json'}: vocab_size: {error!r}",
            kind="vocabulary",
        ) from error


class Process:
    """A load generator as a process, with whatever it starts. ``folder`` is its own, and takes what it says; ``cpu_s`` is known once it has ended."""

    def __init__(self, argv: List[str], env: Mapping[str, str], folder: Path) -> None:
        self.cpu_s = 0.0
        self._log = folder / "client.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=folder, start_new_session=True
            )

    def ended(self) -> bool:
        """Whether it has ended; not to be asked again then."""
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            return False
        self._process.returncode = _exit_code(status)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        return True

    def failure(self, error: Exception) -> str:
        """Why one that has ended has no result that can be read."""
        said = self._log.read_text(encoding="utf-8", errors="replace").strip()[-_LAST_WORDS:]
        missing = re.search(r"ModuleNotFoundError: No module named '([^'.]+)", said)
        if missing:
            return f"the client needs the Python package {missing[1]}, which the runtime lacks: add it to the runtime's lock file"
        return f"the client ended with status {self._process.returncode} without a result ({error!r}): {said}"

    def stop(self) -> None:
        """End one that still runs, and whatever it started."""
        if self._process.returncode is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(GRACE_S)
                return
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                self._process.wait()
                return


class Started(Process):
    """A client that runs. ``folder`` holds its output and its result; a path is one of ``load_run.PATHS``."""

    def __init__(
        self,
        client: Client,
        release: Release,
        server: Server,
        words: Mapping[str, Any],
        cell: Cell,
        seed: int,
        folder: Path,
        path: str = NATIVE,
    ) -> None:
        self._client, self._path = client, path
        self._per_token = path in words["per_token"]
        self._result = folder / "result.jsonl"
        argv = client.begin + _options(client, server, words, cell, seed, self._result, path)
        env = environment(release)
        key = server.headers.get("Authorization", "")
        if key:
            # Not an argument: every user of the host can read those.
            env[words["key_variable"]] = key.partition(" ")[2]
        super().__init__(argv, env, folder)

    def poll(self) -> Optional[Run]:
        """The run once the client has ended, else None."""
        if not self.ended():
            return None
        try:
            told = json.loads(self._result.read_text(encoding="utf-8").splitlines()[-1])
            return parse(told, self._client.name, self._path, self._per_token, self.cpu_s)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            return Run(self._client.name, self._path, 0, 0.0, [], self._per_token, self.cpu_s, self.failure(error))


def parse(told: Mapping[str, Any], client: str, path: str, per_token: bool, cpu_s: float = 0.0) -> Run:
    """A result line with details, as all of SGLang's clients write it. Raises KeyError, TypeError for what is none."""
    requests = [
        Request(
            tokens=int(tokens),
            ttft=float(told["ttfts"][at]),
            gaps=[float(gap) for gap in told["itls"][at]],
            text=told["generated_texts"][at] or "",
            error=told["errors"][at] or "",
        )
        for at, tokens in enumerate(told["output_lens"])
    ]
    return Run(client, path, int(told["completed"]), float(told["duration"]), requests, per_token, cpu_s)


def _options(
    client: Client, server: Server, words: Mapping[str, Any], cell: Cell, seed: int, result: Path, path: str
) -> List[str]:
    values = {
        "backend": words["paths"][path],
        "host": server.host,
        "port": server.port,
        "model": server.model,
        "served": server.served_name,
        "input": cell.input_tokens,
        "output": cell.output_tokens,
        "requests": cell.requests,
        "concurrency": cell.concurrency,
        "rate": cell.rate,
        "seed": seed,
        "result": result,
    }
    # A chat takes no token ids.
    own = client.text if path == CHAT else client.tokens
    if "@{vocabulary}" in own:
        values["vocabulary"] = vocabulary(Path(server.model))
    named = {"@{%s}" % name: str(value) for name, value in values.items()}
    loop = words["open"] if cell.rate else words["closed"]
    return [named.get(word, word) for word in [*words["argv"], *loop, *own]]


def _exit_code(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
