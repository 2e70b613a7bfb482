"""The sandbox itself: one folder holds the keys, the configuration and the record of one sshd on 127.0.0.1.

Everything a client needs is ``ssh -F FOLDER/ssh_config gpuops-sandbox``. The host key is pinned in the folder's own known_hosts file;
nothing outside the folder is written or read. Several sandboxes in several folders live side by side.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuops.errors import Exit, GpuopsError
from gpuops.sandbox import prerequisites
from gpuops.sandbox.processes import Identity, identify, terminate
from gpuops.transport.base import is_plain

ALIAS = "gpuops-sandbox"
"""The ``Host`` in the folder's ssh_config."""

_START_S = 10.0
_PORT_TRIES = 5


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox that runs: how to reach it and where its things lie."""

    folder: Path
    port: int
    pid: int
    user: str
    root: Path
    python: Path

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"


class Sandbox:
    """The sshd of one folder.

    Args:
        folder: is made when missing; mode 0700.
        path: the search path that commands on the sandbox see; by default ours, so that ``python3`` is the same one.
        note: is told what gets installed, if anything.
    """

    def __init__(self, folder: Path, *, path: str | None = None, note: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder.absolute()
        self._path = path or _search_path()
        self._note = note

    def start(self) -> SandboxInfo:
        """Start sshd, or find it running; the port is the one of last time unless somebody else has taken it.

        Raises:
            GpuopsError: sshd is missing or does not start (the evidence is its log); the folder is none that a host's root may be in.
        """
        if not is_plain(str(self.folder / "root")) or "%" in str(self.folder):
            raise GpuopsError(
                f"a sandbox cannot be in {self.folder}",
                evidence="gpuops' root on it would be a path that not every login shell and sshd takes as it is: letters, digits and _./=:@+,~- only",
                next="gpuops sandbox start --dir /a/plain/path",
                code=Exit.HOST_UNFIT,
                kind="sandbox",
            )
        with self._explained("start"):
            return self._started()

    def _started(self) -> SandboxInfo:
        prerequisites.ensure(self._note)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            running = self.status()
            if running:
                return running
            unrecorded = self._written_identity()
            if unrecorded:
                # Ours by its configuration file, but we died before we could write it down.
                terminate(unrecorded, self._config)
            self._make_keys()
            (self.folder / "root").mkdir(mode=0o700, exist_ok=True)
            return self._launch()

    def stop(self) -> bool:
        """Stop sshd. False when ours was not running; a foreign process with its old id is never touched."""
        if not self.folder.is_dir():
            return False
        with self._explained("stop"), self._locked():
            identity = self._running()
            stopped = identity is not None and terminate(identity, self._config)
            (self.folder / "sshd.pid").unlink(missing_ok=True)
            return stopped

    def status(self) -> SandboxInfo | None:
        """The running sandbox, or None."""
        identity = self._running()
        record = self._record()
        if identity is None or record is None:
            return None
        return self._info(identity, int(str(record["port"])))

    @property
    def _config(self) -> Path:
        return self.folder / "sshd_config"

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """What the system refuses, as an error that a person can act on."""
        try:
            yield
        except (OSError, subprocess.SubprocessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else b""
            full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or b"No space left" in said
            raise GpuopsError(
                f"the sandbox in {self.folder} does not {doing}",
                evidence=said.decode("utf-8", "replace").strip() or str(error),
                next=f"df -h {self.folder.parent}" if full else "gpuops sandbox start --dir another/folder",
                code=Exit.HOST_UNFIT,
                kind="disk_full" if full else "sandbox",
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _running(self) -> Identity | None:
        record = self._record()
        pid = None if record is None else record.get("pid")
        if record is None or not isinstance(pid, int) or pid <= 0:
            return None
        identity = identify(pid, self._config)
        return identity if identity and identity.started == record.get("started") else None

    def _record(self) -> dict[str, object] | None:
        try:
            record = json.loads((self.folder / "sandbox.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        port = record.get("port") if isinstance(record, dict) else None
        return record if type(port) is int and 0 < port < 65536 else None

    def _info(self, identity: Identity, port: int) -> SandboxInfo:
        return SandboxInfo(self.folder, port, identity.pid, _user(), self.folder / "root", _python())

    def _make_keys(self) -> None:
        for name in ("host_key", "client_key"):
            halves = (self.folder / name, self.folder / f"{name}.pub")
            if not all(half.is_file() and half.stat().st_size for half in halves):
                # Of a pair that a full disk has cut nothing can be used, and ssh-keygen would ask whether to overwrite it.
                for half in halves:
                    half.unlink(missing_ok=True)
                argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{ALIAS} {name}", "-f", str(halves[0])]
                subprocess.run(argv, check=True, capture_output=True, timeout=30)
        self._write("authorized_keys", (self.folder / "client_key.pub").read_text(encoding="utf-8"))

    def _launch(self) -> SandboxInfo:
        record = self._record()
        port = int(str(record["port"])) if record else _free_port()
        for _ in range(_PORT_TRIES):
            if _is_free(port):
                self._configure(port)
                identity = self._start_daemon(port)
                if identity:
                    info = self._info(identity, port)
                    self._remember(info, identity)
                    return info
            port = _free_port()
        raise self._failed("sshd found no free port on 127.0.0.1")

    def _configure(self, port: int) -> None:
        key_type, key = (self.folder / "host_key.pub").read_text(encoding="utf-8").split()[:2]
        self._write("known_hosts", f"[127.0.0.1]:{port} {key_type} {key}\n")
        self._write("sshd_config", _sshd_config(self.folder, port, self._path))
        self._write("ssh_config", _ssh_config(self.folder, port))

    def _start_daemon(self, port: int) -> Identity | None:
        """The running sshd; None when another process took the port in the meantime."""
        if os.geteuid() == 0:
            # sshd's privilege separation folder, made at boot on a machine that has a system-wide sshd.
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
        pid_file, log = self.folder / "sshd.pid", self.folder / "sshd.log"
        pid_file.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
        argv = [str(prerequisites.SSHD), "-f", str(self._config), "-E", str(log)]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_START_S, cwd="/"
        )
        if done.returncode != 0:
            raise self._failed("sshd does not start", done.stderr)
        # sshd forks first and binds afterwards: its banner is the event that says it is up.
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            identity = self._written_identity()
            if identity and _has_banner(port):
                return identity
            if log.exists() and "Cannot bind any address" in log.read_text(encoding="utf-8", errors="replace"):
                return None
            time.sleep(0.01)
        raise self._failed(f"sshd does not answer on 127.0.0.1:{port}")

    def _written_identity(self) -> Identity | None:
        try:
            return identify(int((self.folder / "sshd.pid").read_text(encoding="ascii")), self._config)
        except (OSError, ValueError):
            return None

    def _remember(self, info: SandboxInfo, identity: Identity) -> None:
        record = {
            "port": info.port,
            "pid": identity.pid,
            "started": identity.started,
            "user": info.user,
            "root": str(info.root),
            "python": str(info.python),
            "host": ALIAS,
            "ssh_config": str(info.ssh_config),
        }
        self._write("sandbox.json", json.dumps(record, indent=1) + "\n")

    def _write(self, name: str, text: str) -> None:
        temporary = self.folder / f".{name}.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o600)
        temporary.replace(self.folder / name)

    def _failed(self, what: str, evidence: str = "") -> GpuopsError:
        log = self.folder / "sshd.log"
        if log.exists():
            evidence = evidence or log.read_text(encoding="utf-8", errors="replace")
        return GpuopsError(
            what,
            evidence=evidence.strip()[-800:],
            next=f"{prerequisites.SSHD} -t -f {self._config}",
            code=Exit.HOST_UNFIT,
            kind="sandbox",
        )


def _sshd_config(folder: Path, port: int, path: str) -> str:
    return f"""# Written by gpuops; rewritten at every start.
Port {port}
ListenAddress 127.0.0.1
HostKey "{folder}/host_key"
PidFile "{folder}/sshd.pid"
AuthorizedKeysFile "{folder}/authorized_keys"
# sshd would refuse keys below a folder that others may write, such as /tmp; the folder itself is private (mode 0700).
StrictModes no
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin prohibit-password
# PATH: without it a command would see sshd's built-in search path, and another python3 than ours.
# SHLVL: bash reads ~/.bashrc below sshd only as a first-level shell (run_startup_files in shell.c); that file could put another PATH in
# front, and costs what it costs on every command.
SetEnv "PATH={path}" SHLVL=1
Subsystem sftp internal-sftp
MaxStartups 100
MaxSessions 100
LogLevel VERBOSE
"""


def _ssh_config(folder: Path, port: int) -> str:
    return f"""# Written by gpuops; rewritten at every start.
Host {ALIAS}
    HostName 127.0.0.1
    Port {port}
    User {_user()}
    IdentityFile "{folder}/client_key"
    IdentitiesOnly yes
    UserKnownHostsFile "{folder}/known_hosts"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
"""


def _python() -> Path:
    """The interpreter below any virtual environment: the one that a login on this machine would find."""
    return Path(getattr(sys, "_base_executable", sys.executable)).absolute()


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _search_path() -> str:
    ours = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(_python().parent), *ours, "/usr/sbin", "/sbin"]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As sshd does: connections in TIME_WAIT do not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _has_banner(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as link:
            return link.recv(4) == b"SSH-"
    except OSError:
        return False
