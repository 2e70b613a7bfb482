"""`status`, `smoke` and `exec`: looking at a host and asking it, without changing anything."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest
from gpuops_agent import proc, records
from process_lab import bystander, eventually, gone, kill
from rollouts import CAPITAL, Lab

from gpuops.errors import GpuopsError

LISTEN = """
import signal, socket
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", {port}))
s.listen()
signal.pause()
"""


def test_status_of_a_service_that_never_was_is_absent(lab: Lab) -> None:
    entry = lab.status()
    assert (entry["state"], entry["release"], entry["server"], entry["known_good"]) == ("absent", None, None, None)


def test_status_names_every_state_of_a_service(lab: Lab) -> None:
    served = lab.good().outcome
    running = lab.status()
    assert (running["state"], running["release"], running["release_state"]["state"]) == ("running", 1, "good")
    assert running["server"]["listening"] and running["server"]["supervised"] and running["server"]["pid"] == served["pid"]
    assert any(process["title"].startswith("sglang::scheduler") for process in running["server"]["processes"])
    assert running["last_operation"]["outcome"] == "promoted"
    scheduler = next(each["pid"] for each in running["server"]["processes"] if each["title"].startswith("sglang::"))
    kill(scheduler)
    degraded = eventually(lambda: (entry := lab.status())["state"] == "degraded" and entry)
    assert degraded["server"]["lost"][0]["pid"] == scheduler
    kill(served["pid"])
    died = eventually(lambda: (entry := lab.status())["state"] == "died" and entry["exit"] and entry)
    assert (died["exit"]["signal"], died["exit"]["last_lost_rank"]["pid"]) == (signal.SIGKILL, scheduler)
    lab.down()
    assert lab.status()["state"] == "stopped"


def test_status_names_a_foreign_process_on_the_port_of_a_stopped_server(lab: Lab) -> None:
    served = lab.good().outcome
    kill(served["pid"])
    eventually(lambda: not records.supervisor_alive(lab.service))
    with bystander(sys.executable, "-c", LISTEN.format(port=served["port"])) as foreign:
        told = eventually(lambda: lab.status()["foreign"])
        assert told.startswith(f"pid {foreign.pid}: ")


@pytest.mark.failure_mode("healthy-but-dead")
def test_status_with_check_asks_for_a_generation(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    assert lab.status(check=True)["check"] == {"state": "serving", "evidence": "generated 'Paris'"}
    identity = proc.identify(pid)
    assert identity is not None
    proc.send(identity, signal.SIGSTOP)
    hung = lab.status(check=True, timeout_s=0.5)["check"]
    proc.send(identity, signal.SIGCONT)
    assert hung["state"] == "hung" and "is stopped (state T)" in hung["evidence"]


@pytest.mark.failure_mode("healthy-but-dead")
def test_smoke_tells_right_from_wrong_from_down(lab: Lab) -> None:
    pid = lab.good().outcome["pid"]
    right = lab.agent.call("smoke", service="demo")
    assert (right["verdict"], right["passed"], [each["name"] for each in right["results"]]) == (
        "right",
        True,
        ["capital", "again"],
    )
    rome: dict[str, Any] = {**CAPITAL, "expect": {"contains": "Rome"}}
    wrong = lab.agent.call("smoke", service="demo", probes=[rome])
    assert (wrong["verdict"], wrong["passed"], wrong["results"][0]["answer"]) == ("wrong", False, "Paris")
    identity = proc.identify(pid)
    assert identity is not None
    proc.send(identity, signal.SIGSTOP)
    down = lab.agent.call("smoke", service="demo", timeout_s=0.5)
    proc.send(identity, signal.SIGCONT)
    assert (down["verdict"], down["results"], down["check"]["state"]) == ("down", [], "hung")


def test_smoke_without_a_server_says_so(lab: Lab) -> None:
    with pytest.raises(GpuopsError) as none:
        lab.agent.call("smoke", service="demo")
    assert none.value.kind == "not_running"


def run(lab: Lab, *argv: str, **args: Any) -> tuple[int, str, str]:
    texts: dict[str, str] = {"out": "", "err": ""}

    def hear(event: Any) -> None:
        texts[event["event"]] += event["text"]

    status = lab.agent.call("exec", on_event=hear, argv=list(argv), **args)["status"]
    return status, texts["out"], texts["err"]


def test_exec_passes_both_streams_and_the_status_on(lab: Lab) -> None:
    assert run(lab, "sh", "-c", "echo out; echo fehlt: ü >&2; exit 3") == (3, "out\n", "fehlt: ü\n")
    assert run(lab, "printf", "%s", "a b'c\"$HOME") == (0, "a b'c\"$HOME", "")


def test_exec_gives_a_signal_as_a_shell_does(lab: Lab) -> None:
    assert run(lab, "sh", "-c", "kill -KILL $$")[0] == 128 + signal.SIGKILL


def test_exec_of_a_command_that_does_not_exist_is_an_error(lab: Lab) -> None:
    with pytest.raises(GpuopsError) as missing:
        run(lab, "no-such-command")
    assert missing.value.kind == "exec" and "no-such-command" in missing.value.what


def test_exec_in_the_runtime_uses_its_interpreter(lab: Lab) -> None:
    lab.good()
    out = run(lab, "python", "-c", "import sys, os; print(sys.executable, os.environ['LAB'])", service="demo", runtime=True)[1]
    assert out.split() == [f"{lab.runtime}/bin/python", str(lab.folder)]


@pytest.mark.parametrize(("child", "parent"), [("trap '' TERM; ", ""), ("", "exec >&- 2>&-; ")], ids=["deaf child", "no output"])
def test_exec_ends_a_command_and_its_children_at_the_timeout(lab: Lab, child: str, parent: str) -> None:
    pids = lab.folder / "pids"
    # A child that ignores TERM outlives its parent, which does not; a command without streams gives nothing to wait on.
    script = f"({child}exec sleep 600) & echo $! $$ > {pids}; {parent}wait"
    with pytest.raises(GpuopsError) as late:
        run(lab, "sh", "-c", script, timeout=0.3)
    assert (late.value.code, late.value.kind) == (12, "timeout")
    assert all(gone(int(pid)) for pid in pids.read_text().split())
