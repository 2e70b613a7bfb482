"""Telling webhooks how an operation ended.

The laptop that ordered the operation does this, after the outcome is known and printed; it can delay the command by seconds, and change nothing
else. Addresses may hold secrets: they stand in no message.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.rollout.watch import headline

# A webhook gets this many tries of this many seconds each, with waits that double from the first: about half a minute at worst.
ATTEMPTS = 3
TIMEOUT_S = 5.0
FIRST_WAIT_S = 1.0

_ENDS = {
    "promoted": "promoted",
    "restored": "restored",
    "recovered": "restored",
    "restore_failed": "failed",
    "nothing_to_restore": "failed",
    "failed": "failed",
    "not_restarted": "failed",
    "cut": "failed",
}
"""Outcomes that are news, by the word of the playbook's ``on``. What changed nothing (unchanged, refused, cancelled) is none, nor is a `down`."""

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Webhook:
    """One address and the ends that it hears of. ``name`` is its place in the playbook: all of it that may be shown."""

    name: str
    url: str = field(repr=False)
    on: tuple[str, ...]


def configured(
    path: Path | str, overrides: tuple[str, ...] = (), host: str | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Webhook, ...]:
    """The webhooks of a playbook, read without the rest of it: a `restore` needs no valid model section.

    Raises:
        PlaybookError: the section is wrong, or a variable in it is not set.
    """
    from gpuops.playbook.interpolate import interpolate
    from gpuops.playbook.layers import assemble
    from gpuops.playbook.locate import plain
    from gpuops.playbook.problems import invalid

    assembled = assemble(Path(path), overrides, host)
    if (section := assembled.tree.get("notify")) is None or not section.value:
        return ()
    found = interpolate(assembled.tree, os.environ if environ is None else environ, only=("notify",))
    if found.problems:
        raise invalid(str(path), list(found.problems))
    return _webhooks(str(path), plain(found.tree).get("notify"), found.laptop_secrets)


def send(webhooks: tuple[Webhook, ...], outcome: Json, service: str, host: str, warn: Callable[[str], None]) -> None:
    """Tell every webhook that wants to hear of such an end; a failure is a warning, and never raises."""
    end = _ENDS.get(outcome["outcome"])
    for webhook in webhooks:
        if end in webhook.on:
            trouble = _post(webhook.url, message(outcome, service, host))
            if trouble is not None:
                warn(f"warning: the webhook {webhook.name} was not told: {trouble}")


def message(outcome: Json, service: str, host: str) -> dict[str, Any]:
    """What is posted; ``text`` is one sentence for people, ``at`` seconds since the epoch."""
    told = {key: outcome.get(key) for key in ("outcome", "code", "release", "failed", "reason", "evidence", "op")}
    return {"service": service, "host": host, **told, "at": round(time.time(), 3), "text": _sentence(outcome, service, host)}


def _sentence(outcome: Json, service: str, host: str) -> str:
    if outcome["outcome"] == "promoted":
        return f"{service} on {host}: release {outcome.get('release')} is good and serves"
    if outcome["code"] == 0:
        return f"{service} on {host}: release {outcome.get('release')} serves again"
    return f"{service} on {host}: {headline(dict(outcome))}"


def _webhooks(path: str, section: Any, secrets: Mapping[str, str]) -> tuple[Webhook, ...]:
    from pydantic import TypeAdapter, ValidationError

    from gpuops.errors import PlaybookError
    from gpuops.playbook.automation import Notify

    try:
        entries = TypeAdapter(tuple[Notify, ...]).validate_python(section)
    except ValidationError as error:
        # Without pydantic's own words, which would repeat the input.
        places = ", ".join(".".join(("notify", *map(str, each["loc"]))) for each in error.errors(include_input=False))
        raise PlaybookError(f"{path} says in a wrong way whom to notify", evidence=places, next="gpuops plan") from None
    return tuple(
        Webhook(f"notify.{number}", _revealed(entry.webhook, secrets), tuple(entry.on)) for number, entry in enumerate(entries)
    )


def _revealed(url: str, secrets: Mapping[str, str]) -> str:
    for name, value in secrets.items():
        url = url.replace(f"@{{secret:{name}}}", value)
    return url


def _post(url: str, body: Json) -> str | None:
    """Post with a few tries; returns what went wrong in the end, in words that hold no part of the address."""
    from tenacity import RetryError, Retrying, retry_if_result, stop_after_attempt, wait_exponential

    def once() -> tuple[bool, str]:
        """Whether another try may help, and what went wrong; empty when nothing did."""
        ended: list[tuple[bool, str]] = []
        # httpx bounds each read, not all of them: an answer that drips in would keep us for ever. What is left of it ends with the process.
        asking = threading.Thread(target=lambda: ended.append(_asked(url, body)), name="gpuops-webhook", daemon=True)
        asking.start()
        asking.join(TIMEOUT_S)
        return ended[0] if ended else _late()

    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=FIRST_WAIT_S),
        retry=retry_if_result(lambda result: result[0]),
    )
    try:
        _, trouble = retrying(once)
    except RetryError as error:
        _, trouble = error.last_attempt.result()
        trouble = f"{trouble} ({ATTEMPTS} attempts)"
    return trouble or None


def _asked(url: str, body: Json) -> tuple[bool, str]:
    """Post once; of the answer only the status is read. Returns whether another try may help, and what went wrong."""
    import httpx

    try:
        with httpx.stream("POST", url, json=body, timeout=TIMEOUT_S) as response:
            status = response.status_code
    except httpx.TimeoutException:
        return _late()
    except httpx.TransportError as error:
        return not isinstance(error, httpx.UnsupportedProtocol), type(error).__name__
    except (httpx.InvalidURL, ValueError):
        return False, "its address is none"
    if 200 <= status < 300:
        return False, ""
    return status >= 500 or status == 429, f"HTTP {status}"


def _late() -> tuple[bool, str]:
    return True, f"no answer in {TIMEOUT_S:g} s"
