"""Tests import the agent's modules too; they lie outside the package, in ``remote/``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))

# A shell that starts the tests in its background has SIGINT ignored, and nohup SIGHUP; so would every program that a test sends them to.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
