"""Making a remote folder equal to a local one: rsync where both sides have it, else a tar stream."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuops.errors import GpuopsError
from gpuops.transport.base import PushStats, plain_command
from gpuops.transport.channel import CHUNK, ChannelTransport, outcome_unknown

_MISSING = 127  # a shell's status for a command that is not there
_SHORT_S = 60.0


@dataclass(frozen=True)
class RemoteShell:
    """How rsync reaches the host.

    Args:
        words: ``ssh`` and its options; asked for at the last moment, when a shared connection may have come up.
        host: the name that ssh is given.
        failure: the typed error for a connection that was lost or never made.
    """

    words: Callable[[], Sequence[str]]
    host: str
    failure: Callable[[], GpuopsError]


def push(
    transport: ChannelTransport,
    shell: RemoteShell | None,
    source: Path,
    destination: str,
    *,
    link_dest: str | None,
    timeout: float,
) -> PushStats:
    """Make ``destination`` equal to ``source``; see :meth:`gpuops.transport.base.Transport.push`.

    Args:
        shell: None when the destination is on this machine.

    Raises:
        ValueError: a path that is not absolute.
        GpuopsError: a path that the login shell would interpret; rsync or tar failed, with its last words as evidence. Pushing again is always right.
    """
    for path in filter(None, (destination, link_dest)):
        _check(path)
        if shell is not None:
            plain_command([path])
    if not source.is_dir():
        raise GpuopsError(f"{source} is no folder", evidence="only a folder can be pushed", kind="push")
    deadline = time.monotonic() + timeout
    if shutil.which("rsync"):
        _must(transport, ["mkdir", "-p", destination], _SHORT_S)
        stats = _rsync(transport, shell, source, destination, link_dest, deadline)
        if stats:
            return stats
    return _tar(transport, source, destination, deadline)


def rsync_argv(shell_words: Sequence[str], host: str | None, destination: str, link_dest: str | None) -> list[str]:
    """The rsync command, to be run in the source folder: its path may hold characters that rsync reads as a host."""
    argv = ["rsync", "-rlpt", "--delete", "--stats"]
    if link_dest is not None:
        # By content: files of builds often have equal sizes and equal, fixed times, and rsync's quick check would link the old ones.
        argv += ["--checksum", f"--link-dest={link_dest}"]
    if host is None:
        return [*argv, "./", f"{destination}/"]
    where = f"[{host}]" if ":" in host else host
    return [*argv, "-e", quote_for_rsync(shell_words), "./", f"{where}:{destination}/"]


def quote_for_rsync(words: Sequence[str]) -> str:
    """A command for ``rsync -e``, which splits at blanks and knows quotes, doubled inside quotes, but no backslashes (rsync(1))."""
    return " ".join("'" + word.replace("'", "''") + "'" if set(word) & set(" '\"\t") else word for word in words)


def tar_chunks(source: Path, counted: Callable[[int], None] = lambda size: None) -> Iterator[bytes]:
    """The tree as a tar stream, made as it is read, so its size does not matter. ``counted`` hears of every piece of file data."""
    for path in [source, *_walk(source)]:
        info = _header(path, source)
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if not info.isreg():
            continue
        left = info.size
        with path.open("rb") as file:
            while left and (data := file.read(min(CHUNK, left))):
                left -= len(data)
                counted(len(data))
                yield data
        if left:
            raise GpuopsError(f"{path} became shorter while it was read", kind="push")
        yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _check(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not path.startswith("/") or len(parts) < 3 or ".." in parts:
        raise ValueError(f"{path!r} is not an absolute path at least two folders deep")


def _must(transport: ChannelTransport, argv: list[str], timeout: float) -> None:
    done = transport.run(argv, timeout=timeout)
    if done.status != 0:
        raise GpuopsError(
            f"{argv[0]} failed on {transport.name}",
            evidence=done.stderr.decode("utf-8", "replace").strip()[-400:],
            next=f"look at {argv[-1]} on {transport.name}",
            kind="push",
        )


def _rsync(
    transport: ChannelTransport, shell: RemoteShell | None, source: Path, destination: str, link_dest: str | None, deadline: float
) -> PushStats | None:
    """What rsync moved; None when the other side has no rsync."""
    argv = rsync_argv(shell.words() if shell else (), shell.host if shell else None, destination, link_dest)
    try:
        done = subprocess.run(
            argv,
            cwd=source,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=max(0.0, deadline - time.monotonic()),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise outcome_unknown(transport.name, "the push did not end in time", "pushing again goes on where it stopped") from None
    if done.returncode == 0:
        return PushStats(_count_files(source), _literal_bytes(done.stdout), "rsync")
    if done.returncode == 255 and shell:
        raise shell.failure()
    if shell and transport.run(["rsync", "--version"], timeout=_SHORT_S).status == _MISSING:
        return None
    raise GpuopsError(
        f"rsync to {transport.name} failed",
        evidence=done.stderr.strip()[-800:],
        next="run the same command again; what was sent is kept",
        kind="push",
    )


def _literal_bytes(stats: str) -> int:
    """File data that crossed the link: ``Literal data: 1,234 bytes``; parts that rsync found on the other side are not in it."""
    match = re.search(r"^Literal data: ([\d,.]+) ", stats, re.MULTILINE)
    return int(re.sub(r"\D", "", match[1])) if match else 0


def _count_files(source: Path) -> int:
    return sum(1 for path in _walk(source) if not path.is_dir() or path.is_symlink())


def _tar(transport: ChannelTransport, source: Path, destination: str, deadline: float) -> PushStats:
    """Replace the folder by a tar stream. Files that are gone from the source must go there too, so it starts from nothing."""
    _must(transport, ["rm", "-rf", destination], _SHORT_S)
    _must(transport, ["mkdir", "-p", destination], _SHORT_S)
    sent = 0

    def counted(size: int) -> None:
        nonlocal sent
        sent += size

    # -p: modes as they are, whatever the umask; -o: files belong to who unpacks them (the same letters in GNU, BSD and busybox tar).
    done = transport.run_fed(
        ["tar", "-xpof", "-", "-C", destination], tar_chunks(source, counted), timeout=max(0.0, deadline - time.monotonic())
    )
    if done.status != 0:
        evidence = done.stderr.decode("utf-8", "replace").strip()[-800:]
        raise GpuopsError(f"tar on {transport.name} failed", evidence=evidence, next="run the same command again", kind="push")
    return PushStats(_count_files(source), sent, "tar")


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder, in order, symlinks not followed; what is neither file, folder nor symlink is left out, as by rsync."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
            yield Path(entry.path)
        if stat.S_ISDIR(mode):
            yield from _walk(Path(entry.path))


def _header(path: Path, source: Path) -> tarfile.TarInfo:
    status = path.lstat()
    info = tarfile.TarInfo(path.relative_to(source).as_posix())
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = status.st_mtime
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    else:
        info.size = status.st_size
    return info
