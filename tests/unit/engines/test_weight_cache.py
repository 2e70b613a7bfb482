"""`model.keep: engine`: weights that the engine itself keeps on the cards, in the versions that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.engines import facts
from gpuops.errors import PlaybookError
from gpuops.playbook.loader import load
from gpuops.rollout.desired import order

PLAYBOOK = """\
service: demo
host: gpu-box
runtime: {path: /opt/venv}
model: {path: /models/m%s}
engine: {name: sglang, version: %s}
server: {flags: {tp: 2}}
"""


def argv(tmp_path: Path, keep: str, version: str = "0.5.23", *, flags: str = "tp: 2") -> list[str]:
    path = tmp_path / "playbook.yaml"
    path.write_text((PLAYBOOK % (keep, version)).replace("tp: 2", flags))
    words: list[str] = order(load(path))["candidate"]["argv"]
    return words


def test_it_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert "--weight-cache-mode" not in argv(tmp_path, "")


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.23"])
def test_the_server_becomes_a_client_of_the_engines_cache(tmp_path: Path, version: str) -> None:
    words = argv(tmp_path, ", keep: engine", version)
    assert words[words.index("--weight-cache-mode") + 1] == "client" and words[-2:] == ["--tp", "2"]


@pytest.mark.parametrize("version", ["0.5.13", "0.5.15.post1", "0.5.18"])
def test_a_version_without_one_is_refused_with_the_first_that_has_it(tmp_path: Path, version: str) -> None:
    with pytest.raises(PlaybookError) as refused:
        argv(tmp_path, ", keep: engine", version)
    assert refused.value.what == f"sglang {version} has no cache of weights on the cards"
    assert "since 0.5.19" in refused.value.evidence and "model.warm" in refused.value.next


@pytest.mark.parametrize("flag", ["speculative-algorithm: EAGLE3", "weight-cache-mode: daemon"])
def test_what_does_not_go_with_it_is_refused(tmp_path: Path, flag: str) -> None:
    with pytest.raises(PlaybookError, match="exclude each other in sglang"):
        argv(tmp_path, ", keep: engine", flags=flag)


def test_a_flag_that_is_switched_off_is_none(tmp_path: Path) -> None:
    assert "--weight-cache-mode" in argv(tmp_path, ", keep: engine", flags="speculative-algorithm: null")


def test_an_engine_without_any_says_so() -> None:
    known = facts("sglang", "0.5.23").weight_cache
    with pytest.raises(PlaybookError) as refused:
        type(known)("other 1.0", None, (), None).with_flags({})
    assert "no version is known to have one" in refused.value.evidence
