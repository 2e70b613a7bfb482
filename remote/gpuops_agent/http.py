"""HTTP to the server on this host: small, with a deadline, never an exception that nobody expects."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any, Dict, Optional


@dataclass(frozen=True)
class Answer:
    """One response. ``status`` 0 means that there was none: ``error`` says why (refused, timed out, cut)."""

    status: int
    body: bytes = b""
    error: str = ""

    @property
    def timed_out(self) -> bool:
        return self.error.startswith("timed out")

    def json(self) -> Optional[Any]:
        """The body as JSON, or None."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def get(host: str, port: int, path: str, timeout: float, headers: Optional[Dict[str, str]] = None) -> Answer:
    """GET; ``timeout`` in seconds holds for connecting and for each silence."""
    return _request("GET", host, port, path, None, timeout, headers or {})


def post(
    host: str, port: int, path: str, body: Dict[str, Any], timeout: float, headers: Optional[Dict[str, str]] = None
) -> Answer:
    """POST of a JSON body; ``timeout`` as for :func:`get`."""
    return _request(
        "POST", host, port, path, json.dumps(body).encode(), timeout, {"Content-Type": "application/json", **(headers or {})}
    )


def _request(
    method: str, host: str, port: int, path: str, body: Optional[bytes], timeout: float, headers: Dict[str, str]
) -> Answer:
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except socket.timeout:  # TimeoutError from Python 3.10 on
        return Answer(0, error=f"timed out after {timeout:g} s")
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, error=str(error) or type(error).__name__)
    finally:
        connection.close()
