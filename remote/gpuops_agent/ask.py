"""Asking a program of the host for a text, never waiting longer than a deadline: a driver in trouble hangs its own tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import List, Optional

# Where nvidia-smi lies besides PATH, which is short in an ssh command: NVIDIA's container images, WSL.
_FOLDERS = ("/usr/bin", "/usr/sbin", "/sbin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")


class Silent(Exception):
    """The program is not there, failed, or did not end in time; the text says which."""


def where(program: str) -> Optional[str]:
    """The program's path, or None when it is not installed."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS]))


def output(argv: List[str], timeout: float) -> str:
    """What the program writes to stdout.

    Args:
        timeout: seconds. A program that hangs in the kernel is killed and left: to wait for its end could take for ever.
    Raises:
        Silent
    """
    path = where(argv[0])
    if path is None:
        raise Silent(f"{argv[0]} is not installed")
    try:
        # The plain words of the C locale are the ones that are parsed.
        process = subprocess.Popen(
            [path, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise Silent(f"{path}: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Silent(f"{' '.join(argv)} did not answer within {timeout:g} s") from None
    if process.returncode != 0:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        raise Silent(f"{' '.join(argv)} ended with status {process.returncode}" + (f": {said[-1]}" if said else ""))
    return out.decode("utf-8", "replace")
