"""Diagnosing a log file that lies here: the host's own classifier, with nothing but the log to go by."""

from __future__ import annotations

from typing import Any

from gpuops.agent import shared
from gpuops.engines import reading


def of_log(data: bytes) -> dict[str, Any]:
    """What a server's log says of its failure; the keys of ``gpuops_agent.diagnosis.Diagnosis``. Any encoding: what is no UTF-8 is replaced."""
    reader = shared.module("logread").LogReader(reading())
    reader.feed(data.decode("utf-8", "replace"))
    reader.finish()
    told: dict[str, Any] = shared.module("diagnosis").diagnose(reader).to_json()
    return told
