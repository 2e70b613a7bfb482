"""Files that survive a crash: written whole or not at all, and read without ever failing on garbage."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Dict, Optional, Union

from .wire import HOST_UNFIT, AgentError


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: temporary file beside it, fsync, rename, fsync of the folder.

    Raises:
        AgentError: the disk is full (exit code 5); nothing is left behind, the old content stands.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(error, path) from error
    sync_folder(path.parent)


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """:func:`write_bytes` of indented JSON."""
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape"), mode)


def append_line(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Append one line in one write, whole or not at all; ``durable`` waits for the disk.

    A file that a crash left with half a line gets a line break first: the half is lost, this line is not.

    Raises:
        AgentError: the disk is full (exit code 5).
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            end = os.fstat(fd).st_size
            if end and os.pread(fd, 1, end - 1) != b"\n":
                data = b"\n" + data
            if os.write(fd, data) < len(data):
                # The disk took a part: half a line would spoil the next one.
                os.ftruncate(fd, end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise disk_error(error, path) from error


def read_json(path: Path) -> Optional[Dict[str, Any]]:
    """The JSON object in ``path``; None when there is no such file, or when it is unreadable.

    An unreadable file (empty, cut, not an object) is kept aside as ``<name>.unreadable`` for a person to look at: it is unknown, never a crash.
    """
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    try:
        os.replace(path, path.with_name(path.name + ".unreadable"))
    except OSError:
        pass
    return None


def switch_link(link: Path, target: Union[str, Path]) -> None:
    """Point the symlink ``link`` at ``target`` in one step (``rename`` over the old one)."""
    temporary = link.with_name(f".{link.name}.{os.urandom(4).hex()}.tmp")
    try:
        os.symlink(target, temporary)
        os.replace(temporary, link)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(error, link) from error
    sync_folder(link.parent)


def sha256(path: Path) -> str:
    """sha256 of a file, in hex."""
    import hashlib  # most calls of the agent hash nothing

    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def disk_error(error: OSError, path: Path) -> AgentError:
    """An OSError on ``path`` as an error that a person can act on."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AgentError(
            f"the host's disk is full: could not write {path}",
            evidence=str(error),
            next=f"free space on the host (df -h {path.parent}), then run the same command again",
            code=HOST_UNFIT,
            kind="disk_full",
        )
    return AgentError(f"could not write {path}", evidence=str(error), code=HOST_UNFIT, kind="io_error")
