"""What changed from one build to another: pure, over two trees that were read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gpuops.builds.manifest import Tree

Json = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One difference; None stands for what is not there."""

    what: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class Difference:
    """All differences, by kind.

    Args:
        files: by module (a folder of ``site/``), each file with the beginning of its sha256.
        patches: patch files.
        targets: engine versions, and what the plugin replaces there by default.
        resources: registers, shared memory and so on of the compiled kernels.
        metadata: commit, versions, cards.
    """

    files: Mapping[str, tuple[Change, ...]]
    patches: tuple[Change, ...]
    targets: tuple[Change, ...]
    resources: tuple[Change, ...]
    metadata: tuple[Change, ...]

    @property
    def same(self) -> bool:
        """Whether the two have the same content."""
        return not self.files and not self.patches

    def to_json(self) -> Json:
        plain = {name: [vars(each) for each in getattr(self, name)] for name in ("patches", "targets", "resources", "metadata")}
        files = {module: [vars(each) for each in changes] for module, changes in self.files.items()}
        return {"same": self.same, "files": files, **plain}


def diff(old: Tree, new: Tree) -> Difference:
    """Compare two builds."""
    changed = _changes(_files(old), _files(new))
    by_module: dict[str, list[Change]] = {}
    for change in changed:
        if change.what.startswith("site/"):
            by_module.setdefault(_module(change.what), []).append(change)
    return Difference(
        {module: tuple(changes) for module, changes in sorted(by_module.items())},
        tuple(change for change in changed if change.what.startswith("patches/")),
        tuple(_changes(_targets(old.about), _targets(new.about))),
        tuple(_changes(_resources(old.about), _resources(new.about))),
        tuple(_changes(_metadata(old.about), _metadata(new.about))),
    )


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    return [Change(key, old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]


def _files(tree: Tree) -> dict[str, str]:
    return {path: f"{sha[:12]}{' executable' if mode & 0o100 else ''}" for path, mode, sha in tree.entries}


def _module(path: str) -> str:
    """``site/gpuops_kernels/mhc/op.py`` belongs to ``gpuops_kernels.mhc``, ``site/x.py`` to ``x``."""
    parts = PurePosixPath(path).parts[1:]
    return ".".join(parts[:-1][:2]) if len(parts) > 1 else parts[0].removesuffix(".py")


def _targets(about: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for engine, ranges in (about.get("engines") or {}).items():
        for each in ranges:
            where = f"{engine} {each['first']} to {each['last']}"
            found[where] = "supported"
            for family, told in (each.get("families") or {}).items():
                found[f"{where}, {family}"] = f"{'on' if told['on'] else 'off'}: {', '.join(told['targets'])}"
    return found


def _resources(about: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{capability} {binary} {name}": str(value)
        for capability, binaries in (about.get("resources") or {}).items()
        for binary, figures in binaries.items()
        for name, value in figures.items()
    }


def _metadata(about: Mapping[str, Any]) -> dict[str, str]:
    source, wheel = about.get("source") or {}, about.get("wheel") or {}
    told = {
        "commit": source.get("commit"),
        "uncommitted changes": source.get("dirty"),
        "wheel": f"{wheel['name']} {wheel['version']}" if wheel else None,
        "cards": ", ".join(about.get("capabilities") or ()) or None,
        **{f"compiled with {name}": version for name, version in (about.get("versions") or {}).items()},
    }
    return {key: str(value) for key, value in told.items() if value}
