"""Files of trials on this machine: written whole or not at all, and an error with its cure when that cannot be."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuops.errors import GpuopsError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What writes ``path``. Raises GpuopsError for an OSError: a full disk, a folder that is not ours."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise GpuopsError(
            f"{path} cannot be written" + (": the disk is full" if full else ""),
            evidence=str(error),
            next=f"df -h {path.parent}" if full else f"ls -ld {path.parent}",
            kind="disk_full" if full else "io_error",
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Replace a file, durably. Raises GpuopsError; the old content stands then, and nothing else is left."""
    incoming = path.with_name(f"{path.name}.{os.getpid()}")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with incoming.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            incoming.replace(path)
        except OSError:
            _forget(incoming)
            raise


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """A folder to write into, which becomes ``final`` (in the place of an old one) at the end of the block; after a failure nothing of it is left.

    Raises:
        GpuopsError: it cannot be written.
    """
    incoming, old = (final.with_name(f".{final.name}.{word}") for word in ("incoming", "old"))
    with writing(final):
        try:
            for left in (incoming, old):
                shutil.rmtree(left, ignore_errors=True)
            incoming.mkdir(parents=True)
            yield incoming
            if not final.exists():
                incoming.rename(final)
                return
            final.rename(old)
            try:
                incoming.rename(final)
            except OSError:
                old.rename(final)
                raise
        finally:
            for left in (incoming, old):
                shutil.rmtree(left, ignore_errors=True)


def _forget(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # The folder is none, or cannot be written: then there is nothing to remove either.
        return
