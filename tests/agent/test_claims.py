"""Claims across services: one holder a port and a GPU, on real supervisors."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import claims
from gpuops_agent.records import LaunchSpec, read_server, server_alive, supervisor_alive
from gpuops_agent.wire import HOST_UNFIT, REFUSED, AgentError
from process_lab import Host, eventually, kill


def of_other(host: Host, *, port: int | None = None, gpus: tuple[str, ...] = ()) -> LaunchSpec:
    """The same server, for another service of the same ROOT."""
    other = host.root.service("other")
    other.release(4).mkdir(parents=True, exist_ok=True)
    spec = host.spec()
    return dataclasses.replace(
        spec, service=other, release=4, log_file=other.server_log(4), port=port or host.port, gpus=list(gpus)
    )


def with_gpus(host: Host, *gpus: str) -> LaunchSpec:
    return dataclasses.replace(host.spec(), gpus=list(gpus))


def refusal(look: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        look()
    assert (caught.value.code, caught.value.kind) == (REFUSED, "claimed")
    return caught.value


@pytest.mark.failure_mode("port-taken")
def test_a_second_service_on_the_same_port_is_refused_and_the_holder_named(host: Host) -> None:
    record = host.launch_spec(host.spec())
    error = refusal(lambda: host.launch_spec(of_other(host)))
    assert error.what == f"port {host.port} belongs to the service demo"
    assert error.evidence.startswith(f"release 1, pid {record.pid};")
    assert "gpuops down --service demo" in error.next


def test_a_refused_launch_starts_nothing_and_leaves_the_holder_alone(host: Host) -> None:
    record = host.launch_spec(host.spec())
    spec = of_other(host)
    refusal(lambda: host.launch_spec(spec))
    assert read_server(spec.service) is None
    eventually(lambda: not supervisor_alive(spec.service))
    assert server_alive(host.service) == record


@pytest.mark.failure_mode("gpu-taken")
def test_one_shared_gpu_is_enough_to_be_refused(host: Host) -> None:
    host.launch_spec(with_gpus(host, "0", "1"))
    error = refusal(lambda: host.launch_spec(of_other(host, port=host.port + 1, gpus=("1", "2"))))
    assert error.what == "GPU 1 belongs to the service demo"


def test_services_on_other_ports_and_gpus_live_side_by_side(host: Host) -> None:
    host.launch_spec(with_gpus(host, "0"))
    other = of_other(host, port=host.port + 1, gpus=("1",))
    record = host.launch_spec(other)
    assert server_alive(other.service) == record
    host.drive({"do": "stop", "root": str(host.root.path), "service": "other", "drain_s": 5.0, "kill_s": 5.0})


def test_the_look_before_a_rollout_refuses_what_a_launch_would(host: Host) -> None:
    record = host.launch_spec(with_gpus(host, "0"))
    other = host.root.service("other")
    assert f"pid {record.pid}" in refusal(lambda: claims.check(other, host.port, [])).evidence
    assert "GPU 0" in refusal(lambda: claims.check(other, None, ["0"])).what


def test_a_service_may_have_what_is_its_own_and_what_nobody_has(host: Host) -> None:
    host.launch_spec(with_gpus(host, "0"))
    claims.check(host.service, host.port, ["0"])
    claims.check(host.root.service("other"), host.port + 1, ["1"])


def test_living_claims_are_listed_with_their_holders(host: Host) -> None:
    record = host.launch_spec(with_gpus(host, "3"))
    told = [{key: each[key] for key in ("kind", "id", "service", "release", "pid")} for each in claims.claims(host.root)]
    holder = {"service": "demo", "release": 1, "pid": record.supervisor.pid}
    assert told == [{"kind": "port", "id": str(host.port), **holder}, {"kind": "gpu", "id": "3", **holder}]


def test_a_stop_frees_the_claims(host: Host) -> None:
    host.launch_spec(with_gpus(host, "0"))
    host.stop()
    assert claims.claims(host.root) == []
    claims.check(host.root.service("other"), host.port, ["0"])


@pytest.mark.failure_mode("lock-left")
def test_a_claim_is_freed_when_its_holder_is_killed_with_its_server(host: Host) -> None:
    record = host.launch_spec(with_gpus(host, "0"))
    kill(record.supervisor.pid)
    kill(record.pid)
    assert claims.claims(host.root) == []
    claims.check(host.root.service("other"), host.port, ["0"])


def test_a_claim_stands_while_the_server_outlives_its_supervisor(host: Host) -> None:
    record = host.launch_spec(with_gpus(host, "0"))
    kill(record.supervisor.pid)
    assert f"pid {record.pid}" in refusal(lambda: claims.check(host.root.service("other"), None, ["0"])).evidence
    refusal(lambda: host.launch_spec(of_other(host)))


@pytest.mark.failure_mode("lock-inherited")
def test_the_server_does_not_inherit_the_claims(host: Host) -> None:
    record = host.launch_spec(with_gpus(host, "0"))
    folder = Path(f"/proc/{record.pid}/fd")
    assert not [name for name in os.listdir(folder) if str(host.root.locks) in os.readlink(folder / name)]


def test_a_claim_whose_owner_is_unreadable_is_somebody_elses(host: Host) -> None:
    host.launch_spec(host.spec())
    (host.root.locks / f"port-{host.port}.json").write_text("{cut")
    refusal(lambda: claims.check(host.root.service("other"), host.port, []))


def test_asking_for_the_claims_does_not_hinder_a_launch(host: Host) -> None:
    host.launch_spec(host.spec())
    host.stop()
    for _ in range(20):
        claims.claims(host.root)
    host.launch_spec(host.spec())
    assert json.loads((host.root.locks / f"port-{host.port}.json").read_text())["release"] == 1


@pytest.mark.parametrize(
    ("said", "ids"),
    [(None, []), ([], []), ([1, 0, 10], ["0", "1", "10"]), (["GPU-8f4-a", "GPU-8f4-a"], ["GPU-8f4-a"])],
)
def test_a_document_names_its_gpus(said: Any, ids: list[str]) -> None:
    assert claims.gpus_of({"gpus": said}) == ids


def test_all_gpus_are_those_that_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("0000:18:00.0", "0000:2a:00.0"):
        (tmp_path / address).mkdir()
    monkeypatch.setattr(claims, "_CARDS", tmp_path)
    assert claims.gpus_of({"gpus": "all"}) == ["0", "1"]


def test_all_gpus_are_those_that_nvidia_smi_lists_where_the_driver_has_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\necho '  MIG 1g.18gb Device 0: (UUID: MIG-1)'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(claims, "_CARDS", tmp_path / "nowhere")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert claims.gpus_of({"gpus": "all"}) == ["0"]


def test_a_host_without_gpus_has_none_to_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_CARDS", tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert claims.gpus_of({"gpus": "all"}) == []


def test_what_is_no_gpu_is_refused() -> None:
    with pytest.raises(AgentError) as caught:
        claims.gpus_of({"gpus": ["../0"]})
    assert caught.value.code == HOST_UNFIT
