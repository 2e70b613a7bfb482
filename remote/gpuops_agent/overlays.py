"""Patched overlays: a private copy of the engine's package with a build's patches applied, first on PYTHONPATH, so that the runtime is never altered.

``overlays/<build>-<key>/{overlay.json,site/}``, where the key stands for the runtime and its engine as installed. Python imports whole packages,
so the copy is whole: files that no patch touches are links to the runtime's own (copies where the file system cannot link), those that one
touches are private before git's own machinery changes them.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import fitness, tool, unified
from .files import disk_error, read_json, sha256, sync_folder, write_json
from .paths import Root
from .runtimes import Runtime
from .unified import PatchedFile
from .wire import HOST_UNFIT, AgentError, Cancelled

if TYPE_CHECKING:
    from .prepare import Work


@dataclass(frozen=True)
class Overlay:
    """A patched copy in place: its folder for PYTHONPATH, the engine that was patched, and the patches."""

    id: str
    site: Path
    engine: str
    patches: Tuple[str, ...]

    def to_json(self) -> Dict[str, Any]:
        return {"id": self.id, "site": str(self.site), "engine": self.engine, "patches": list(self.patches)}


@dataclass(frozen=True)
class _Patch:
    """A patch file, and what it touches."""

    file: Path
    touches: Tuple[PatchedFile, ...]


def ensure(root: Root, build: Path, runtime: Runtime, engine: Dict[str, Any], work: "Work") -> Optional[Overlay]:
    """The overlay of a build's patches over a runtime's engine, made when it is missing; None for a build without patches.

    Args:
        build: the build's folder.
        engine: ``{name, version}`` of the order.
    Raises:
        AgentError: no patches for this version; the runtime has another one, or a file that is not as its package shipped it; a patch does not
            apply; no git; no disk.
        wire.Cancelled
    """
    patches = build / "patches"
    known = sorted(folder.name for folder in patches.iterdir() if folder.is_dir()) if patches.is_dir() else []
    if not known:
        return None
    wanted = f"{engine['name']}-{engine['version']}"
    if wanted not in known:
        raise _refused(
            f"the build {build.name} has no patches for {engine['name']} {engine['version']}",
            f"it has patches for {', '.join(known)}",
            "choose a build for this version (gpuops builds list), or add the patches and make it again",
            "engine_version",
        )
    files = [_read(path) for path in sorted((patches / wanted).glob("*.patch"))]
    installed, record = _installed(runtime, engine)
    name = f"{build.name}-{_key(runtime, record)}"
    final = root.overlays / name
    made = Overlay(name, final / "site", wanted, tuple(each.file.name for each in files))
    if not _is_true(final):
        _must_be_as_shipped(build.name, files, installed, record)
        work.emit("phase", phase="install", progress=None, detail=f"patching {wanted}")
        _make(final, files, installed, work)
    return made


def _make(final: Path, patches: List[_Patch], installed: Path, work: "Work") -> None:
    incoming = final.parent / f".incoming-{final.name}"
    shutil.rmtree(incoming, ignore_errors=True)
    shutil.rmtree(final, ignore_errors=True)
    site = incoming / "site"
    touched = {each.path for patch in patches for each in patch.touches}
    try:
        site.mkdir(parents=True)
        for package in sorted({path.split("/")[0] for path in touched}):
            _copy(installed, package, site, touched, work)
        for patch in patches:
            _apply(patch, site, work)
        private = sorted(path for path in touched if (site / path).is_file())
        for path in private:
            os.chmod(site / path, 0o444)
        write_json(incoming / "overlay.json", {"files": {path: sha256(site / path) for path in private}})
        os.replace(incoming, final)
        sync_folder(final.parent)
    except OSError as error:
        raise disk_error(error, incoming) from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _copy(installed: Path, package: str, site: Path, touched: "set[str]", work: "Work") -> None:
    """The whole package, byte-code aside."""
    for folder, names, files in os.walk(installed / package):
        if work.cancelled():
            raise Cancelled()
        names[:] = [name for name in names if name != "__pycache__"]
        here = Path(folder).relative_to(installed)
        (site / here).mkdir(parents=True, exist_ok=True)
        for name in files:
            path = here / name
            _link(Path(folder) / name, site / path, private=path.as_posix() in touched)


def _link(source: Path, target: Path, *, private: bool) -> None:
    if not private:
        try:
            # Of the file itself: some installers put links into their cache.
            os.link(os.path.realpath(source), target)
            return
        except OSError:
            # Another file system, or another owner's file.
            pass
    shutil.copy2(source, target)


def _apply(patch: _Patch, site: Path, work: "Work") -> None:
    git = ["git", "-C", str(site), "apply", "-p1", "--whitespace=nowarn"]
    # The ceiling: a repository around ROOT must not make git take the patch's paths as its own. No configuration: it could allow fuzz.
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CEILING_DIRECTORIES": str(site.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "LC_ALL": "C",
    }
    if shutil.which("git") is None:
        raise _refused(
            "the host has no git, which applies a build's patches",
            f"PATH: {os.environ.get('PATH', '')}",
            "install git on the host",
            "no_git",
        )
    for options in (["--check"], []):
        try:
            tool.run(
                [*git, *options, str(patch.file)],
                what=f"applying {patch.file.name}",
                log=work.log,
                cancelled=work.cancelled,
                deadline=work.deadline,
                env=environment,
            )
        except AgentError as error:
            if error.kind != "tool":
                raise
            raise _refused(
                f"the patch {patch.file.parent.name}/{patch.file.name} does not apply{_where(patch, error.evidence)}",
                error.evidence,
                "mend the patch for this version, then gpuops builds make again",
                "patch",
            ) from error


def _where(patch: _Patch, evidence: str) -> str:
    """The file and the hunk that git names."""
    failed = re.search(r"patch failed: (.+?):(\d+)", evidence)
    if failed is None:
        named = next((each.path for each in patch.touches if each.path in evidence), "")
        return f" to {named}" if named else ""
    file = next((each for each in patch.touches if each.path == failed[1]), None)
    hunk = file.hunk_at(int(failed[2])) if file else ""
    return f" to {failed[1]}" + (f", {hunk}" if hunk else f", line {failed[2]}")


def _read(path: Path) -> _Patch:
    try:
        return _Patch(path, tuple(unified.read(path.read_text(encoding="utf-8"))))
    except ValueError as error:
        raise _refused(f"{path.parent.name}/{path.name} is no patch", str(error), "make it with git diff", "patch") from error


def _installed(runtime: Runtime, engine: Dict[str, Any]) -> Tuple[Path, Path]:
    """The site-packages that hold exactly this version of the engine, and its RECORD."""
    sites = fitness.packages(runtime.path)
    for site in sites:
        record = site / f"{engine['name'].replace('-', '_')}-{engine['version']}.dist-info" / "RECORD"
        if record.is_file():
            return site, record
    named = [info.name[: -len(".dist-info")] for site in sites for info in site.glob(f"{engine['name']}-*.dist-info")]
    raise _refused(
        f"the runtime does not have {engine['name']} {engine['version']}, which the patches are for",
        f"{runtime.path} has {', '.join(named) or 'no such package'}",
        "set engine.version to what the runtime has, and choose a build for it",
        "engine_version",
    )


def _must_be_as_shipped(build: str, patches: List[_Patch], installed: Path, record: Path) -> None:
    """Raises AgentError when a file that a patch touches is not the one of the engine's package."""
    with record.open(encoding="utf-8", newline="") as lines:
        shipped = {row[0]: row[1] for row in csv.reader(lines) if len(row) > 1}
    made = set()
    for patch in patches:
        for each in patch.touches:
            if each.path in made:
                continue
            if each.new:
                made.add(each.path)
            trouble = _trouble(each, installed, shipped)
            if trouble:
                raise _refused(
                    f"the patch {patch.file.parent.name}/{patch.file.name} of {build} cannot be applied: {each.path} {trouble}",
                    f"by {record}",
                    "give the runtime the engine's own package again, or make the patch for what it has",
                    "patch",
                )


def _trouble(each: PatchedFile, installed: Path, shipped: Dict[str, str]) -> str:
    expected = shipped.get(each.path)
    file = installed / each.path
    if each.new:
        return "is there already, and the patch would make it" if file.exists() else ""
    if expected is None:
        return "is no file of the engine's package"
    if not file.is_file():
        return "is missing from the runtime"
    kind, _, value = expected.partition("=")
    found = base64.urlsafe_b64encode(hashlib.new(kind or "sha256", file.read_bytes()).digest()).rstrip(b"=").decode()
    return "" if found == value else "is not as the engine's package shipped it"


def _is_true(folder: Path) -> bool:
    """Whether an overlay is there, with every patched file as it was made."""
    known = read_json(folder / "overlay.json")
    if known is None:
        return False
    try:
        return all(sha256(folder / "site" / path) == sha for path, sha in known["files"].items())
    except OSError:
        return False


def _key(runtime: Runtime, record: Path) -> str:
    # The record too: an environment that is not ours may get another build of the same version.
    return hashlib.sha256(runtime.id.encode() + b"\n" + record.read_bytes()).hexdigest()[:12]


def _refused(what: str, evidence: str, next: str, kind: str) -> AgentError:
    return AgentError(what, evidence=evidence, next=f"{next}; the running server was not touched", code=HOST_UNFIT, kind=kind)
