"""The `logs` verb: a server's own words, by offset, by lines, and as they come."""

from __future__ import annotations

import threading

import pytest
from process_lab import eventually
from rollouts import Lab

from gpuops.errors import GpuopsError


def test_logs_give_the_whole_log_or_its_last_lines(lab: Lab) -> None:
    lab.good()
    lab.down()
    whole, result = lab.logs(release=1)
    assert whole == lab.service.server_log(1).read_text()
    assert result == {"release": 1, "offset": len(whole)}
    assert lab.logs(release=1, lines=2)[0] == "".join(whole.splitlines(keepends=True)[-2:])
    assert lab.logs(release=1, lines=0)[0] == ""


@pytest.mark.failure_mode("log-grows")
def test_logs_go_on_from_an_offset(lab: Lab) -> None:
    lab.good()
    lab.down()
    log = lab.service.server_log(1)
    offset = lab.logs(release=1)[1]["offset"]
    with log.open("a") as file:
        file.write("later\n")
    assert lab.logs(release=1, offset=offset) == ("later\n", {"release": 1, "offset": offset + 6})


def test_following_a_log_shows_what_comes_and_ends_with_the_server(lab: Lab) -> None:
    lab.good()
    heard: list[str] = []
    ended: list[dict[str, object]] = []

    def follow() -> None:
        ended.append(lab.agent.call("logs", on_event=lambda event: heard.append(event["text"]), service="demo", follow=True))

    threading.Thread(target=follow, daemon=True).start()
    eventually(lambda: "fired up" in "".join(heard), "what was there")
    with lab.service.server_log(1).open("a") as file:
        file.write("news\n")
    eventually(lambda: "news\n" in "".join(heard), "what came")
    lab.down()
    assert eventually(lambda: ended)[0]["release"] == 1
    assert "".join(heard) == lab.service.server_log(1).read_text()


def test_logs_of_nothing_say_what_is_missing(lab: Lab) -> None:
    with pytest.raises(GpuopsError) as none:
        lab.logs()
    assert none.value.kind == "no_release"
    lab.good()
    with pytest.raises(GpuopsError) as missing:
        lab.logs(release=7)
    assert missing.value.kind == "no_log" and "releases/7/server.log" in missing.value.evidence
