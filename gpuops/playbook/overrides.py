"""``--set KEY.PATH=VALUE``: one more layer over a playbook, with the same rules as ``extends``.

A flag that the playbook sets may be named alone: ``tp=2`` is ``server.flags.tp=2`` where ``server.flags`` has ``tp``, and the playbook no section
of that name.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpuops.errors import PlaybookError

from .locate import Located, parse_value
from .merge import merge
from .problems import Key, Mark, Problem, invalid, suggestion

FLAGS = ("server", "flags")

_INDEX = re.compile(r"[0-9]{1,9}\Z")


def override(tree: Located, text: str, playbook: str) -> Located:
    """The tree with one override applied.

    The value is YAML; a mapping is merged into what is there, null removes the key, list items are named by their index (from 0).
    A new key is created: whether the playbook may have it is for the model to say.

    Args:
        playbook: what error messages call the playbook.

    Raises:
        PlaybookError: the text is no ``KEY=VALUE``, the value no YAML, or the path leads nowhere.
    """
    key, separator, value = text.partition("=")
    parts = key.split(".")
    if not separator or not all(parts):
        raise PlaybookError(
            "a --set option is not KEY.PATH=VALUE",
            evidence=f"--set {key}",
            next="for example: --set server.flags.tp=2",
        )
    if parts[0] == "extends":
        raise PlaybookError(
            "--set cannot change what a playbook extends",
            evidence="extends is read before --set",
            next="name the other playbook with -p",
        )
    if _is_flag(tree, parts):
        parts = [*FLAGS, *parts]
    # The value stays out of the mark: it may be something that nobody should print.
    mark = Mark(f"--set {key}")
    new = parse_value(value, mark, Path.cwd(), playbook)
    try:
        return merge(tree, _layer(tree, parts, new, ()))
    except _Nowhere as error:
        raise invalid(playbook, [error.problem]) from None


def _is_flag(tree: Located, parts: list[str]) -> bool:
    """Whether a path is the short name of a flag. Only of one that is there: a new one would hide a misspelt section until the engine refuses it."""
    server = tree.get(FLAGS[0])
    flags = None if server is None else server.get(FLAGS[1])
    return len(parts) == 1 and tree.get(parts[0]) is None and flags is not None and flags.get(parts[0]) is not None


class _Nowhere(Exception):
    """The path of an override leads nowhere."""

    def __init__(self, mark: Mark, key: Key, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(mark, key, text)


def _layer(there: Located | None, parts: list[str], value: Located, done: Key) -> Located:
    """What to lay over ``there`` so that ``value`` comes to stand at ``parts`` below it."""
    if not parts:
        return value
    name, rest = parts[0], parts[1:]
    if there is not None and isinstance(there.value, list):
        return _in_list(there, name, rest, value, done)
    if there is not None and there.value is not None and not there.is_mapping:
        raise _Nowhere(value.mark, done, f"is {there.value!r} ({there.mark}), no mapping: {name!r} cannot be set in it")
    child = None if there is None else there.get(name)
    if child is None and not rest and value.value is None:
        known = [] if there is None or there.value is None else there.value
        raise _Nowhere(value.mark, (*done, name), f"there is no such key to remove{suggestion(name, known)}")
    return Located({name: _layer(child, rest, value, (*done, name))}, value.mark, value.base)


def _in_list(there: Located, name: str, rest: list[str], value: Located, done: Key) -> Located:
    """The whole list, because lists are replaced, with one item changed."""
    items = list(there.value)
    if not _INDEX.match(name) or int(name) >= len(items):
        raise _Nowhere(value.mark, done, f"is a list of {len(items)}: expected an index from 0 to {len(items) - 1}, not {name!r}")
    at = (*done, int(name))
    items[int(name)] = merge(items[int(name)], _layer(items[int(name)], rest, value, at), at)
    return Located(items, there.mark, there.base)
