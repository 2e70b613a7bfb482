"""adopt, lock and unlock: what they ask of the host, what they print, and how they end."""

from __future__ import annotations

import pytest
from cli_fakes import service_status

from gpuops.errors import Exit, GpuopsError
from gpuops.report import status as status_report
from gpuops.report.style import PLAIN
from gpuops.rollout import who

HOST = ("--host", "gpu-box")
BARE = (*HOST, "--service", "svc", "--engine-version", "0.5.23")
ADOPTED = {
    "service": "svc",
    "release": 0,
    "pid": 77,
    "port": 30000,
    "model": "/models/llm",
    "served_model_name": "llm",
    "engine": "sglang 0.5.23",
    "secrets": ["ADOPTED_API_KEY"],
    "notes": ["its parent (pid 9: sh) may start it again when it is stopped"],
}
LOCK = {"by": "ann@laptop", "reason": "measuring", "at": 1880.0}

PLAYBOOK = """
service: svc
host: gpu-box
engine: {name: sglang, version: 0.5.23}
runtime: {path: /opt/venv}
model: {path: /models/llm}
server: {port: 30000}
probes: [{name: capital, ask: "The capital of France?", expect: {contains: Paris}}]
gpus: [0, 1]
"""


def test_an_adoption_is_told_in_a_few_lines(gpuops, agent):
    agent(adopt=ADOPTED)
    said = gpuops("adopt", "--port", "30000", *BARE)
    assert said.code == 0
    assert said.out.splitlines() == [
        "svc on gpu-box: adopted pid 77 as release 0, known-good",
        "  sglang 0.5.23, /models/llm, port 30000",
        "  secrets kept on the host: ADOPTED_API_KEY",
    ]
    assert "may start it again" in said.err


def test_json_is_the_agents_answer(gpuops, agent):
    agent(adopt=ADOPTED)
    assert gpuops("adopt", "--json", "--pid", "77", *BARE).objects == [ADOPTED]


def test_without_a_playbook_the_engine_is_known_by_its_version(gpuops, agent):
    fake = agent(adopt=ADOPTED)
    gpuops("adopt", "--pid", "77", *BARE)
    ((verb, args),) = fake.calls
    assert (verb, args["service"], args["pid"], args["port"], args["by"]) == ("adopt", "svc", 77, None, who.me())
    assert (args["engine"]["version"], args["probes"], args["gpus"]) == ("0.5.23", [], None)
    assert args["deadlines"]["generate_s"] > 0


def test_a_playbook_says_engine_probes_gpus_and_port(gpuops, agent, folder):
    (folder / "gpuops.yaml").write_text(PLAYBOOK)
    fake = agent(adopt=ADOPTED)
    assert gpuops("adopt").code == 0
    args = fake.calls[0][1]
    assert (args["service"], args["port"], args["pid"], args["gpus"]) == ("svc", 30000, None, [0, 1])
    assert [probe["name"] for probe in args["probes"]] == ["capital"]


def test_a_pid_goes_before_the_playbooks_port(gpuops, agent, folder):
    (folder / "gpuops.yaml").write_text(PLAYBOOK)
    fake = agent(adopt=ADOPTED)
    gpuops("adopt", "--pid", "77")
    assert (fake.calls[0][1]["pid"], fake.calls[0][1]["port"]) == (77, None)


def test_the_running_version_may_differ_from_the_playbooks(gpuops, agent, folder):
    (folder / "gpuops.yaml").write_text(PLAYBOOK)
    fake = agent(adopt=ADOPTED)
    gpuops("adopt", "--engine-version", "0.5.22")
    assert fake.calls[0][1]["engine"]["version"] == "0.5.22"


@pytest.mark.parametrize(
    ("words", "missing"),
    [((*HOST, "--service", "svc"), "--engine-version VERSION"), ((*HOST, "--engine-version", "0.5.23"), "--service NAME")],
)
def test_without_a_playbook_service_and_version_must_be_said(gpuops, words, missing):
    said = gpuops("adopt", "--port", "30000", *words)
    assert said.code == Exit.USAGE
    assert missing in said.err


def test_a_refused_adoption_ends_with_its_code(gpuops, agent):
    agent(adopt=GpuopsError("it does not generate", evidence="HTTP 503", code=Exit.REFUSED))
    said = gpuops("adopt", "--pid", "77", *BARE)
    assert said.code == Exit.REFUSED
    assert "HTTP 503" in said.err


def test_a_lock_needs_a_reason(gpuops, agent):
    agent()
    said = gpuops("lock", *HOST)
    assert said.code == Exit.USAGE
    assert "--reason" in said.err


def test_a_lock_carries_who_and_why(gpuops, agent):
    fake = agent(lock={"service": "svc", "locked": LOCK, "running": None})
    said = gpuops("lock", "--reason", "measuring", *HOST)
    assert fake.calls == [("lock", {"service": "svc", "by": who.me(), "reason": "measuring"})]
    assert said.out == "svc is locked by ann@laptop: measuring\n"


def test_a_lock_tells_of_a_rollout_that_goes_on(gpuops, agent):
    agent(lock={"service": "svc", "locked": LOCK, "running": "op-7"})
    assert "operation op-7 runs" in gpuops("lock", "--reason", "measuring", *HOST).err


@pytest.mark.parametrize(("held", "line"), [(LOCK, "svc is unlocked; it was ann@laptop's\n"), (None, "svc was not locked\n")])
def test_an_unlock_says_whose_lock_it_was(gpuops, agent, held, line):
    fake = agent(unlock={"service": "svc", "unlocked": held})
    assert gpuops("unlock", "--force", *HOST).out == line
    assert fake.calls[0][1]["force"] is True


def test_status_shows_a_persons_lock_and_the_claimed_gpus():
    lines = status_report.lines(service_status(person_lock=LOCK, gpus=["0", "1"]), "gpu-box", 2000.0, PLAIN)
    assert "  locked      by ann@laptop, 2 min ago: measuring; gpuops unlock removes it" in lines
    assert "  gpus        0, 1" in lines
