"""A stand-in for an inference server: makes the process tree that its arguments ask for, then waits.

Usage: server.py FOLDER [--port N] [--ignore-term] [--shm NAME] [--linger FILE] ROLE...

With --linger the process outlasts its main thread until FILE exists, as one does that has gigabytes to give back.

Every process writes its pid to FOLDER/<role>; the server itself writes FOLDER/server last. Roles:

child        same session and process group
session      own session (setsid)
orphan       its parent ends at once
daemon       double fork and setsid
stubborn     ignores TERM
heir         listens on the port once the server has died
heritage     a daemon that dropped its environment
rank:TITLE   a program whose title is TITLE
bound:TITLE  the same, and it is killed with the thread that started it (PR_SET_PDEATHSIG), as SGLang's schedulers are
fork:TITLE   a program of that title that forks a copy of itself, which writes FOLDER/copy
forker       forks a `late` process on USR1
"""

import argparse
import ctypes
import mmap
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_PTRACER, PTRACE_SEIZE = 1, 0x59616D61, 0x4206

COPY = """
import os, signal, sys
if os.fork() == 0:
    with open(f"{sys.argv[1]}/.copy", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{sys.argv[1]}/.copy", f"{sys.argv[1]}/copy")
while True:
    signal.pause()
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--shm")
    parser.add_argument("--exit", type=int)
    parser.add_argument("--linger", type=Path)
    parser.add_argument("roles", nargs="*")
    args = parser.parse_intermixed_args()
    if args.exit is not None:
        sys.exit(args.exit)
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for role in args.roles:
        start(role, args)
    if args.port:
        sock = listen(args.port)  # noqa: F841
    if args.shm:
        memory = share(args.shm)  # noqa: F841
    if args.linger:
        linger(args.linger)
    write(args.folder, "server")
    wait()


def start(role, args):
    server = os.getpid()
    pid = os.fork()
    if pid:
        if role in ("orphan", "daemon", "heritage"):
            os.waitpid(pid, 0)
        return
    if role == "session":
        os.setsid()
    if role in ("daemon", "heritage"):
        os.setsid()
    if role in ("orphan", "daemon", "heritage") and os.fork():
        os._exit(0)
    if role == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if role == "forker":
        signal.signal(signal.SIGUSR1, lambda *_: start("late", args))
    kind, _, title = role.partition(":")
    if title:
        if kind == "bound":
            system("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        write(args.folder, title)
        if kind == "fork":
            os.execv(sys.executable, [title, "-ISBc", COPY, str(args.folder)])
        os.execv("/bin/sleep", [title, "600"])
    write(args.folder, role)
    if role == "heritage":
        os.execve(sys.executable, [sys.executable, "-ISc", "import signal\nwhile True: signal.pause()"], {})
    if role == "heir":
        while os.getppid() == server:
            time.sleep(0.01)
        sock = listen(args.port)  # noqa: F841
        write(args.folder, "heir-listens")
    wait()


def write(folder, role):
    temporary = folder / f".{role}"
    temporary.write_text(str(os.getpid()))
    os.replace(temporary, folder / role)


def listen(port):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    os.set_inheritable(sock.fileno(), False)
    return sock


def linger(file):
    """A thread that is traced, and has ended, stays until its tracer has looked; and the process with it."""
    started, ids = threading.Event(), []
    threading.Thread(target=lambda: (ids.append(threading.get_native_id()), started.set(), wait_for_ever()), daemon=True).start()
    started.wait()
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_long(-1))  # any process may trace us; only where Yama asks for it
    traced, hold = os.pipe()
    if os.fork() == 0:
        system("ptrace", PTRACE_SEIZE, ids[0], 0, 0)
        os.write(hold, b"x")
        while not file.exists():
            time.sleep(0.01)
        os._exit(0)
    os.read(traced, 1)


def wait_for_ever():
    threading.Event().wait()


def system(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def share(name):
    fd = os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 4096)
    return mmap.mmap(fd, 4096)


def wait():
    while True:
        signal.pause()


main()
