"""The console script ``gpuops``."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line; ends the process with the verb's exit code."""
    # Importing makes no garbage, but enough objects to set the collector off again and again: a tenth of the start-up. A verb turns it on again.
    gc.disable()
    from gpuops.cli import signals
    from gpuops.cli.app import app

    _fill_closed_streams()
    signals.unwind()
    app(prog_name="gpuops")


def _fill_closed_streams() -> None:
    """Let standard streams that are closed (`gpuops status >&-`) lead to nowhere: Python has none for them, and a socket could get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
