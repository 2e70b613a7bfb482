"""Secrets: kept in one place, given to the server alone, and taken out of everything that leaves the host."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from gpuops_agent.logs import CHUNK_BYTES
from gpuops_agent.paths import Root
from gpuops_agent.vault import Redactor
from rollouts import Lab

VALUE = "s3cr3t-value-of-the-key"


def keep(lab: Lab, **values: str) -> None:
    assert lab.agent.call("secret", values=values) == {"stored": sorted(values)}


def test_a_secret_is_a_file_that_only_we_can_read(lab: Lab) -> None:
    keep(lab, KEY=VALUE + "\n")
    path = lab.root.secrets / "KEY"
    assert path.read_text() == VALUE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(lab.root.secrets.stat().st_mode) == 0o700


def test_a_secret_reaches_the_server_and_is_nowhere_else(lab: Lab) -> None:
    keep(lab, KEY=VALUE)
    order = lab.order(
        "--api-key", "@{secret:KEY}", env={"KEY": "@{secret:KEY}"}, secret_names=("KEY",), auth="Bearer @{secret:KEY}"
    )
    played = lab.play(order)
    # The probes were answered, so the key was right, and so was the header.
    assert played.name == "promoted", played.outcome
    assert f"KEY={VALUE}".encode() in Path(f"/proc/{played.outcome['pid']}/environ").read_bytes().split(b"\0")
    holders = [path for path in lab.path.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert holders == [lab.root.secrets / "KEY"]
    assert VALUE not in json.dumps([played.outcome, played.events, lab.status(), lab.history()])


def test_a_secret_that_the_server_prints_is_taken_out_of_logs_probes_and_outcomes(lab: Lab) -> None:
    keep(lab, KEY=VALUE)
    played = lab.up("--betray", "KEY", env={"KEY": "@{secret:KEY}"}, secret_names=("KEY",))
    assert played.name == "promoted"
    assert "Paris, by <secret KEY>" in [probe["answer"] for probe in played.all("probe")]
    text, _ = lab.logs()
    assert "the key is <secret KEY>, do not tell" in text and VALUE not in text
    died = lab.up("--betray", "KEY", "--die", "launch=1", env={"KEY": "@{secret:KEY}"}, secret_names=("KEY",))
    assert VALUE not in json.dumps([died.outcome, died.events, lab.history()])
    holders = [path.name for path in lab.service.path.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert set(holders) == {"server.log", "server.log.1"}


def test_a_secret_is_redacted_wherever_a_chunk_of_the_log_ends(lab: Lab) -> None:
    keep(lab, KEY=VALUE)
    lab.good()
    lab.down()
    log = lab.service.server_log(1)
    for shift in (1, len(VALUE) // 2, len(VALUE) - 1, len(VALUE)):
        # One line without an end, longer than a chunk, with the value across the chunk's end.
        log.write_bytes(b"x" * (CHUNK_BYTES - shift) + VALUE.encode() + b" tail")
        text, result = lab.logs(release=1)
        assert text == "x" * (CHUNK_BYTES - shift) + "<secret KEY> tail"
        assert result["offset"] == log.stat().st_size


def test_half_a_line_of_a_living_server_is_not_shown_before_it_is_whole(lab: Lab) -> None:
    keep(lab, KEY=VALUE)
    lab.good()
    with lab.service.server_log(1).open("a") as log:
        log.write(f"whole\n{VALUE[:10]}")
    text, result = lab.logs()
    assert text.endswith("whole\n")
    with lab.service.server_log(1).open("a") as log:
        log.write(f"{VALUE[10:]}\n")
    assert lab.logs(offset=result["offset"])[0] == "<secret KEY>\n"


def test_of_two_secrets_one_inside_the_other_the_longer_wins(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.secrets.mkdir()
    (root.secrets / "LONG").write_text("abcdefgh")
    (root.secrets / "SHORT").write_text("cdef")
    (root.secrets / "TINY").write_text("a")
    redact = Redactor(root)
    assert redact("abcdefgh cdef a") == "<secret LONG> <secret SHORT> a"
