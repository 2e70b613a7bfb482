"""Loading a playbook: read, lay over, replace variables, validate, check that its files are there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from gpuops.errors import PlaybookError

from .errors import explain
from .interpolate import interpolate
from .layers import assemble
from .locate import plain
from .models import Playbook
from .paths import absolute, missing, relocate
from .problems import first_of_each_key, invalid
from .targets import Target, connect


@dataclass(frozen=True)
class LoadedPlaybook:
    """A valid playbook, and what belongs to it.

    Args:
        path: the file, as the user named it.
        model: the playbook; secrets in it are placeholders ``@{secret:NAME}``, paths start from ``base_dir``.
        secret_values: the values of the secrets that the server uses; never shown by ``repr``. Those of ``notify`` stay on the laptop and
            are not among them.
        base_dir: the folder of the file, absolute.
    """

    path: Path
    model: Playbook
    secret_values: Mapping[str, str] = field(repr=False)
    base_dir: Path

    def target(self) -> Target:
        """Where the service runs. Raises TransportError when the host is a sandbox that does not exist."""
        host = self.model.host
        return connect(self.model.service, host if isinstance(host, str) else host.model_dump(exclude_none=True), self.base_dir)

    def file(self, path: str) -> Path:
        """The absolute path of a file or folder that the playbook names."""
        return absolute(path, self.base_dir)

    def asset(self, path: str) -> str:
        """The text of a file that the playbook names.

        Raises:
            PlaybookError: it cannot be read, or is no UTF-8 text.
        """
        file = self.file(path)
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlaybookError(
                f"a file that {self.path} names cannot be read", evidence=f"{file}: {error}", next=f"ls -l {file}"
            ) from error


def load(
    path: Path | str,
    overrides: Sequence[str] = (),
    host: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedPlaybook:
    """Load and validate a playbook.

    Args:
        overrides: ``--set`` texts, ``KEY.PATH=VALUE``, applied in order.
        host: replaces the playbook's ``host``: an ssh address or ``local``.
        environ: the laptop's variables; ``os.environ`` when absent.

    Raises:
        PlaybookError: with every problem that was found, each with file, line and key.
    """
    path = Path(path)
    assembled = assemble(path, overrides, host)
    filled = interpolate(assembled.tree, os.environ if environ is None else environ)
    tree = relocate(filled.tree, assembled.base_dir)
    problems = [*filled.problems, *missing(tree, assembled.base_dir)]
    try:
        model = Playbook.model_validate(plain(tree))
    except ValidationError as error:
        # Without a traceback to pydantic: its message would repeat the input in its own words.
        raise invalid(str(path), first_of_each_key([*problems, *explain(error, tree)])) from None
    if problems:
        raise invalid(str(path), problems)
    return LoadedPlaybook(path, model, filled.secret_values, assembled.base_dir)
