"""doctor: what it prints, and how it ends."""

from __future__ import annotations

import json

import pytest

from gpuops.report import doctor as report
from gpuops.report.style import PLAIN

HOST = ("--host", "gpu-box")


def check(state, name="disk", group="host", what="the disk has room", evidence="9 MiB free", next="df -h /"):
    return {"group": group, "name": name, "state": state, "what": what, "evidence": evidence, "next": next}


def told(*checks):
    return {"checks": list(checks), "failed": sum(each["state"] == "fail" for each in checks)}


def test_checks_are_grouped_and_only_what_is_not_well_is_explained():
    result = told(
        check("warn", name="linger", group="start", what="ann does not linger", evidence="", next="loginctl enable-linger ann"),
        check("ok"),
        check("fail", name="inodes", what="inodes run out", evidence="0 of 9 free", next=""),
        check("unknown", name="Xid", group="GPU", what="could not be found out", evidence="dmesg: not permitted", next=""),
    )
    assert report.lines(result, "gpu-box", PLAIN) == [
        "start",
        "  ! linger: ann does not linger",
        "      next: loginctl enable-linger ann",
        "host",
        "  ✓ disk: the disk has room",
        "  ✗ inodes: inodes run out",
        "      0 of 9 free",
        "GPU",
        "  ? Xid: could not be found out",
        "      dmesg: not permitted",
        "gpu-box: 1 failed, 1 to watch, 1 unknown, 1 well",
    ]


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("unknown", 0), ("fail", 13)])
def test_only_a_check_that_fails_is_an_exit_code(gpuops, agent, state, code):
    agent(doctor=told(check(state), check("ok")))
    assert gpuops("doctor", *HOST).code == code


def test_quiet_leaves_out_what_is_well(gpuops, agent):
    agent(doctor=told(check("ok"), check("warn", name="inodes", what="inodes run out")))
    said = gpuops("doctor", *HOST, "-q").out
    assert "disk" not in said and "! inodes" in said and "1 to watch, 1 well" in said


def test_json_is_what_the_agent_said(gpuops, agent):
    result = told(check("fail"))
    agent(doctor=result)
    said = gpuops("doctor", *HOST, "--json")
    assert (json.loads(said.out), said.code) == (result, 13)


def test_the_service_and_the_port_are_asked_about(gpuops, agent):
    fake = agent(doctor=told())
    gpuops("doctor", *HOST, "--service", "svc", "--port", "30000")
    assert fake.calls == [("doctor", {"service": "svc", "port": 30000, "collective": False})]


def test_the_ranks_add_up_numbers_where_somebody_asks(gpuops, agent):
    fake = agent(doctor=told())
    gpuops("doctor", *HOST, "--collective")
    assert fake.calls[0][1]["collective"] is True


def test_a_port_that_is_none_is_a_usage_error(gpuops, agent):
    agent()
    assert gpuops("doctor", *HOST, "--port", "70000").code == 2
