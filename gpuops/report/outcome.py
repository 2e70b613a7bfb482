"""How an operation ended, for the one who started it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.report.style import Paint, fields
from gpuops.report.words import duration, summary

Outcome = Mapping[str, Any]

_QUESTION = "What is the capital of France?"


def lines(outcome: Outcome, service: str, host: str, paint: Paint) -> list[str]:
    """The end of an operation that did what it should: a headline, then what it took."""
    told = [_headline(outcome, service, host, paint)]
    pairs = []
    if outcome.get("pid") and outcome["outcome"] != "unchanged":
        pairs.append(("server", f"pid {outcome['pid']}, port {outcome['port']}"))
    if outcome.get("phases"):
        phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in outcome["phases"].items())
        pairs.append(("time", f"{duration(outcome['seconds'])}: {phases}"))
    return [*told, *fields(pairs)]


def how_to_ask(outcome: Outcome, content: Mapping[str, Any] | None, tunnel: str | None) -> list[str]:
    """Where the server is and what to do with it.

    Args:
        content: the release's summary, when it is known.
        tunnel: the ssh command that brings the port here; None when the server is on this machine.
    """
    url = f"http://127.0.0.1:{outcome['port']}/v1"
    body = f'{{"model": "default", "messages": [{{"role": "user", "content": "{_QUESTION}"}}]}}'
    curl = f"curl {url}/chat/completions -H 'Content-Type: application/json' -d '{body}'"
    pairs = [("content", summary(content))] if content else []
    pairs.append(("URL", url if tunnel is None else f"{url} on the host"))
    pairs.append(("ask", f'gpuops chat "{_QUESTION}"'))
    pairs.append(("or", curl if tunnel is None else f"{tunnel}\n{curl}"))
    pairs.append(("next", "gpuops status, gpuops logs -f, gpuops down"))
    return fields(pairs)


def _headline(outcome: Outcome, service: str, host: str, paint: Paint) -> str:
    release = outcome.get("release")
    texts = {
        "promoted": f"release {release} of {service} is good and serves on {host}",
        "unchanged": f"release {release} is running and answers right; nothing to do",
        "restored": f"release {release} of {service} is restored and serves on {host}",
        "stopped": f"{service} is stopped on {host}",
        "not_running": f"{service} does not run on {host}; nothing to do",
    }
    return paint.green(texts.get(outcome["outcome"], f"{service}: {outcome['outcome']}"))
