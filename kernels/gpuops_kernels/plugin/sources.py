"""What a function of the engine looks like in its source file: the fingerprint that says whether it is still the one we know.

A signature would not do: SGLang's sparse decode takes ``**kwargs``, and a changed meaning of an argument changes no signature.
"""

from __future__ import annotations

import ast
import hashlib
import textwrap
from pathlib import Path


class NotFoundError(LookupError):
    """The file has no such function."""


def fingerprint(file: Path, attribute: str) -> str:
    """16 hexadecimal digits of the sha256 of a function's text, decorators included, indentation and trailing blanks left out.

    Args:
        file: the module's source file.
        attribute: a function's name, or ``Class.method``.

    Raises:
        NotFoundError: there is no such definition at the module's top level, or no such file.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFoundError(f"{file} cannot be read: {error.strerror}") from error
    node: ast.AST = ast.parse(text)
    for name in attribute.split("."):
        found = [child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == name]
        if not found:
            raise NotFoundError(f"{file} does not define {attribute}")
        node = found[-1]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    normal = textwrap.dedent("\n".join(line.rstrip() for line in lines))
    return hashlib.sha256(normal.encode()).hexdigest()[:16]
