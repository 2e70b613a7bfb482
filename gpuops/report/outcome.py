"""How an operation ended, for the one who started it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuops.report.style import Paint, fields
from gpuops.report.words import duration, summary

Outcome = Mapping[str, Any]

# The secret that a server asks its clients for (gpuops.rollout.desired): named, never shown.
_KEY = re.compile(r"@\{secret:(\w+)\}")
_QUESTION = "What is the capital of France?"


def lines(outcome: Outcome, service: str, host: str, paint: Paint) -> list[str]:
    """The end of an operation that did what it should: a headline, then what it took."""
    told = [_headline(outcome, service, host, paint)]
    pairs = []
    if outcome.get("pid") and outcome["outcome"] != "unchanged":
        pairs.append(("server", f"pid {outcome['pid']}, port {outcome['port']}"))
    # A stop has a proof of another kind: that nothing is left.
    if outcome.get("proof") and outcome["outcome"] != "stopped":
        pairs.append(("kernels", proof(outcome["proof"])))
    if outcome.get("outage_s") is not None:
        pairs.append(("outage", f"{duration(outcome['outage_s'])} from the old server's stop to the first answer"))
    if outcome.get("phases"):
        phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in outcome["phases"].items())
        pairs.append(("time", f"{duration(outcome['seconds'])}: {phases}"))
    if outcome.get("performance"):
        pairs.append(("speed", "\n".join(_speed(outcome["performance"]))))
    return [*told, *fields(pairs)]


def _speed(found: Mapping[str, Any]) -> list[str]:
    """The performance gate, a line a cell."""
    return [f"{each['cell']}: {each['verdict']}, {each['why']}" for each in found["cells"]]


def proof(found: Mapping[str, Any]) -> str:
    """``gpuops-kernels-3f9c81aa02d4: 8 of 8 ranks, indexer, mla_decode active``."""
    return f"{found['build']}: {found['text']}"


def how_to_ask(port: int, candidate: Mapping[str, Any], tunnel: str | None) -> list[str]:
    """Where the server is and what to do with it.

    Args:
        candidate: what the order asked for: summary, model name, and how the server is authorised.
        tunnel: the ssh command that brings the port here; None when the server is on this machine.
    """
    url = f"http://127.0.0.1:{port}/v1"
    key = _KEY.search(candidate.get("auth") or "")
    body = f'{{"model": "{candidate["served_model_name"]}", "messages": [{{"role": "user", "content": "{_QUESTION}"}}]}}'
    header = f' -H "Authorization: Bearer ${key[1]}"' if key else ""
    curl = f"curl {url}/chat/completions{header} -H 'Content-Type: application/json' -d '{body}'"
    option = f" --api-key-env {key[1]}" if key else ""
    pairs = [
        ("content", summary(candidate["summary"])),
        ("URL", url if tunnel is None else f"{url} on the host"),
        ("ask", f'gpuops chat{option} "{_QUESTION}"'),
        ("or", curl if tunnel is None else f"{tunnel}\n{curl}"),
        ("next", "gpuops status, gpuops logs -f, gpuops down"),
    ]
    return fields(pairs)


def _headline(outcome: Outcome, service: str, host: str, paint: Paint) -> str:
    release = outcome.get("release")
    texts = {
        "promoted": f"release {release} of {service} is good and serves on {host}",
        "launched": f"release {release} of {service} passed its gates and serves on {host}; {outcome.get('known_good')} stays known-good",
        "tried": f"the trial is over; release {release} of {service} (known-good) serves on {host}",
        "unchanged": f"release {release} is running and answers right; nothing to do",
        "restored": f"release {release} of {service} is restored and serves on {host}",
        "stopped": f"{service} is stopped on {host}",
        "recovered": f"release {release} of {service} (known-good) serves again on {host}: {outcome.get('reason', '')}",
        "nothing_to_recover": f"{service} is where it should be on {host}; nothing to do",
        "not_running": f"{service} does not run on {host}; nothing to do",
    }
    return paint.green(texts.get(outcome["outcome"], f"{service}: {outcome['outcome']}"))
