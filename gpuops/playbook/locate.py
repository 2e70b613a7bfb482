"""YAML text to a tree of plain values that know where they were written.

Scalars follow the YAML 1.2 core schema, so that a playbook means what it looks like: ``yes``, ``on``, ``1:30`` and ``2026-01-01``
are text, only ``true`` and ``false`` are switches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .problems import Key, Mark, Problem, invalid

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")

_UNQUOTED = "; inside {...} and [...] a value with ${NAME} must be in quotes"

MAX_DEPTH = 50
"""Deeper than any playbook, and shallow enough for functions that walk the tree by calling themselves."""

MAX_NODES = 50_000
MAX_DIGITS = 100
"""More values than any playbook needs: aliases of aliases would otherwise fill the memory from a few lines of text."""


@dataclass(frozen=True)
class Located:
    """A value, where it was written, and the folder that relative paths in it start from.

    Args:
        value: a dict of text to Located, a list of Located, or a scalar.
    """

    value: Any
    mark: Mark
    base: Path

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    def get(self, key: str) -> "Located | None":
        """The value under a key; None when it is absent or this is no mapping."""
        return self.value.get(key) if self.is_mapping else None


def parse(text: str, file: str, base: Path) -> Located:
    """The located tree of a whole playbook file.

    Raises:
        PlaybookError: the text is no YAML, no mapping, or holds a key twice.
    """
    return _build(text, Mark(file, 1), base, file, fixed=False)


def parse_value(text: str, mark: Mark, base: Path, playbook: str) -> Located:
    """The located value of a ``--set`` option: everything in it is marked with the option. Errors name ``playbook``.

    Raises:
        PlaybookError: the text is no YAML.
    """
    return _build(text, mark, base, playbook, fixed=True)


def plain(node: Located) -> Any:
    """The tree as dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def find(node: Located, key: Key) -> Located:
    """The value at a key path, or the nearest one above it that exists."""
    for part in key:
        child = _child(node, part)
        if child is None:
            break
        node = child
    return node


def _child(node: Located, part: str | int) -> Located | None:
    if isinstance(part, str):
        return node.get(part)
    items = node.value if isinstance(node.value, list) else []
    return items[part] if part < len(items) else None


def _build(text: str, mark: Mark, base: Path, playbook: str, *, fixed: bool) -> Located:
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        where = mark if fixed or at is None else Mark(mark.file, at.line + 1)
        hint = _UNQUOTED if _has_unquoted_variable(text, at) else ""
        raise invalid(playbook, [Problem(where, (), f"no YAML: {_sentence(error)}{hint}")]) from error
    except yaml.YAMLError as error:
        raise invalid(playbook, [Problem(mark, (), f"no YAML: {' '.join(str(error).split())}")]) from error
    builder = _Builder(mark, base, fixed)
    try:
        located = Located(None, mark, base) if root is None else builder.convert(root, (), mark)
    except _TooMany:
        # A problem for each of the rest would say nothing more.
        raise invalid(playbook, builder.problems) from None
    if not fixed and not located.is_mapping:
        builder.problems.append(Problem(mark, (), "expected a mapping of keys such as 'service' and 'host'"))
    if builder.problems:
        raise invalid(playbook, builder.problems)
    return located


def _has_unquoted_variable(text: str, at: Any) -> bool:
    lines = text.splitlines()
    return at is not None and at.line < len(lines) and "${" in lines[at.line]


def _sentence(error: yaml.MarkedYAMLError) -> str:
    return " ".join(part for part in (error.context, error.problem) if part)


class _TooMany(Exception):
    """The text has more values than a playbook may have."""


class _Builder:
    """Turns composed nodes into located values, collecting problems on the way."""

    def __init__(self, mark: Mark, base: Path, fixed: bool) -> None:
        self.problems: list[Problem] = []
        self._mark, self._base, self._fixed = mark, base, fixed
        self._open: list[int] = []
        self._count = 0

    def convert(self, node: Any, key: Key, mark: Mark) -> Located:
        self._count += 1
        if id(node) in self._open:
            return self._refuse(mark, key, "an alias must not contain itself")
        if len(self._open) > MAX_DEPTH:
            return self._refuse(mark, key[:1], f"nested more than {MAX_DEPTH} deep")
        if self._count > MAX_NODES:
            self._refuse(mark, key, f"more than {MAX_NODES} values, aliases counted as often as they are used")
            raise _TooMany
        if not node.tag.startswith(_TAG):
            return self._refuse(mark, key, f"the tag {node.tag} has no meaning in a playbook")
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return Located(self._mapping(node, key), mark, self._base)
            if isinstance(node, yaml.SequenceNode):
                items = [self.convert(item, (*key, index), self._at(item)) for index, item in enumerate(node.value)]
                return Located(items, mark, self._base)
            if node.tag == f"{_TAG}int" and len(node.value) > MAX_DIGITS:
                return self._refuse(mark, key, f"a number of {len(node.value)} characters")
            return Located(_core_scalar(node.tag.removeprefix(_TAG), node.value), mark, self._base)
        finally:
            self._open.pop()

    def _mapping(self, node: Any, key: Key) -> dict[str, Located]:
        entries: dict[str, Located] = {}
        inherited: dict[str, Located] = {}
        for key_node, value_node in node.value:
            at = self._at(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(at, key, "a key must be text")
            elif key_node.tag == f"{_TAG}merge":
                inherited = {**self._merged(value_node, key, at), **inherited}
            elif key_node.value in entries:
                first = entries[key_node.value].mark
                self._refuse(at, (*key, key_node.value), f"this key stands twice, first on line {first.line}")
            else:
                entries[key_node.value] = self.convert(value_node, (*key, key_node.value), at)
        return {**inherited, **entries}

    def _merged(self, node: Any, key: Key, mark: Mark) -> dict[str, Located]:
        """``<<: *anchor`` or a list of anchors, of which the first wins."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Located] = {}
        for source in sources:
            located = self.convert(source, key, mark)
            if not located.is_mapping:
                self._refuse(mark, key, "'<<' takes a mapping, or a list of mappings")
                continue
            merged = {**located.value, **merged}
        return merged

    def _at(self, node: Any) -> Mark:
        return self._mark if self._fixed else Mark(self._mark.file, node.start_mark.line + 1)

    def _refuse(self, mark: Mark, key: Key, text: str) -> Located:
        self.problems.append(Problem(mark, key, text))
        return Located(None, mark, self._base)


def _core_scalar(kind: str, text: str) -> Any:
    """The value of a scalar that PyYAML resolved by YAML 1.1, by the narrower rules of the YAML 1.2 core schema."""
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and _INT.match(text):
        return int(text)
    if kind == "float" and _FLOAT.match(text):
        return float(text)
    return text
