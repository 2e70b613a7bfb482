"""Running verbs in this process, against a fake session, in a folder and a state folder of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import Said, session
from typer.testing import CliRunner

from gpuops.cli import places
from gpuops.cli.app import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; nothing of the user's own state is seen or touched."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("GPUOPS_PLAYBOOK", raising=False)
    return work


@pytest.fixture
def gpuops() -> Callable[..., Said]:
    """Runs a command line: ``gpuops("status", "--json")``."""

    def run(*words: str) -> Said:
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Puts a fake agent behind every connection: ``fake = agent(status=..., logs=...)``."""

    def install(service: str = "svc", port: int = 0, **answers: Any) -> Any:
        made = session(answers, service, port)
        monkeypatch.setattr(places, "session", lambda target, where, talk: made)
        return made.agent

    return install
