"""Webhooks, against a real HTTP server on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import PlaybookError
from gpuops.rollout import notify
from gpuops.rollout.notify import Webhook

SECRET = "s3cr3t-v4lue"
PLAYBOOK = """\
service: demo
host: gpu-box
env: [CHAT]
secrets: [HOOK]
notify:
  - {webhook: "https://chat.example.com/${HOOK}", on: [failed]}
  - {webhook: "http://${CHAT}/"}
"""
PROMOTED = {"outcome": "promoted", "code": 0, "release": 7, "op": "op-1"}
RESTORED = {
    "outcome": "restored",
    "code": 10,
    "release": 7,
    "failed": 8,
    "reason": "it died",
    "evidence": "CUDA out of memory",
    "op": "op-2",
}


class Receiver:
    """Answers with the statuses that it is given, the last one for ever; ``None`` is no answer at all."""

    def __init__(self) -> None:
        self.statuses: list[int | None] = [200]
        self.heard: list[dict[str, Any]] = []
        self.let_go = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status = receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0]
                if status is None:
                    receiver.let_go.wait(30)
                    return
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.let_go.set()
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "FIRST_WAIT_S", 0)
    monkeypatch.setenv("NO_PROXY", "*")


def send(url: str, outcome: dict[str, Any], on: tuple[str, ...] = ("promoted", "restored", "failed")) -> list[str]:
    warnings: list[str] = []
    notify.send((Webhook("notify.0", url, on),), outcome, "demo", "gpu-box", warnings.append)
    return warnings


def test_a_webhook_hears_all_there_is_to_know(receiver: Receiver) -> None:
    assert send(receiver.url, RESTORED) == []
    (heard,) = receiver.heard
    at = heard.pop("at")
    assert heard == {
        "service": "demo",
        "host": "gpu-box",
        **RESTORED,
        "text": "demo on gpu-box: release 8 failed: it died. Release 7 (known-good) serves again",
    }
    assert at > 1e9


def test_what_an_outcome_does_not_say_is_null(receiver: Receiver) -> None:
    send(receiver.url, PROMOTED)
    assert [receiver.heard[0][key] for key in ("failed", "reason", "evidence")] == [None] * 3
    assert receiver.heard[0]["text"] == "demo on gpu-box: release 7 is good and serves"


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        ("promoted", "promoted"),
        ("restored", "restored"),
        ("recovered", "restored"),
        ("restore_failed", "failed"),
        ("nothing_to_restore", "failed"),
        ("failed", "failed"),
        ("not_restarted", "failed"),
        ("cut", "failed"),
        ("unchanged", None),
        ("stopped", None),
        ("refused", None),
        ("cancelled", None),
    ],
)
def test_only_the_ends_that_were_asked_for_are_told(receiver: Receiver, outcome: str, end: str | None) -> None:
    told = {**RESTORED, "outcome": outcome}
    for on in ("promoted", "restored", "failed"):
        receiver.heard.clear()
        send(receiver.url, told, on=(on,))
        assert len(receiver.heard) == (on == end), on


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_is_unwell_is_asked_again(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status, 200]
    assert send(receiver.url, PROMOTED) == []
    assert len(receiver.heard) == 2


def test_a_server_that_stays_unwell_is_a_warning(receiver: Receiver) -> None:
    receiver.statuses = [500]
    assert send(receiver.url, PROMOTED) == ["warning: the webhook notify.0 was not told: HTTP 500 (3 attempts)"]
    assert len(receiver.heard) == notify.ATTEMPTS


@pytest.mark.parametrize("status", [301, 400, 404])
def test_what_another_try_cannot_help_is_not_tried_again(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    assert send(receiver.url, PROMOTED) == [f"warning: the webhook notify.0 was not told: HTTP {status}"]
    assert len(receiver.heard) == 1


def test_a_refused_connection_is_a_warning_without_the_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        warnings = send(f"http://127.0.0.1:{free.getsockname()[1]}/{SECRET}", PROMOTED)
    assert warnings == ["warning: the webhook notify.0 was not told: ConnectError (3 attempts)"]


def test_a_server_that_says_nothing_is_a_warning(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "TIMEOUT_S", 0.2)
    receiver.statuses = [None]
    assert send(receiver.url, PROMOTED) == ["warning: the webhook notify.0 was not told: no answer in 0.2 s (3 attempts)"]


def test_an_answer_that_drips_in_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "TIMEOUT_S", 0.3)
    over = threading.Event()

    class Dripping(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.sendall(b"HTTP/1.1 200 OK\r\n")
                for number in range(60):
                    self.request.sendall(f"X-{number}: x\r\n".encode())
                    if over.wait(0.1):
                        return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        warnings = send(f"http://127.0.0.1:{server.server_address[1]}/{SECRET}", PROMOTED)
        over.set()
        server.shutdown()
    assert warnings == ["warning: the webhook notify.0 was not told: no answer in 0.3 s (3 attempts)"]


@pytest.mark.parametrize("url", [f"{SECRET}.example.com", f"http://[{SECRET}", f"ftp://{SECRET}/", f"http://a\n{SECRET}/"])
def test_an_address_that_is_none_is_a_warning_without_it(url: str) -> None:
    (warning,) = send(url, PROMOTED)
    assert warning.startswith("warning: the webhook notify.0 was not told: ") and SECRET not in warning


def test_one_webhook_that_fails_keeps_no_other_from_hearing(receiver: Receiver) -> None:
    hooks = (Webhook("notify.0", "ftp://nowhere", ("promoted",)), Webhook("notify.1", receiver.url, ("promoted",)))
    notify.send(hooks, PROMOTED, "demo", "gpu-box", lambda text: None)
    assert len(receiver.heard) == 1


def write(folder: Path, text: str = PLAYBOOK) -> Path:
    path = folder / "playbook.yaml"
    path.write_text(text)
    return path


def test_the_playbooks_webhooks_are_read_with_their_variables(tmp_path: Path) -> None:
    found = notify.configured(write(tmp_path), environ={"HOOK": SECRET, "CHAT": "chat:8080"})
    assert [(each.name, each.url, each.on) for each in found] == [
        ("notify.0", f"https://chat.example.com/{SECRET}", ("failed",)),
        ("notify.1", "http://chat:8080/", ("promoted", "restored", "failed")),
    ]
    assert SECRET not in repr(found)


def test_a_playbook_without_webhooks_has_none(tmp_path: Path) -> None:
    assert notify.configured(write(tmp_path, "service: demo\nhost: gpu-box\n"), environ={}) == ()


def test_a_webhook_whose_secret_is_not_set_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(PlaybookError) as caught:
        notify.configured(write(tmp_path), environ={"CHAT": "x"})
    assert "notify.0.webhook: the secret HOOK is not set" in caught.value.evidence


def test_a_wrong_section_is_named_by_place_and_never_by_value(tmp_path: Path) -> None:
    text = PLAYBOOK.replace("on: [failed]", "when: [failed]")
    with pytest.raises(PlaybookError) as caught:
        notify.configured(write(tmp_path, text), environ={"HOOK": SECRET, "CHAT": "x"})
    assert caught.value.evidence == "notify.0.when"
