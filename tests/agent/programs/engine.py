"""An imitation of SGLang's HTTP server: its log lines, its endpoints, a scheduler process, and whatever fault its flags ask for.

It is for what must be covered cheaply and exhaustively; the tests in tests/engine run the real one. Faults come from the arguments and from
the words in ROOT/faults, so that a release that started well can start badly the next time.

    --die PHASE=HOW      end there, by exit status (3) or signal (KILL), after printing an exception
    --vanish PHASE=HOW   the same without a word
    --tell TEXT          say this (with newlines as \\n) after the weights
    --child TITLE        have a process of this title
    --await FILE         wait for the lock of FILE before anything else is done
    --lose PHASE         the scheduler is killed there, the server lives on
    --freeze PHASE       the scheduler is stopped there; /server_info asks it, as SGLang's does, and so does not answer
    --ponder             no answer to /server_info either: working all the time
    --hold PHASE=FILE    go on only when FILE exists (also several)
    --mute               never listen, and say nothing
    --chatter            never listen, and go on writing to the log
    --garbage            wrong answers
    --hang, --slow       no answer to a generation: idle, or working all the time
    --busy N             503 to the first N generations
    --tp N               N ranks, with the titles that SGLang gives them, and a detokenizer; no answers once one of them has gone
    --watchdog           look after the ranks as SGLang does: within a second of one's end all others are killed, and the server
    --late               say that it is ready before it listens, as SGLang does
    --identity PATH      the model that /server_info names
    --stubborn           ignore TERM
    --fill FOLDER        fill the disk there before anything else, then end with status 1
    --prove JSON         write a proof for each rank where one is asked for, as a plugin does; the fields of JSON take the place of the usual ones
    --refuse TEXT        refuse to serve, as a kernel build's plugin does
    --compile N          N kernels: those that $TRITON_CACHE_DIR does not have are compiled into it
    --suspect            a file `damaged` in $TRITON_CACHE_DIR ends the start, as a cache file that was cut
    --betray NAME        write the environment variable NAME to the log, in two pieces, and into an answer
"""

import argparse
import fcntl
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PHASES = {
    "launch": ["server_args={}", "Init torch distributed begin."],
    "weights": [
        "Load weight begin. avail mem=21.61 GB",
        "Multi-thread loading shards: 100% Completed | 1/1 [00:00<00:00,  2.77it/s]",
        "Load weight end. elapsed=0.46 s, type=LlamaForCausalLM, avail mem=21.39 GB, mem usage=0.22 GB.",
        "Memory pool end. avail mem=21.18 GB",
    ],
    "capture": ["Capture decode CUDA graph begin. avail mem=21.18 GB", "Capture decode CUDA graph end. elapsed=0.10 s"],
    "warm-up": ["INFO:     Uvicorn running on http://127.0.0.1 (Press CTRL+C to quit)"],
    "listening": ["The server is fired up and ready to roll!"],
}


def main():
    args = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if args.fill:
        fill(Path(args.fill))
        print("OSError: [Errno 28] No space left on device", flush=True)
        os._exit(1)
    engine = Engine(args)
    if args.stubborn:
        # After the scheduler was started: it would inherit this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for phase in ("launch", "weights", "capture"):
        engine.enter(phase)
    if args.mute:
        signal.pause()
    while args.chatter:
        log("still compiling")
        time.sleep(0.05)
    if args.late:
        engine.enter("listening")
        time.sleep(0.1)
    server = ThreadingHTTPServer((args.host, args.port), handler(engine))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    engine.enter("warm-up")
    if not args.late:
        engine.enter("listening")
    while True:
        signal.pause()


def parse(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--api-key")
    parser.add_argument("--die")
    parser.add_argument("--vanish")
    parser.add_argument("--tell")
    parser.add_argument("--child")
    parser.add_argument("--await")
    parser.add_argument("--lose")
    parser.add_argument("--freeze")
    parser.add_argument("--hold", action="append", default=[])
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--identity")
    parser.add_argument("--fill")
    parser.add_argument("--betray")
    parser.add_argument("--flavour")
    parser.add_argument("--prove")
    parser.add_argument("--refuse")
    parser.add_argument("--compile", type=int, default=0)
    for fault in ("suspect", "mute", "chatter", "garbage", "hang", "slow", "stubborn", "late", "ponder", "watchdog"):
        parser.add_argument(f"--{fault}", action="store_true")
    later = Path(os.environ["LAB"]) / "faults"
    return parser.parse_args(words + (later.read_text().split() if later.exists() else []))


class Engine:
    def __init__(self, args):
        self.args = args
        self.busy = args.busy
        ranks = ["sglang::scheduler"] if args.tp == 1 else [f"sglang::scheduler_TP{rank}" for rank in range(args.tp)]
        self.ranks = [child(title) for title in ranks]
        self.scheduler = self.ranks[0]
        if args.tp > 1:
            child("sglang::detokenizer")
        if args.watchdog:
            threading.Thread(target=watch, args=(self.ranks,), daemon=True).start()
        if args.refuse:
            os.write(2, f"[gpuops-kernels] pid {self.scheduler}: refusing to serve: {args.refuse}\n".encode())
            log("Scheduler died during initialization (exit code: 78)")
            os._exit(78)
        if args.prove and "GPUOPS_KERNELS_PROOF" in os.environ:
            prove(self.ranks, json.loads(args.prove))
        if args.compile or args.suspect:
            compile_kernels(Path(os.environ["TRITON_CACHE_DIR"]), args.compile)
        if args.child:
            child(args.child)
        if getattr(args, "await"):
            self.lock = os.open(getattr(args, "await"), os.O_RDWR)
            fcntl.flock(self.lock, fcntl.LOCK_EX)

    def enter(self, phase):
        for text in PHASES.get(phase, ()):
            log(text)
        if phase == "launch" and self.args.betray:
            betray(os.environ[self.args.betray])
        for at, _, file in (hold.partition("=") for hold in self.args.hold):
            while at == phase and not os.path.exists(file):
                time.sleep(0.01)
        if self.args.lose == phase:
            os.kill(self.scheduler, signal.SIGKILL)
            os.waitpid(self.scheduler, 0)
        if self.args.freeze == phase:
            os.kill(self.scheduler, signal.SIGSTOP)
        if phase == "weights" and self.args.tell:
            os.write(2, (self.args.tell.replace("\\n", "\n") + "\n").encode())
        at, _, how = (self.args.die or "").partition("=")
        if at == phase:
            die(phase, how)
        at, _, how = (self.args.vanish or "").partition("=")
        if at == phase:
            end(how)

    def complete(self, prompt):
        if self.args.hang or (self.args.tp > 1 and not all(map(lives, self.ranks))):
            signal.pause() if threading.current_thread() is threading.main_thread() else threading.Event().wait()
        while self.args.slow:
            pass
        if self.args.garbage:
            return "!!!!!!!!"
        if self.args.betray:
            return f"Paris, by {os.environ[self.args.betray]}"
        return "Paris" if "France" in prompt else "I do not know."


def handler(engine):
    args = engine.args

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if not self.allowed():
                return
            while self.path == "/server_info" and (args.ponder or state(engine.scheduler) == "T"):
                time.sleep(0 if args.ponder else 0.05)
            model = args.identity or args.model_path
            served = {
                "model_path": model,
                "served_model_name": args.served_model_name or model,
                "port": args.port,
                "version": "0.5.23",
            }
            self.answer(200, served if self.path == "/server_info" else {})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.allowed():
                return
            chat = self.path == "/v1/chat/completions"
            engine.enter("probes" if chat else "generating")
            if engine.busy and not chat:
                engine.busy -= 1
                self.answer(503, {"error": "warming up"})
                return
            text = engine.complete(body["messages"][0]["content"] if chat else body["text"])
            message = {"choices": [{"message": {"content": text}}]}
            self.answer(200, message if chat else {"text": text, "output_ids": [1, 2, 3]})

        def allowed(self):
            if args.api_key and self.headers.get("Authorization") != f"Bearer {args.api_key}":
                self.answer(401, {"error": "Unauthorized"})
                return False
            return True

        def answer(self, status, value):
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words):
            log(f'INFO:     127.0.0.1:1 - "{words[1]}" {words[2]}')

    return Handler


def child(title):
    """A process of this title; it has it when this returns."""
    executed, hold = os.pipe()  # exec closes both
    pid = os.fork()
    if pid == 0:
        # The supervisor's children have SIGTERM as it was; a program of this title is all that the agent looks for.
        os.execv("/bin/sleep", [title, "600"])
    os.close(hold)
    os.read(executed, 1)
    os.close(executed)
    return pid


def watch(ranks):
    """SubprocessWatchdog (0.5.15 srt/utils/watchdog.py) and what the SIGQUIT that it sends comes to, kill_process_tree (srt/utils/common.py)."""
    while True:
        time.sleep(1.0)
        for number, pid in enumerate(ranks):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                log(f"Subprocess scheduler_{number} (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup...")
                log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
                for other in ranks:
                    if other != pid:
                        os.kill(other, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)


def prove(ranks, fields):
    """The files of gpuops_kernels/plugin/proof.py, schema 1."""
    folder = Path(os.environ["GPUOPS_KERNELS_PROOF"])
    for number, pid in enumerate(ranks):
        start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        usual = {
            "schema": 1,
            "stage": "captured",
            "rank": {"tp": number},
            "pid": pid,
            "start": start,
            "content": "c0ffee",
            "capability": "",
        }
        families = {"swiglu": {"state": "active", "reason": "the default", "targets": []}}
        proof = {**usual, "build": os.environ["GPUOPS_BUILD"], "families": families, **fields}
        (folder / f"tp{number}.json").write_text(json.dumps(proof))


def compile_kernels(folder, count):
    if (folder / "damaged").exists():
        log(f"EOFError: Ran out of input while reading {folder}/damaged of the triton cache")
        os._exit(1)
    for number in range(count):
        (folder / f"kernel{number}").mkdir(parents=True, exist_ok=True)
        (folder / f"kernel{number}" / "binary").touch()


def lives(pid):
    return state(pid) not in "ZX"


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def log(text):
    try:
        os.write(2, f"[2026-01-01 00:00:00] {text}\n".encode())
    except OSError:  # a full disk: Python's logging carries on too
        pass


def betray(value):
    os.write(2, f"[2026-01-01 00:00:00] the key is {value[: len(value) // 2]}".encode())
    os.write(2, f"{value[len(value) // 2 :]}, do not tell\n".encode())


def die(phase, how):
    sys.stderr.write("Traceback (most recent call last):\n  File 'x.py', line 1, in <module>\n")
    sys.stderr.write(f"RuntimeError: broken in {phase}\n")
    sys.stderr.flush()
    end(how)


def end(how):
    if how.isdigit():
        os._exit(int(how))
    os.kill(os.getpid(), getattr(signal, f"SIG{how}"))
    signal.pause()


def fill(folder):
    fd = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT)
    size = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    while size > 0:
        try:
            os.posix_fallocate(fd, os.fstat(fd).st_size, size)
        except OSError:
            size //= 2


main()
