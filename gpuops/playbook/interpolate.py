"""``${NAME}``: variables of the laptop, only those that the playbook lists.

A name under ``env:`` is replaced by its value. A name under ``secrets:`` becomes the placeholder ``@{secret:NAME}``, and its value
is handed back apart, so that no playbook, order or record ever holds it. ``$${`` is a literal ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .locate import Located
from .problems import Key, Mark, Problem, dotted, is_extension, suggestion

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_UNTOUCHED = ("env", "secrets")
_SECRET_PLACES = (("server", "flags"), ("server", "env"))
_LAPTOP_PLACE = "notify"
_PLACEHOLDER = "@{secret:"


@dataclass(frozen=True)
class Interpolated:
    """A tree with its variables replaced, the secret values it refers to, and what went wrong.

    ``secret_values`` are those that the host needs, ``laptop_secrets`` those that only the laptop does (``notify``).
    """

    tree: Located
    secret_values: Mapping[str, str] = field(repr=False)
    laptop_secrets: Mapping[str, str] = field(repr=False)
    problems: tuple[Problem, ...]


def interpolate(tree: Located, environ: Mapping[str, str], only: tuple[str, ...] = ()) -> Interpolated:
    """Replace every reference in a playbook's tree.

    Args:
        environ: the variables of the laptop.
        only: the top-level keys to look at; empty means all.
    """
    worker = _Interpolation(_listed(tree, "env"), _listed(tree, "secrets"), environ)
    result = {
        key: child if key in _UNTOUCHED or is_extension(key) or (only and key not in only) else worker.walk(child, (key,))
        for key, child in tree.value.items()
    }
    return Interpolated(
        Located(result, tree.mark, tree.base), worker.secret_values, worker.laptop_secrets, tuple(worker.problems)
    )


def _listed(tree: Located, key: str) -> tuple[str, ...]:
    """The names under ``env`` or ``secrets``; a malformed list is the model's to report."""
    node = tree.get(key)
    if node is None or not isinstance(node.value, list):
        return ()
    return tuple(item.value for item in node.value if isinstance(item.value, str))


class _Interpolation:
    def __init__(self, env: tuple[str, ...], secrets: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self.secret_values: dict[str, str] = {}
        self.laptop_secrets: dict[str, str] = {}
        self._env, self._secrets, self._environ = env, secrets, environ

    def walk(self, node: Located, key: Key) -> Located:
        if isinstance(node.value, dict):
            children = {
                name: child if is_extension(name) else self.walk(child, (*key, name)) for name, child in node.value.items()
            }
            return Located(children, node.mark, node.base)
        if isinstance(node.value, list):
            items = [self.walk(child, (*key, index)) for index, child in enumerate(node.value)]
            return Located(items, node.mark, node.base)
        if isinstance(node.value, str):
            return Located(self._text(node.value, node.mark, key), node.mark, node.base)
        return node

    def _text(self, text: str, mark: Mark, key: Key) -> str:
        if _PLACEHOLDER in text:
            self._report(mark, key, f"{_PLACEHOLDER}NAME}} is written by gpuops: write ${{NAME}} and list NAME under secrets")
        return _REFERENCE.sub(lambda match: self._value(match, mark, key), text)

    def _value(self, match: re.Match[str], mark: Mark, key: Key) -> str:
        name, closed = match.group(1), match.group(2)
        if name is None:
            return "${"
        if not closed or not _NAME.match(name):
            self._report(mark, key, f"{match.group(0)!r} is no ${{NAME}} of a variable; write $${{ for a literal ${{")
        elif name in self._secrets:
            return self._secret(name, mark, key)
        elif name not in self._env:
            listed = [*self._env, *self._secrets]
            near = suggestion(name, listed)
            next = f"add {name} to env: (may be shown) or to secrets: (never shown) in {mark.file}"
            self._report(mark, key, f"the variable {name} is not listed under env or secrets{near}", next)
        elif name not in self._environ:
            self._report(mark, key, f"the variable {name} is not set", f"export {name}=VALUE")
        else:
            return self._environ[name]
        return match.group(0)

    def _secret(self, name: str, mark: Mark, key: Key) -> str:
        on_laptop = key[0] == _LAPTOP_PLACE and key[-1] == "webhook"
        if not on_laptop and key[:2] not in _SECRET_PLACES:
            places = " and ".join(dotted(place) for place in _SECRET_PLACES)
            self._report(mark, key, f"the secret {name} may be used only in values of {places}, and in notify[].webhook")
        elif not self._environ.get(name):
            self._report(mark, key, f"the secret {name} is not set, or empty", f"read -rs {name} && export {name}")
        else:
            (self.laptop_secrets if on_laptop else self.secret_values)[name] = self._environ[name]
        return f"{_PLACEHOLDER}{name}}}"

    def _report(self, mark: Mark, key: Key, text: str, next: str = "") -> None:
        self.problems.append(Problem(mark, key, text, next))
