"""A stand-in for an inference server: makes the process tree that its arguments ask for, then waits.

Usage: server.py FOLDER [--port N] [--ignore-term] [--shm NAME] ROLE...

Every process writes its pid to FOLDER/<role>; the server itself writes FOLDER/server last. Roles:

child        same session and process group
session      own session (setsid)
orphan       its parent ends at once
daemon       double fork and setsid
stubborn     ignores TERM
heir         listens on the port once the server has died
heritage     a daemon that dropped its environment
rank:TITLE   a program whose title is TITLE
forker       forks a `late` process on USR1
"""

import argparse
import mmap
import os
import signal
import socket
import sys
import time
from pathlib import Path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--shm")
    parser.add_argument("--exit", type=int)
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
    if role.startswith("rank:"):
        title = role.partition(":")[2]
        write(args.folder, title)
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


def share(name):
    fd = os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 4096)
    return mmap.mmap(fd, 4096)


def wait():
    while True:
        signal.pause()


main()
