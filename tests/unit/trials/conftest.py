"""The samples of these tests are importable, and the agent is as it is on a host."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "remote"))
sys.path.insert(0, str(Path(__file__).parent))
