"""Pydantic's errors in the words of the playbook, each with the file and line that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError

from . import models
from .locate import Located, find
from .merge import KINDS
from .overrides import FLAGS
from .problems import Key, Problem, dotted, near_miss, suggestion
from .targets import kind_problem
from .values import PATTERN_WORDS, Section

# What was expected, by pydantic's error type; `{...}` comes from the error's context.
_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
}
_LONGEST_VALUE = 60


def explain(error: ValidationError, tree: Located) -> list[Problem]:
    """The problems of a failed validation; ``tree`` is what was validated."""
    problems: list[Problem] = []
    missing: list[Problem] = []
    meant: set[Key] = set()
    for detail in error.errors(include_url=False):
        key = _key(detail["loc"])
        if detail["type"] == "extra_forbidden":
            known = _known_keys(detail["loc"][:-1])
            text = f"no such key{suggestion(str(key[-1]), known)}"
            problems.append(Problem(find(tree, key).mark, key, text, _flag_in_full(tree, key)))
            if (near := near_miss(str(key[-1]), known)) is not None:
                meant.add((*key[:-1], near))
        elif detail["type"] == "missing":
            missing.append(Problem(find(tree, key[:-1]).mark, key, "this key is required, and missing"))
        else:
            problems.append(Problem(find(tree, key).mark, key, _text(detail, key, tree)))
    # A misspelt key is one mistake, not an unknown key and a missing one.
    return problems + [problem for problem in missing if problem.key not in meant]


def _flag_in_full(tree: Located, key: Key) -> str:
    """The command for an override that may have meant a flag which the playbook does not set; empty for what a file says."""
    if len(key) != 1 or find(tree, key).mark.line is not None:
        return ""
    return f"--set {dotted((*FLAGS, *key))}=VALUE, if the engine's flag is meant: one that the playbook does not set is named in full"


def _key(loc: tuple[int | str, ...]) -> Key:
    """Pydantic's location without the names of union members, ``<Name>``, and without its mark of a mapping's key."""
    return tuple(part for part in loc if not (isinstance(part, str) and (_is_member(part) or part == "[key]")))


def _is_member(part: str) -> bool:
    return part.startswith("<") and part.endswith(">")


def _text(detail: Any, key: Key, tree: Located) -> str:
    kind, context, got = detail["type"], detail.get("ctx", {}), _shown(detail.get("input"))
    if kind == "value_error":
        return str(context["error"])
    if kind == "kind" and key in KINDS:
        return kind_problem(key, find(tree, key))
    if kind == "string_pattern_mismatch":
        words = PATTERN_WORDS.get(context["pattern"], f"text that matches {context['pattern']}")
        return f"expected {words}, not {got}"
    if kind == "literal_error":
        choices = [choice.strip(" '") for choice in context["expected"].replace(" or ", ", ").split(",")]
        near = near_miss(str(detail.get("input")), choices)
        return f"expected {context['expected']}, not {got}" + (f"; did you mean {near!r}?" if near else "")
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind].format(**context)}, not {got}"
    return f"{detail['msg']}; here: {got}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """The keys of the section at a location."""
    section: type[Section] = models.Playbook
    for part in loc:
        if isinstance(part, str) and _is_member(part):
            section = getattr(models, part[1:-1])
        elif isinstance(part, str) and part in section.model_fields:
            section = _first_section(section.model_fields[part].annotation) or section
    return [field.alias or name for name, field in section.model_fields.items()]


def _first_section(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for argument in get_args(annotation):
        if (section := _first_section(argument)) is not None:
            return section
    return None
