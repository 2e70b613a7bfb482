"""The fault server as a release's server: it logs and identifies itself like the imitation engine, and streams and counts like SGLang.

A build slows it down by a module ``pace`` with ``FACTOR``, as a kernel pack changes an engine.

    --gap-ms N      between two tokens: how fast it is
    --sick KIND     one of the fault server's faults
    --garbage       every answer is wrong
    --mute          it never listens
"""

import argparse
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "measure"))

from fault_server import FaultServer

try:
    from pace import FACTOR
except ImportError:
    FACTOR = 1.0

parser = argparse.ArgumentParser()
parser.add_argument("--model-path")
parser.add_argument("--served-model-name")
parser.add_argument("--port", type=int)
parser.add_argument("--gap-ms", type=float, default=2.0)
parser.add_argument("--sick", default="clean")
parser.add_argument("--garbage", action="store_true")
parser.add_argument("--mute", action="store_true")
args, _ = parser.parse_known_args()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while args.mute:
    signal.pause()
server = FaultServer("garbage" if args.garbage else args.sick, args.port, args.gap_ms * FACTOR / 1e3)
served = args.served_model_name or args.model_path
server.arguments = {**server.arguments, "model_path": args.model_path, "served_model_name": served, "port": args.port}
os.write(2, b"[2026-01-01 00:00:00] The server is fired up and ready to roll!\n")
while True:
    signal.pause()
