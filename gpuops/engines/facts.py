"""Loading an engine's facts of one version."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpuops.engines.argv import Flag, FlagRules, GoneFlag, WeightCache, flag_words
from gpuops.errors import Exit, GpuopsError

_HERE = Path(__file__).parent
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)")

# Sections whose rows may hold for some versions only, as far as reading a log needs them.
_VERSIONED = ("phases", "noise", "harmless", "quoting", "survived", "serving", "meeting", "births", "stopping", "signatures")

Row = dict[str, Any]
Version = tuple[int, ...]


@dataclass(frozen=True)
class EngineFacts:
    """What is known of one version of one engine.

    Attributes:
        name: the engine, ``sglang``.
        version: the version that was asked for.
        note: what the user should know about this version; empty when it is a known one.
        module: the Python module that serves.
        endpoints: HTTP paths by use, the preferred one first: ``info``, ``models``, ``generate``, ``chat``, ``health``, and ``ready``
            where there is one.
        identity: keys of the info answer that name the server: ``version``, ``model_path``, ``served_model_name``, ``port``.
        cache: environment variables of the compile caches, with each one's folder under the cache.
        cache_parts: for each of these folders, the packages whose versions its content depends on, and which of its files hold its own path.
        flag_rules: which flags a playbook may set.
        weight_cache: how a server takes weights that the engine keeps on the cards beyond a server's life.
    """

    name: str
    version: str
    note: str
    module: str
    endpoints: Mapping[str, tuple[str, ...]]
    identity: Mapping[str, str]
    cache: Mapping[str, str]
    cache_parts: tuple[Row, ...]
    flag_rules: FlagRules
    weight_cache: WeightCache
    _phases: tuple[Row, ...]
    _ranks: tuple[str, ...]
    _rank_name: str
    _meaningful: Mapping[str, Any]
    _sampling: Mapping[str, Any]

    def launch(
        self,
        *,
        flags: Mapping[str, Flag],
        bind: str = "127.0.0.1",
        served_model_name: str | None = None,
        python: str = "@{python}",
        model: str = "@{model}",
        port: str = "@{port}",
    ) -> list[str]:
        """The server's argv; flags in the order given.

        Raises:
            PlaybookError: a flag is badly written, belongs to gpuops, or does not exist in this version.
        """
        name = ["--served-model-name", served_model_name] if served_model_name else []
        argv = [python, "-m", self.module, "--model-path", model, "--host", bind, "--port", port, *name]
        for flag, value in flags.items():
            self.flag_rules.check(flag, f"{self.name} {self.version}")
            argv += flag_words(flag, value)
        return argv

    def cache_environment(self, root: str = "@{cache}") -> dict[str, str]:
        """Environment that keeps every compile cache of the engine under ``root``."""
        return {variable: f"{root}/{folder}" for variable, folder in self.cache.items()}

    def as_order(self, *, schedulers: int | None = None, first_card: int = 0, card_step: int = 1) -> dict[str, Any]:
        """The order's ``engine`` object, plain JSON.

        ``schedulers`` is how many rank processes are expected, where that is known. They take the visible cards from ``first_card`` on, each
        ``card_step``-th.

        ::

            name, version     as asked for
            endpoints         {use: [path, ...]}
            identity          {version|model_path|served_model_name|port: key of the info answer}
            phases            [{phase, detail, pattern, progress?}], in phase order; ``pattern`` is searched in a log line without its prefix; the
                              groups ``done`` and ``total``, where it has them, or ``progress`` (0..1) tell how far the step is
            ranks             {patterns: [regex on a process title], schedulers: number | null, name: regex on a scheduler's title, the group ``rank``
                              is what people call it, cards: {first, step}}
            meaningful        {prefix: regex, noise, harmless, quoting, survived, serving, meeting, births, stopping: [regex], signatures: [row of the
                              failure table],
                              incurable: [{pattern, why}], poisoned: [regex]}
                              incurable words of a death that starting again cannot cure
                              poisoned  words of a death by a damaged JIT cache: one start with a fresh cache may cure it
                              prefix    what every record of the log starts with (time, and the group ``rank`` where there are several)
                              noise     lines that never are the last meaningful one
                              harmless  records whose traceback does not mean that the server died
                              quoting   lines that repeat what others wrote, and general advice: never a sign of anything
                              survived  words by which a line says that the program goes on after what it tells
                              serving   lines that only a server writes that answers
                              meeting   where the ranks meet: a log that stops there waits for one of them
                              births    said once by every server: a log may hold several, one after the other
                              stopping  said by a server that was asked to stop
                              signatures  what is known of failures, see ``failures/`` and ``gpuops_agent/symptoms.py``
            caches            [{folder, packages, rebase?, ninja?}]: a part of the compile cache, the packages whose versions it depends on, a
                              pattern of the names of files that hold its own path (a copy of them is rewritten), and whether it has
                              builds of ninja's that do (a copy of them is rewritten and built)
            sampling          {generate|chat: {body, text: path to the answer, output_ids?: path}}: a greedy request; a string of the body that
                              is exactly @{prompt}, @{max_tokens} (a number) or @{model} is replaced
        """
        return {
            "name": self.name,
            "version": self.version,
            "endpoints": {use: list(paths) for use, paths in self.endpoints.items()},
            "identity": dict(self.identity),
            "phases": [dict(row) for row in self._phases],
            "ranks": {
                "patterns": list(self._ranks),
                "schedulers": schedulers,
                "name": self._rank_name,
                "cards": {"first": first_card, "step": card_step},
            },
            "meaningful": json.loads(json.dumps(self._meaningful)),
            "caches": json.loads(json.dumps(self.cache_parts)),
            "sampling": json.loads(json.dumps(self._sampling)),
        }


def reading(name: str = "sglang") -> dict[str, Any]:
    """What it takes to read a log of which nobody knows the version: ``phases`` and ``meaningful`` as in an order, with the rows of all versions."""
    data = {**_load(name), **_failures(name)}
    every = {section: [{**row, "since": "0", "until": "9999"} for row in data[section]] for section in _VERSIONED}
    order = _select({**data, **every}, data["newest"], _known(data["newest"]), "").as_order()
    return {key: order[key] for key in ("phases", "meaningful")}


def facts(name: str, version: str) -> EngineFacts:
    """The facts of ``version`` of the engine ``name``.

    A version newer than the newest known gets that one's facts and a ``note``. Post-releases and local labels count as their release.

    Raises:
        GpuopsError: there is no such engine, the text is no version, or the version is older than the oldest known.
    """
    data = _load(name)
    wanted = _parse(version)
    if wanted is None:
        raise GpuopsError(
            f"{version!r} is not a version of {name}",
            evidence=f"a version looks like {data['newest']}",
            next=f"give engine.version as {data['oldest']} .. {data['newest']}",
            code=Exit.PLAYBOOK,
            kind="engine_version",
        )
    if wanted < _known(data["oldest"]):
        raise GpuopsError(
            f"{name} {version} is older than what gpuops knows",
            evidence=f"known versions are {data['oldest']} to {data['newest']}",
            next=f"use {name} {data['oldest']} or newer",
            code=Exit.PLAYBOOK,
            kind="engine_version",
        )
    note = ""
    if wanted > _known(data["newest"]):
        note = f"{name} {version} is newer than what gpuops knows; it is treated like {data['newest']}"
    return _select({**data, **_failures(name)}, version, wanted, note)


@cache
def _load(name: str) -> Row:
    known = sorted(path.stem for path in _HERE.glob("*.json"))
    if name not in known:
        raise GpuopsError(
            f"gpuops does not know the engine {name!r}",
            evidence=f"known: {', '.join(known)}",
            next="name one of these in the playbook",
            code=Exit.PLAYBOOK,
            kind="engine",
        )
    data: Row = json.loads((_HERE / f"{name}.json").read_text(encoding="utf-8"))
    return data


@cache
def _failures(name: str) -> Row:
    data: Row = json.loads((_HERE / "failures" / f"{name}.json").read_text(encoding="utf-8"))
    return data


def _select(data: Row, version: str, wanted: Version, note: str) -> EngineFacts:
    def rows(section: str) -> list[Row]:
        return [row for row in data[section] if _holds(row, wanted)]

    return EngineFacts(
        name=data["engine"],
        version=version,
        note=note,
        module=data["module"],
        endpoints={row["name"]: tuple(row["value"]) for row in rows("endpoints")},
        identity={row["name"]: row["value"] for row in rows("identity")},
        cache={row["name"]: row["folder"] for row in rows("cache")},
        cache_parts=tuple(_only(row, "folder", "packages", "rebase", "ninja") for row in rows("cache")),
        flag_rules=FlagRules(
            own={row["flag"]: row["playbook"] for row in rows("own_flags")},
            gone=tuple(GoneFlag(row["flag"], row["use"], row["source"]) for row in rows("gone_flags")),
        ),
        weight_cache=_weight_cache(rows("weight_cache"), data["weight_cache"], f"{data['engine']} {version}"),
        _phases=tuple(_only(row, "phase", "detail", "pattern", "progress") for row in rows("phases")),
        _ranks=tuple(row["pattern"] for row in rows("ranks")),
        _rank_name=data["rank_name"]["pattern"],
        _meaningful={
            "prefix": data["log_prefix"]["pattern"],
            "noise": [row["pattern"] for row in rows("noise")],
            "harmless": [row["pattern"] for row in rows("harmless")],
            "quoting": [row["pattern"] for row in rows("quoting")],
            "survived": [row["pattern"] for row in rows("survived")],
            "serving": [row["pattern"] for row in rows("serving")],
            "meeting": [row["pattern"] for row in rows("meeting")],
            "births": [row["pattern"] for row in rows("births")],
            "stopping": [row["pattern"] for row in rows("stopping")],
            "signatures": [_without(row, "source", "applies", "since", "until") for row in rows("signatures")],
            "incurable": [
                {"pattern": row["pattern"], "why": row["what"]}
                for row in rows("signatures")
                if row["kind"] == "fatal" and not row["restart_cures"] and not _by_place(row)
            ],
            "poisoned": [row["pattern"] for row in rows("signatures") if row.get("fresh_cache_cures") and not _by_place(row)],
        },
        _sampling={use: _only(row, "body", "text", "output_ids") for use, row in data["sampling"].items()},
    )


def _weight_cache(rows: list[Row], every: list[Row], engine: str) -> WeightCache:
    first = every[0]["since"] if every else None
    row = rows[0] if rows else {"flags": None, "excludes": []}
    return WeightCache(engine, row["flags"], tuple(row["excludes"]), first)


def _only(row: Row, *keys: str) -> Row:
    return {key: row[key] for key in keys if key in row}


def _by_place(row: Row) -> bool:
    """Whether its words mean nothing without the frames above them."""
    return "at" in row or "raised_at" in row


def _without(row: Row, *keys: str) -> Row:
    return {key: value for key, value in row.items() if key not in keys}


def _holds(row: Row, wanted: Version) -> bool:
    if "since" in row and wanted < _known(row["since"]):
        return False
    return "until" not in row or wanted < _known(row["until"])


def _known(version: str) -> Version:
    return tuple(int(part) for part in version.split("."))


def _parse(version: str) -> Version | None:
    """The release numbers of a version; suffixes (``.post1``, ``rc1``, ``+cu130``) are left out."""
    found = _VERSION.match(version)
    return _known(found.group(1)) if found else None
