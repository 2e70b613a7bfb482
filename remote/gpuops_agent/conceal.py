"""Secrets in the arguments and the environment of a process that somebody started by hand, replaced by placeholders. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

PREFIX = "ADOPTED_"
"""What the names of such secrets begin with on the host, so that they never meet those of a playbook."""

# A value this short may stand for something else in another place; it is replaced only where its own name says what it is.
LONGEST_COMMON = 7

_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_OPTION = re.compile(
    r"--?[\w-]*(?:api[-_]?key|password|passwd|secret|credentials?|(?:auth|access|hf)[-_]?token)\Z", re.IGNORECASE
)
_SWITCH = re.compile(r"(?:true|false|yes|no|on|off|none)?\Z", re.IGNORECASE)
# Tokens are also what a model reads: MAX_TOKENS=4096 is a number of them.
_COUNT = re.compile(r"TOKENS?(?:_|\Z)", re.IGNORECASE)

Free = Callable[[str, str], bool]
"""``free(name, value)``: whether a secret of this name may be stored with this value."""


@dataclass(frozen=True)
class Concealed:
    """Arguments and environment with placeholders, and the values behind them.

    Args:
        secrets: the values by their names on the host.
        api_key: the name of the one that clients authenticate with; None when the server asks for none.
    """

    argv: List[str]
    env: Dict[str, str]
    secrets: Dict[str, str]
    api_key: Optional[str]

    def __repr__(self) -> str:
        return f"Concealed({sorted(self.secrets)})"

    def hide(self, text: str) -> str:
        """``text`` without the secrets in it."""
        return _replace(text, self.secrets)


def conceal(argv: List[str], env: Dict[str, str], free: Free) -> Concealed:
    """Find the secrets by the names of their options and variables, and replace them wherever they stand."""
    secrets: Dict[str, str] = {}

    def name_of(said: str, value: str) -> str:
        for known, other in secrets.items():
            if other == value:
                return known
        base = name = PREFIX + re.sub(r"\W", "_", said.lstrip("-"), flags=re.ASCII).upper()
        number = 1
        while name in secrets or not free(name, value):
            number += 1
            name = f"{base}_{number}"
        secrets[name] = value
        return name

    words, api_key = _options(argv, name_of)
    own = {name: name_of(name, value) for name, value in env.items() if _is_secret(name, value)}
    long = {name: value for name, value in secrets.items() if len(value) > LONGEST_COMMON}
    return Concealed(
        argv=[_replace(word, long) for word in words],
        env={name: _placeholder(own[name]) if name in own else _replace(value, long) for name, value in env.items()},
        secrets=secrets,
        api_key=api_key,
    )


def _options(argv: List[str], name_of: Callable[[str, str], str]) -> Tuple[List[str], Optional[str]]:
    """The words with the values of secret options replaced, ``--key VALUE`` and ``--key=VALUE`` alike."""
    words: List[str] = []
    api_key = None
    expected = ""
    for word in argv:
        option, equals, value = word.partition("=")
        found = ""
        if expected and not word.startswith("--"):
            found = name_of(expected, word)
            words.append(_placeholder(found))
        elif equals and value and _OPTION.match(option):
            expected = option
            found = name_of(option, value)
            words.append(f"{option}={_placeholder(found)}")
        else:
            words.append(word)
        if found and expected.lstrip("-").replace("_", "-") == "api-key":
            api_key = found
        expected = word if _OPTION.match(word) else ""
    return words, api_key


def _is_secret(name: str, value: str) -> bool:
    if not _VARIABLE.search(name) or _SWITCH.match(value):
        return False
    return not (value.isdigit() and _COUNT.search(name))


def _replace(text: str, secrets: Dict[str, str]) -> str:
    # The longest first: one secret may be a part of another.
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, _placeholder(name))
    return text


def _placeholder(name: str) -> str:
    return f"@{{secret:{name}}}"
