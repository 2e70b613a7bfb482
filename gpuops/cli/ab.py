"""Launch two builds in turns on one host, and say which is faster, or how much is missing to know.

A and B are builds, by id or its beginning; `none` (the playbook without a
build); `current`, `known-good`, or a release's number. Launches alternate
(A B B A), each is a rollout through every gate of which none is promoted,
and each is measured at the playbook's cells. The verdict rests on pairs of
launches: improved, regressed, equivalent, or inconclusive, and then how many
pairs are missing. Below five pairs it is a screen. In the end, and whatever
happens, the known-good release serves and its probes are put: by the host
itself when it misses us for longer than the playbook's deadlines.lease_s.

With B the same as A the comparison shows the noise of this host; it is kept there
for the performance gate. A comparison that was cut goes on with --resume [ID].

Every launch is an outage of the service.

Exit code: 0 every pair measured, 10 ended early and the known-good release
serves, 11 it does not, 1 a measurement cannot be believed.

\b
Examples:
  gpuops ab known-good gpuops-kernels-3f9c --pairs 8
  gpuops ab known-good known-good --cell c1 --cell c16
  gpuops ab none 3f9c --margin 3% --dry-run
  gpuops ab --resume
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuops.cli import places, signals
from gpuops.cli.builds_host import DirOption
from gpuops.cli.places import Where
from gpuops.cli.talk import OutputLost, Talk
from gpuops.cli.verb import verb
from gpuops.errors import Exit, GpuopsError

if TYPE_CHECKING:
    from gpuops.measure.ab import Comparison
    from gpuops.playbook.loader import LoadedPlaybook
    from gpuops.rollout.session import Session
    from gpuops.rollout.sides import Content

# Pairs below which there is no verdict (gpuops.measure.paired.FEWEST; a test holds the two together).
PAIRS = 5

# The most releases of a service that a side may name.
_ALL = 1_000_000


@verb
def main(
    talk: Talk,
    where: Where,
    a: Annotated[
        str | None,
        typer.Argument(metavar="A", help="What is compared with; with --resume the comparison's id.", show_default=False),
    ] = None,
    b: Annotated[str | None, typer.Argument(metavar="B", help="What is judged.", show_default=False)] = None,
    pairs: Annotated[
        int | None, typer.Option("--pairs", min=1, max=200, metavar="N", help="How many pairs of launches.", show_default="5")
    ] = None,
    margin: Annotated[
        str,
        typer.Option("--margin", metavar="SHARE", help="The smallest change that matters; it is fixed before the first launch."),
    ] = "2%",
    cell: Annotated[
        list[str] | None,
        typer.Option(
            "--cell", metavar="NAME", help="Only this cell. May be repeated; the first is the primary one.", show_default=False
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the comparison that began last, or the named one.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be launched, and change nothing.")] = False,
    folder: DirOption = None,
) -> int:
    from gpuops.cli.ab_host import HostBox, undo_leftover
    from gpuops.report import ab as report
    from gpuops.rollout.ab import Player

    _must_fit(a, b, resume)
    share = _share(margin)
    loaded = _playbook(where, talk)
    target = places.target_of(loaded, where) if loaded is not None else places.target(where, talk)
    with places.session(target, where, talk) as session:
        service = session.service()
        history = session.agent.call("history", service=service, limit=_ALL)
        if resume:
            comparison, contents = _stored(session, service, a, history, pairs, loaded, folder)
        else:
            assert a is not None and b is not None
            contents = _contents((a, b), history, loaded, folder)
            comparison = _begun(service, contents, history, loaded, pairs or PAIRS, share, tuple(cell or ()))
        known = session.agent.call("ab.list", service=service)["comparisons"]
        _say_before(talk, comparison, contents, known, dry_run)
        if dry_run:
            return Exit.OK
        if resume:
            undo_leftover(session, service, comparison, talk)
        # A closed terminal and a polite kill end a comparison as Ctrl-C does: with the known-good release serving.
        signals.as_ctrl_c()
        box = HostBox(talk, where, session, contents, loaded)
        player = Player(comparison, box, talk.note)
        try:
            ended = player.play()
        except GpuopsError as error:
            if not talk.json:
                with suppress(OutputLost):
                    talk.say(report.lines(player.comparison.to_json(), talk.out_paint))
            talk.fail(error, comparison=player.comparison.to_json())
            return int(error.code)
        finally:
            box.close()
    if talk.json:
        talk.give(ended.to_json())
    else:
        talk.say(report.lines(ended.to_json(), talk.out_paint))
    return Exit.OK


def _must_fit(a: str | None, b: str | None, resume: bool) -> None:
    if (resume and b is None) or (not resume and a is not None and b is not None):
        return
    raise GpuopsError(
        "which comparison shall go on? One id at most is named with --resume" if resume else "two sides are needed",
        evidence=f"here: {' '.join(filter(None, (a, b))) or 'none'}",
        next="gpuops ab --resume [ID]"
        if resume
        else "gpuops ab A B; gpuops ab known-good known-good shows the noise of the host",
        code=Exit.USAGE,
        kind="usage",
    )


def _share(text: str) -> float:
    """``2%`` or ``0.02`` as a fraction."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if rest or not 0 < value < 1:
        raise GpuopsError(
            f"--margin {text} is no share", evidence="such as 2% or 0.02", next="gpuops ab --help", code=Exit.USAGE, kind="usage"
        )
    return value


def _playbook(where: Where, talk: Talk) -> LoadedPlaybook | None:
    """The playbook where there is one: releases by their numbers need none."""
    return places.load(where, talk) if places.find(where, talk).playbook is not None else None


def _contents(
    words: tuple[str, str], history: dict[str, Any], loaded: LoadedPlaybook | None, folder: Path | None
) -> dict[str, Content]:
    from gpuops.builds import store
    from gpuops.rollout.sides import resolve

    def find(word: str) -> Path:
        return store.find(store.folder(folder), word)

    a = resolve(words[0], history, find, loaded)
    return {"A": a, "B": a if words[1] == words[0] else resolve(words[1], history, find, loaded)}


def _begun(
    service: str,
    contents: dict[str, Content],
    history: dict[str, Any],
    loaded: LoadedPlaybook | None,
    pairs: int,
    margin: float,
    only: tuple[str, ...],
) -> Comparison:
    from gpuops.measure.ab import Comparison
    from gpuops.playbook.measuring import Bench
    from gpuops.rollout import who
    from gpuops.rollout.desired import cells_of, operation_id

    home = history["known_good"]
    if home is None:
        raise GpuopsError(
            f"{service} has no known-good release to go back to after the comparison",
            evidence="no release was promoted yet",
            next="gpuops up PLAYBOOK",
            kind="no_release",
        )
    a, b = contents["A"].side, contents["B"].side
    cells = tuple(cells_of(loaded)) if loaded is not None else None
    unknown = [name for name in only if cells is not None and name not in {cell["name"] for cell in cells}]
    if unknown:
        known = ", ".join(cell["name"] for cell in cells or ())
        raise GpuopsError(
            f"there is no cell {unknown[0]!r}", evidence=f"cells: {known}", next="gpuops ab --help", code=Exit.USAGE, kind="usage"
        )
    return Comparison(
        id=f"ab-{operation_id()}",
        service=service,
        by=who.me(),
        began=round(time.time(), 3),
        a=a,
        b=b,
        equal=a.word == b.word or (a.release is not None and a.release == b.release),
        margin=margin,
        pairs=pairs,
        home=int(home),
        token=secrets.token_hex(8),
        cells=cells,
        only=only,
        deadline_s=(loaded.model.bench if loaded is not None else Bench()).deadline_s,
    )


def _stored(
    session: Session,
    service: str,
    name: str | None,
    history: dict[str, Any],
    pairs: int | None,
    loaded: LoadedPlaybook | None,
    folder: Path | None,
) -> tuple[Comparison, dict[str, Content]]:
    """The comparison to go on with, and its sides: by their releases where they have one, else by their words."""
    from gpuops.measure.ab import Comparison
    from gpuops.rollout.ab import resumable

    record = session.agent.call("ab.load", service=service, id=name)
    try:
        stored = Comparison.from_json(record)
    except ValueError as error:
        raise GpuopsError(
            "the comparison's record cannot be read", evidence=str(error), next="gpuops ab A B", kind="record"
        ) from error
    comparison = resumable(stored, history["known_good"], pairs, secrets.token_hex(8))
    words = tuple(side.word if side.release is None else str(side.release) for side in (comparison.a, comparison.b))
    return comparison, _contents((words[0], words[1]), history, loaded, folder)


def _say_before(
    talk: Talk, comparison: Comparison, contents: dict[str, Content], known: list[dict[str, Any]], dry_run: bool
) -> None:
    """What is about to happen: a result of its own with --dry-run."""
    from gpuops.report import ab as report
    from gpuops.rollout.sides import differences

    apart = differences(contents["A"], contents["B"])
    if talk.json:
        talk.give(
            {**({} if dry_run else {"event": "comparison"}), **report.planned(comparison.to_json(), known), "differences": apart}
        )
        return
    lines = report.plan_lines(comparison.to_json(), known, apart, talk.out_paint if dry_run else talk.err_paint)
    if dry_run:
        talk.say(lines)
    else:
        for line in lines:
            talk.note(line)
