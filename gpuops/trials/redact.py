"""Taking secrets out of what is kept: values that are known to be secret, and what stands where secrets stand.

Server arguments may hold keys, and a server repeats its arguments in its log, so in evidence too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "[redacted]"

# The last word of a flag or variable that holds a secret: api-key, HF_TOKEN, AWS_SECRET_ACCESS_KEY; not max-total-tokens, nor tokenizer-path.
_NAME = re.compile(r"(?:^|[-_])(?:token|secret|password|passwd|credentials?)$|[-_]key$|^apikey$", re.IGNORECASE)

# The same in free text: api_key='...', --api-key ..., "hf_token": "...". A bare `token=` is a token of a model there.
_TEXT = re.compile(
    r"(?<!@\{)((?:[\w-]*(?:api|access|admin|private|secret)[-_]?key|(?:hf|auth|access|api|bearer)[-_]token|[\w-]*(?:secret|passwo?r?d))"
    r"['\"]?(?:[ \t]*[=:][ \t]*|[ \t]+)['\"]?)"
    r"(?!None\b|null\b|@\{|\$\{|\[redacted\])([^\s'\",;)}\]=:][^\s'\",;)}\]]*)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(Bearer\s+)(?!@\{|\$\{|\[redacted\])([A-Za-z0-9._~+/=-]+)")

# Shorter values are words, and would be found everywhere.
_SHORTEST = 4


def names_a_secret(name: str) -> bool:
    """Whether a flag or variable of this name holds a secret."""
    return _NAME.search(name) is not None


def is_reference(value: str) -> bool:
    """Whether a value only names a secret: a placeholder of gpuops, or a variable of the laptop."""
    return value.startswith(("@{secret:", "${"))


def secrets_in(playbook: Mapping[str, Any]) -> list[str]:
    """The values of a playbook's flags and environment that are secrets by their names."""
    server = playbook.get("server") or {}
    named = [*(server.get("flags") or {}).items(), *(server.get("env") or {}).items()]
    return [str(value) for name, value in named if names_a_secret(name) and value and not is_reference(str(value))]


class Redactor:
    """Replaces secrets in anything that is to be kept. ``known``: values that are secret wherever they stand."""

    def __init__(self, known: Iterable[str]) -> None:
        # The longest first: one may be a part of another.
        self._known = sorted({value for value in known if len(value) >= _SHORTEST}, key=len, reverse=True)

    def __call__(self, value: Any) -> Any:
        """The same value with every secret in it replaced."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {key: self._named(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return self._words(value)
        return value

    def _named(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and names_a_secret(name) and value and not is_reference(value):
            return REDACTED
        return self(value)

    def _words(self, words: Any) -> list[Any]:
        """A list; a flag's value in an argv stands behind it."""
        found: list[Any] = []
        for word in words:
            before = found[-1] if found else None
            hides = isinstance(before, str) and before.startswith("--") and names_a_secret(before) and isinstance(word, str)
            found.append(REDACTED if hides and not is_reference(word) else self(word))
        return found

    def known_in(self, text: str) -> str:
        """A text with the known secrets replaced, and nothing else: for what must stay well-formed."""
        for secret in self._known:
            text = text.replace(secret, REDACTED)
        return text

    def _text(self, text: str) -> str:
        text = self.known_in(text)
        return _BEARER.sub(rf"\1{REDACTED}", _TEXT.sub(rf"\1{REDACTED}", text))
