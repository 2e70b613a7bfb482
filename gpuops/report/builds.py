"""Builds as people read about them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.report.style import Paint, columns, fields
from gpuops.report.words import ago, plural, size

if TYPE_CHECKING:
    from gpuops.builds.bundle import Written
    from gpuops.builds.diff import Change, Difference
    from gpuops.builds.make import Made
    from gpuops.builds.store import Stored, Verdict
    from gpuops.transport.base import PushStats

About = Mapping[str, Any]

# A difference of hundreds of files is told by its first ones.
_MANY = 12


def made(build: Made) -> list[str]:
    """What was made, and how to use it."""
    head = f"{build.path} {'is made' if build.new else 'was there already, with the same content'}: {plural(len(build.tree.entries), 'file')}"
    return [head, f"  next        gpuops builds push {build.tree.id}, or build: {{tree: {build.path}}} in a playbook"]


def listed(here: Sequence[Stored], there: Sequence[Mapping[str, Any]] | None, folder: Path, now: float) -> list[str]:
    """A line a build; those of the host below."""
    rows = [[each.id, _when(each.about, now), _short(each.about)] for each in here]
    lines = [f"{plural(len(here), 'build')} in {folder}", *_table(rows)]
    if there is not None:
        lines += [
            f"{plural(len(there), 'build')} on the host",
            *_table([[each["id"], ago(each["at"], now), _short(each["about"])] for each in there]),
        ]
    return lines


def shown(path: Path, told: Mapping[str, Any], *, verbose: bool) -> list[str]:
    """Everything that is known of a build; every file only when ``verbose``."""
    about = told.get("about") or {}
    source, wheel = about.get("source") or {}, about.get("wheel") or {}
    pairs = [
        ("folder", str(path)),
        ("files", str(len(told["files"]))),
        ("wheel", f"{wheel['name']} {wheel['version']} ({', '.join(wheel['tags'])})" if wheel else ""),
        ("commit", _commit(source)),
        ("patches", ", ".join(about.get("patches") or ())),
        ("engines", "\n".join(_engines(about))),
        ("cards", ", ".join(f"compute capability {each}" for each in about.get("capabilities") or ())),
        ("compiled", ", ".join(f"{name} {version}" for name, version in (about.get("versions") or {}).items())),
        ("proof", _proof(about)),
        ("ahead", f"kernels are compiled before a start by {about['compile']}" if about.get("compile") else ""),
        ("resources", "\n".join(_resources(about))),
    ]
    lines = [str(told["id"]), *fields([(name, value) for name, value in pairs if value])]
    return lines + (_table([[path, f"{mode:o}", sha[:12]] for path, mode, sha in told["files"]]) if verbose else [])


def _proof(about: Mapping[str, Any]) -> str:
    proof = about.get("proof")
    return f"every rank by {proof['plugin']}, content {proof['content'][:12]}" if proof else ""


def verified(build: str, places: Sequence[tuple[str, Mapping[str, Any]]], paint: Paint) -> list[str]:
    """A line a place, and a line for every file that differs."""
    lines = []
    for place, told in places:
        wrong = told["wrong"]
        if not wrong:
            lines.append(paint.green(f"✓ {build} on {place}: {plural(told['files'], 'file')} as they were made"))
            continue
        lines.append(paint.red(f"✗ {build} on {place}: {plural(len(wrong), 'difference')}"))
        lines += _table([[each["path"], each["what"]] for each in wrong])
    return lines


def pushed(build: str, host: str, sent: PushStats | None) -> str:
    """One line."""
    if sent is None:
        return f"{build} is on {host} already"
    return f"{build} is on {host}: {plural(sent.files, 'file')}, {size(sent.bytes_sent)} sent by {sent.tool}"


def pruned(gone: Sequence[tuple[Verdict, int]], verdicts: Sequence[Verdict], *, dry_run: bool, verbose: bool) -> list[str]:
    """What goes from this machine; what stays only when ``verbose``."""
    rows = [[each.build.id, size(count), each.why] for each, count in gone]
    head = f"{size(sum(count for _, count in gone))} {'would go' if dry_run else 'are gone'} from this machine:"
    lines = [head, *_table(rows)] if gone else ["nothing to prune on this machine"]
    if verbose:
        lines += ["stays:", *_table([[each.build.id, each.why] for each in verdicts if not each.goes])]
    return lines


def different(old: str, new: str, found: Difference, paint: Paint) -> list[str]:
    """What changed, by kind."""
    head = f"{old} -> {new}" + (": the same content" if found.same else "")
    lines = [paint.bold(head)]
    for module, changes in found.files.items():
        lines += [f"{module}: {plural(len(changes), 'file')}", *_changes(changes, paint)]
    for title, changes in (
        ("patches", found.patches),
        ("targets", found.targets),
        ("resources", found.resources),
        ("metadata", found.metadata),
    ):
        lines += [title, *_changes(changes, paint)] if changes else []
    return lines


def bundled(written: Written, builds: Sequence[str]) -> list[str]:
    """What was written, and how to use it."""
    first = written.files[0]
    named = first if len(written.files) == 1 else first.with_suffix("")
    parts = "" if len(written.files) == 1 else f" in {plural(len(written.files), 'part')}"
    return [
        f"{named}: {written.members} members, {size(written.bytes)}{parts} ({written.id})",
        *([f"  builds      {', '.join(builds)}"] if builds else []),
        f"  next        gpuops up --bundle {shlex.quote(str(named))}",
    ]


def _changes(changes: Sequence[Change], paint: Paint) -> list[str]:
    rows = [[_sign(each, paint), each.what, _from_to(each)] for each in changes[:_MANY]]
    return _table(rows) + ([f"  ... and {len(changes) - _MANY} more"] if len(changes) > _MANY else [])


def _sign(change: Change, paint: Paint) -> str:
    return paint.green("+") if change.old is None else paint.red("-") if change.new is None else paint.yellow("~")


def _from_to(change: Change) -> str:
    if change.old is None or change.new is None:
        return str(change.new or change.old)
    return f"{change.old} -> {change.new}"


def _short(about: About) -> str:
    parts = [_commit(about.get("source") or {}), *(f"patches for {each}" for each in about.get("patches") or ())]
    engines = [f"{name} {ranges[0]['first']} to {ranges[-1]['last']}" for name, ranges in (about.get("engines") or {}).items()]
    return ", ".join(part for part in [*engines, *parts] if part)


def _when(about: About, now: float) -> str:
    return ago((about.get("made") or {}).get("at"), now)


def _commit(source: About) -> str:
    if not source.get("commit"):
        return ""
    changed = f" with changes {source['dirty']}" if source.get("dirty") else ""
    base = _commit(source.get("base") or {})
    return str(source["commit"])[:12] + changed + (f", on top of {base}" if base else "")


def _engines(about: About) -> list[str]:
    lines = []
    for engine, ranges in (about.get("engines") or {}).items():
        for each in ranges:
            on = [name for name, family in (each.get("families") or {}).items() if family["on"]]
            versions = each["first"] if each["first"] == each["last"] else f"{each['first']} to {each['last']}"
            lines.append(f"{engine} {versions}" + (f": {', '.join(on)}" if on else ""))
    return lines


def _resources(about: About) -> list[str]:
    """The largest figures of each card; --json has all of them."""
    lines = []
    for capability, binaries in (about.get("resources") or {}).items():
        most: dict[str, int] = {}
        for figures in binaries.values():
            for name, value in figures.items():
                most[name] = max(value, most.get(name, 0))
        told = ", ".join(f"{name} {most[name]}" for name in sorted(most) if name in ("registers", "shared", "spills"))
        lines.append(f"{capability}: {plural(len(binaries), 'kernel')}" + (f", at most {told}" if told else ""))
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in columns(rows)]
