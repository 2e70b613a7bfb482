"""Speaking to whoever reads the server's log, and ending a process that must not serve.

Python's logging is of no use here: SGLang loads plugins before it configures logging, so everything below ERROR is dropped.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

# EX_CONFIG of sysexits.h. SGLang's parent process reports it: "scheduler died during initialization (exit code: 78)".
EXIT_REFUSED = 78


def say(message: str) -> None:
    """One line on stderr."""
    print(f"[gpuops-kernels] pid {os.getpid()}: {message}", file=sys.stderr, flush=True)


def refuse(message: str) -> NoReturn:
    """End this process with the reason on stderr.

    Not an exception: SGLang's plugin loader catches every ``Exception`` and goes on with its own kernels, and its scheduler waits for threads when
    ``SystemExit`` unwinds it.
    """
    say(f"refusing to serve: {message}")
    sys.stdout.flush()
    os._exit(EXIT_REFUSED)
