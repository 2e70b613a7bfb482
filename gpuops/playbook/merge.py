"""One rule for everything that is laid over a playbook: a playbook over the one it extends, ``--set`` over both."""

from __future__ import annotations

from .locate import Located
from .problems import Key

KINDS: dict[Key, tuple[str, ...]] = {
    ("host",): ("address", "sandbox"),
    ("runtime",): ("lock", "path"),
    ("model",): ("path", "config", "hf", "package"),
    ("build",): ("overlay", "tree"),
}
"""Sections that come in several kinds, told apart by the key they hold."""


def merge(base: Located, top: Located, key: Key = ()) -> Located:
    """``top`` laid over ``base``: mappings are merged, lists and scalars replaced, null removes the key.

    A section that names another kind (:data:`KINDS`) is replaced too: the keys of a package mean nothing to a path.

    Args:
        key: where in the playbook the two stand.
    """
    if not (base.is_mapping and top.is_mapping):
        return top
    merged = {} if _other_kind(base, top, key) else dict(base.value)
    for name, child in top.value.items():
        if child.value is None:
            merged.pop(name, None)
        elif name in merged:
            merged[name] = merge(merged[name], child, (*key, name))
        else:
            merged[name] = child
    # What is missing from a mapping is reported at its mark, and belongs into a file rather than into an option.
    mark = base.mark if top.mark.line is None else top.mark
    return Located(merged, mark, top.base)


def kinds_in(node: Located, key: Key) -> set[str]:
    """The kinds that a section names: one if it is valid."""
    return {kind for kind in KINDS.get(key, ()) if (child := node.get(kind)) is not None and child.value is not None}


def _other_kind(base: Located, top: Located, key: Key) -> bool:
    before, after = kinds_in(base, key), kinds_in(top, key)
    return bool(before and after) and before != after
