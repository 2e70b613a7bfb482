"""The playbook's hooks: scripts that came with the order and run here at four moments of a rollout.

A script runs in a session of its own, sees no secret, and writes to a file, never to a pipe: a child that it leaves behind holds nobody up.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Dict, Optional, Tuple

from .files import write_bytes
from .paths import Service
from .proc import boottime
from .releases import Release
from .tool import end_group
from .vault import Redactor
from .wire import AgentError, Emit

BEFORE_STOP, AFTER_READY, AFTER_PROMOTE, AFTER_RESTORE = "before-stop", "after-ready", "after-promote", "after-restore"

VARIABLES = (
    "GPUOPS_SERVICE",
    "GPUOPS_RELEASE",
    "GPUOPS_PREVIOUS_RELEASE",
    "GPUOPS_KNOWN_GOOD",
    "GPUOPS_OPERATION",
    "GPUOPS_HOOK",
    "GPUOPS_PORT",
    "GPUOPS_PID",
    "GPUOPS_OUTCOME",
    "GPUOPS_REASON",
    "GPUOPS_ROOT",
)
"""What a hook is told (``gpuops/playbook/automation.py``). All are always set; what has no value at that moment is empty."""

# What a hook sees of the agent's own environment; the rest is none of its business.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")

SHOWN_BYTES = 64 << 10

# Read before the shown part: a secret that begins there is seen whole, and redacted. None is longer than this.
_MARGIN_BYTES = 4 << 10


def run(service: Service, release: Release, name: str, emit: Emit, env: Dict[str, str], timeout: float) -> Optional[str]:
    """Run one hook of a release to its end, and tell it: ``hook {name, status, seconds, output}``.

    ``status`` is that of a shell (128 + signal), or None when the hook could not be run or did not end; ``output`` is empty when it succeeded.

    Args:
        env: some of :data:`VARIABLES`; ``GPUOPS_OPERATION`` is required.
        timeout: seconds; then its whole process group is ended.
    Returns:
        None when it succeeded, or when the release has no such hook; else what went wrong, in one line.
    """
    hook = (release.document.get("hooks") or {}).get(name)
    if not hook:
        return None
    folder = service.operation(env["GPUOPS_OPERATION"])
    script, log = folder / f"hook-{name}", folder / f"hook-{name}.log"
    redact = Redactor(service.root)
    began = boottime()
    status, trouble = _execute(script, hook["text"], log, _environment(service, release, name, env, redact), timeout)
    output = _output(log, redact) if trouble else ""
    emit("hook", name=name, status=status, seconds=round(boottime() - began, 3), output=output)
    if trouble is None:
        return None
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    return f"hook {name} ({hook['name']}) {trouble}" + (f": {last[:300]}" if last else "")


def _environment(service: Service, release: Release, name: str, env: Dict[str, str], redact: Redactor) -> Dict[str, str]:
    known = {
        "GPUOPS_SERVICE": service.name,
        "GPUOPS_RELEASE": str(release.number),
        "GPUOPS_HOOK": name,
        "GPUOPS_ROOT": str(service.root.path),
        "GPUOPS_PORT": str(release.document.get("port") or ""),
    }
    inherited = {key: os.environ[key] for key in INHERITED if key in os.environ}
    # A reason may repeat what the server said.
    told = {key: redact({**known, **env}.get(key, "")) for key in VARIABLES}
    return {**inherited, **told}


def _execute(script: Path, text: str, log: Path, env: Dict[str, str], timeout: float) -> Tuple[Optional[int], Optional[str]]:
    """The script's status and what was wrong with it."""
    try:
        write_bytes(script, text.encode("utf-8", "surrogateescape"), 0o700)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(script)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd="/", start_new_session=True
            )
    except AgentError as error:
        return None, f"could not be written: {error.evidence}"
    except OSError as error:
        return None, f"could not be run: {error.strerror}"
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        end_group(process)
        return None, f"did not end in {timeout:g} s"
    except BaseException:
        end_group(process)
        raise
    if status < 0:
        return 128 - status, f"was ended by signal {-status}"
    return status, f"ended with status {status}" if status else None


def _output(log: Path, redact: Redactor) -> str:
    """What the hook has written, or the end of it when that is long."""
    try:
        with log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - SHOWN_BYTES - _MARGIN_BYTES))
            text = redact(file.read().decode("utf-8", "replace"))
    except OSError:
        return ""
    if size <= SHOWN_BYTES:
        return text
    return f"[{size} bytes in all; the last {SHOWN_BYTES >> 10} kB of them; the whole lies in {log}]\n" + text[-SHOWN_BYTES:]
