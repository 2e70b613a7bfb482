"""A command string means the same to every login shell; sshd runs it as ``SHELL -c STRING``, and so do we here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpuops.transport import plain_command


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "zsh", "fish", "csh", "tcsh"])
@pytest.mark.parametrize(
    "word", ["azAZ09_./=:@%+,~-", "@x", "+x", ",a,b", "a=b", "a:b=c~", "-ISB", "/a/b.pyz", "a%self", "a@b:22"]
)
@pytest.mark.failure_mode("login-shell")
def test_a_plain_word_reaches_the_program_unchanged(shell: str, word: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-c", plain_command(["printf", "_%s", word])], capture_output=True, check=False)
    assert (done.stdout.decode(), done.returncode) == (f"_{word}", 0)


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "csh"])
def test_a_leading_tilde_is_the_home_folder(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-c", plain_command(["echo", "~/.gpuops/agent/x.pyz"])], capture_output=True, check=False)
    assert done.stdout.decode().strip() == str(Path("~/.gpuops/agent/x.pyz").expanduser())
