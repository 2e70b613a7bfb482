"""The console script ``gpuops``."""

from __future__ import annotations

import gc


def main() -> None:
    """Run the command line; ends the process with the verb's exit code."""
    # Importing makes no garbage, but enough objects to set the collector off again and again: a tenth of the start-up. A verb turns it on again.
    gc.disable()
    from gpuops.cli import signals
    from gpuops.cli.app import app

    signals.unwind()
    app(prog_name="gpuops")
