"""What every transport promises (``gpuops/transport/base.py``), asked of all three with real processes and a real sshd."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_support import Programs, until

from gpuops.errors import Exit, GpuopsError, OutcomeUnknown
from gpuops.transport import Address, Kind, Transport, open_transport


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


WAIT_FOR_FILE = "while [ ! -e {gate} ]; do sleep 0.02; done\n"
ANSWER_S = 30.0


def test_exit_status_and_both_streams_come_back(new_transport: Transport, programs: Programs) -> None:
    done = new_transport.run(programs.shell("status", "echo out; echo err >&2; exit 7"))
    assert (done.status, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_status_255_of_the_command_itself_is_an_exit_status(new_transport: Transport, programs: Programs) -> None:
    argv = programs.shell("status255", "exit 255")
    assert [new_transport.run(argv).status for _ in range(2)] == [255, 255]  # with OpenSSH, the second goes over the master


def test_a_command_that_is_not_there_is_status_127(transport: Transport) -> None:
    assert transport.run(["gpuops-no-such-command"]).status == 127


@pytest.mark.failure_mode("exit-status-lost")
def test_a_command_ended_by_a_signal_has_no_known_outcome(new_transport: Transport, programs: Programs) -> None:
    argv = programs.python("signal", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    for _ in range(2):  # with OpenSSH, the second goes over the master
        with pytest.raises(OutcomeUnknown, match="signal"):
            new_transport.run(argv)


def test_twenty_megabytes_of_input_arrive_whole(new_transport: Transport) -> None:
    data = os.urandom(1 << 20) * 20
    assert new_transport.run(["sha256sum"], stdin=data).stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


@pytest.mark.failure_mode("streams-deadlock")
def test_input_is_fed_while_output_is_drained(transport: Transport) -> None:
    data = os.urandom(1 << 20) * 8
    assert transport.run(["cat"], stdin=data).stdout == data


def test_input_that_the_command_does_not_read_is_no_error(transport: Transport) -> None:
    assert transport.run(["true"], stdin=bytes(8 << 20)).status == 0


@pytest.mark.failure_mode("streams-deadlock")
def test_eight_megabytes_on_stderr_do_not_block_stdout(transport: Transport, programs: Programs) -> None:
    source = "import sys\nfor _ in range(128):\n sys.stderr.write('e' * 65536)\nprint('done')\n"
    done = transport.run(programs.python("noisy", source))
    assert (done.stdout, len(done.stderr)) == (b"done\n", 8 << 20)


def test_a_stream_drains_stderr_while_lines_are_read(transport: Transport, programs: Programs) -> None:
    source = "import sys\nfor i in range(128):\n sys.stderr.write('e' * 65536)\n print(i, flush=True)\n"
    with transport.stream(programs.python("noisy-stream", source)) as stream:
        lines = list(stream)
        done = stream.finish()
    assert lines == [str(i).encode() for i in range(128)]
    assert (done.status, done.stdout, len(done.stderr)) == (0, b"", 8 << 20)


def test_a_stream_yields_each_line_as_it_comes(transport: Transport, programs: Programs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    argv = programs.shell("lines", f"echo first; {WAIT_FOR_FILE.format(gate=gate)} echo second; printf rest; exit 3")
    with transport.stream(argv) as stream:
        lines = iter(stream)
        assert next(lines) == b"first"
        gate.touch()  # the second line is printed only because the first one was read
        assert list(lines) == [b"second", b"rest"]
        assert stream.finish().status == 3


def test_a_stream_takes_input(transport: Transport) -> None:
    with transport.stream(["cat"], stdin=b"a\nb\n" * 10_000) as stream:
        assert sum(1 for _ in stream) == 20_000


def test_leaving_a_stream_early_does_not_wait_for_the_command(transport: Transport, programs: Programs, tmp_path: Path) -> None:
    gate, ended = tmp_path / "gate", tmp_path / "ended"
    argv = programs.shell("early", f"echo first; {WAIT_FOR_FILE.format(gate=gate)} touch {ended}")
    with transport.stream(argv) as stream:
        assert next(iter(stream)) == b"first"
    assert not ended.exists()  # it is still waiting for the gate, and we are here
    gate.touch()
    until(ended.exists, "the command that nobody listens to came to its end")


def test_the_transport_is_usable_after_a_stream_was_left(transport: Transport, programs: Programs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with transport.stream(programs.shell("left", f"echo first; {WAIT_FOR_FILE.format(gate=gate)}")) as stream:
        next(iter(stream))
    assert transport.run(["true"]).status == 0
    gate.touch()


@pytest.mark.failure_mode("link-half-open")
def test_silence_beyond_the_idle_timeout_is_an_unknown_outcome(transport: Transport, programs: Programs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    argv = programs.shell("silent", f"echo first; {WAIT_FOR_FILE.format(gate=gate)}")
    with pytest.raises(OutcomeUnknown) as caught, transport.stream(argv, idle_timeout=2.0) as stream:
        assert list(stream) == "never reached"
    gate.touch()
    assert "nothing was heard for 2 s" in caught.value.what
    assert caught.value.next.startswith("gpuops status --host ")


@pytest.mark.failure_mode("link-half-open")
def test_a_deadline_that_passes_is_an_unknown_outcome_and_the_command_goes_on(
    transport: Transport, programs: Programs, tmp_path: Path
) -> None:
    gate, started, ended = tmp_path / "gate", tmp_path / "started", tmp_path / "ended"
    argv = programs.shell("late", f"touch {started}; {WAIT_FOR_FILE.format(gate=gate)} touch {ended}")
    with pytest.raises(OutcomeUnknown, match="did not end within 2 s"):
        transport.run(argv, timeout=2.0)
    until(started.exists, "the command started")
    gate.touch()
    until(ended.exists, "the command came to its end")


@pytest.mark.parametrize(
    "word",
    [
        "a b",
        "$HOME",
        "a;b",
        "it's",
        'say"',
        "`id`",
        "a|b",
        "a&b",
        "*",
        "{x}",
        "(x)",
        "x\n",
        "",
        "a\\b",
        "#x",
        "a>b",
        "!x",
        "=x",
        "%self",
        "a=~/x",
        "~x",
    ],
)
def test_words_that_a_shell_would_interpret_are_refused_before_anything_is_sent_and_no_shell_reads_them_here(
    transport: Transport, tmp_path: Path, word: str
) -> None:
    if transport.name == "local":
        assert transport.run(["printf", "_%s", word]).stdout == f"_{word}".encode()
        return
    proof = tmp_path / "proof"
    with pytest.raises(GpuopsError, match="cannot be passed") as refused:
        transport.run(["touch", str(proof), word])
    assert (refused.value.code, proof.exists()) == (Exit.HOST_UNFIT, False)
    assert "set host.root" in refused.value.next


def test_every_character_that_is_allowed_arrives_unchanged(transport: Transport) -> None:
    word = "azAZ09_./=:@%+,~-"
    assert transport.run(["printf", "_%s", word]).stdout == f"_{word}".encode()


@pytest.fixture
def server_port() -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"x" * (2 << 20)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_forward_reaches_a_server(transport: Transport, server_port: int) -> None:
    with transport.forward(server_port) as port:
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=ANSWER_S) as answer:
                assert len(answer.read()) == 2 << 20


def test_a_forward_ends_with_its_block(address: Address, ssh_kind: Kind, server_port: int) -> None:
    with open_transport(address, ssh_kind) as transport, transport.forward(server_port) as port:
        assert port != server_port
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=ANSWER_S)


def test_close_can_be_called_twice(new_transport: Transport) -> None:
    assert new_transport.run(["true"]).status == 0
    new_transport.close()
    new_transport.close()
