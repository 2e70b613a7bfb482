"""From a path to one located tree: ``extends``, then ``--host``, then ``--set``, each laid over what came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuops.errors import PlaybookError

from .locate import Located, parse
from .merge import merge
from .overrides import override
from .paths import NO_PATH, no_path
from .problems import Mark, Problem, invalid, near_miss


@dataclass(frozen=True)
class Assembled:
    """A playbook with everything it extends merged in and every override applied; nothing validated yet."""

    tree: Located
    path: Path
    base_dir: Path


def assemble(path: Path, overrides: Sequence[str] = (), host: str | None = None) -> Assembled:
    """Read a playbook and all that it extends.

    Args:
        overrides: ``KEY.PATH=VALUE`` texts, applied in order.
        host: replaces the whole ``host`` section: an ssh address or ``local``.

    Raises:
        PlaybookError: a file is missing or no YAML, ``extends`` runs in a circle, an override names no place.
    """
    tree = _read(path, [])
    if host is not None:
        option = Located(host, Mark("--host"), Path.cwd())
        tree = Located({**tree.value, "host": option}, tree.mark, tree.base)
    for text in overrides:
        tree = override(tree, text, str(path))
    return Assembled(tree, path, path.parent.absolute())


def _read(path: Path, chain: list[Path]) -> Located:
    """The tree of a file with all that it extends merged in; ``chain`` holds the files that led here."""
    tree = parse(_text(path), str(path), path.parent.absolute())
    parent = tree.value.pop("extends", None)
    if parent is None or parent.value is None:
        return tree
    if not isinstance(parent.value, str):
        raise _bad_extends(path, parent.mark, "expected the path of another playbook, as text")
    chain = [*chain, path]
    try:
        above = path.parent / Path(parent.value).expanduser()
        circle = any(above.resolve() == seen.resolve() for seen in chain)
        there, folder = above.is_file(), above.is_dir()
    except NO_PATH as error:
        raise _bad_extends(path, parent.mark, no_path(parent.value, error)) from error
    if circle:
        raise _bad_extends(path, parent.mark, f"runs in a circle: {' -> '.join(str(file) for file in [*chain, above])}")
    if folder:
        raise _bad_extends(path, parent.mark, f"{above} is a folder: expected the path of another playbook")
    if not there:
        raise _bad_extends(path, parent.mark, f"there is no file {above}{_sibling(above)}")
    return merge(_read(above, chain), tree)


def _bad_extends(path: Path, mark: Mark, text: str) -> PlaybookError:
    return invalid(str(path), [Problem(mark, ("extends",), text)])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise PlaybookError(
            f"there is no playbook {path}{_sibling(path)}",
            evidence=str(error),
            next="name one with -p FILE; ready ones lie in playbooks/",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PlaybookError(f"the playbook {path} cannot be read", evidence=str(error), next=f"ls -l {path}") from error


def _sibling(missing: Path) -> str:
    """The playbook beside a missing one that was probably meant, as the tail of a message."""
    meant = near_miss(missing.name, (file.name for file in missing.parent.glob("*.yaml")))
    return f"; did you mean {meant!r}?" if meant is not None else ""
