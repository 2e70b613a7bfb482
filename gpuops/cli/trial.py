"""Try changes one at a time on a host, and leave a record; in the end the known-good release serves.

FILE names the question, a base playbook and the steps: environment, flags,
a build, patches; as they stand, in every combination, or as a bisect (which
change breaks it?). Each step is a rollout through every gate that is not
promoted; its failure is classified, its speed measured where it is asked for.
The host plays all of it by itself, and restores the known-good release at
the end, when it is interrupted, and when it loses this machine.

What was found is kept after every step: --resume goes on, also on another
day or host. --for SECONDS ends in time on a machine that is only lent.

Exit code: 0 every step has a verdict (whatever it is), 10 ended early and
the known-good release serves, 11 it does not, 12 outcome unknown.

\b
Examples:
  gpuops trial playbooks/trials/torch-compile.yaml --dry-run
  gpuops trial playbooks/trials/torch-compile.yaml
  gpuops trial playbooks/trials/torch-compile.yaml --resume --for 480
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuops.cli import places, progress, signals
from gpuops.cli.builds_host import DirOption
from gpuops.cli.places import Where
from gpuops.cli.records import FolderOption, folder_of
from gpuops.cli.talk import OutputLost, Talk
from gpuops.cli.verb import LockWait, ReasonOption, verb
from gpuops.errors import Exit, GpuopsError

if TYPE_CHECKING:
    from gpuops.playbook.loader import LoadedPlaybook
    from gpuops.trials.load import LoadedTrial
    from gpuops.trials.play import Event, Player
    from gpuops.trials.redact import Redactor
    from gpuops.trials.steps import Prepared

Json = dict[str, Any]


@dataclass(frozen=True)
class _Replayed:
    """What makes the base again: the playbook that was named (None: the trial's own), the overrides, and the host."""

    path: Path | None
    overrides: tuple[str, ...]
    host: str | None


@verb
def main(
    talk: Talk,
    where: Where,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The trial.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the steps, and change nothing; no host is asked.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished trial of this file.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, and forget what an unfinished one has found.")] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            "--for",
            min=1,
            metavar="SECONDS",
            help="Play no longer; then go back, and leave the rest for --resume.",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave once the host has it; --resume collects what it has found.")
    ] = False,
    builds: DirOption = None,
    records: FolderOption = None,
    reason: ReasonOption = None,
    lock_wait: LockWait = None,
) -> int:
    from gpuops.builds import store
    from gpuops.trials import play, state, steps
    from gpuops.trials.load import load

    trial = load(file)
    overrides = where.overrides if where.service is None else (*where.overrides, f"service={where.service}")
    path = Path(where.playbook) if where.playbook is not None else None
    base = steps.base_playbook(trial, path, overrides, where.host)
    build_folder = store.folder(builds)
    made = [steps.prepared(trial, each, base, overrides, where.host, build_folder, dry=dry_run) for each in steps.variants(trial)]
    told = steps.steps_of(trial, made)
    names = [each.variant.name for each in made]
    if dry_run:
        return _dry(talk, trial, made, told, _redactor(base, made))
    folder, key = folder_of(records), steps.key(trial, told)
    known = state.begun(folder, trial.name, key, base.model.service, time.time(), resume=resume, fresh=fresh, trial=file)
    if known.results:
        talk.note(f"{len(known.results)} steps have a verdict already: {', '.join(known.verdicts)}")

    def order(done: Mapping[str, str]) -> Json:
        return steps.experiment_order(trial, base, told, done=done, budget_s=budget, detach=detach, reason=reason)

    plan = steps.plan_of(trial, names)
    redactor = _redactor(base, made)
    player = play.Player(known, folder, order, lambda verdicts: _next(plan, verdicts) is None, redactor, talk.note)
    target = places.target_of(base, where)
    with places.session(target, where, talk) as session:
        play.bring(session, made, talk.note)
        if detach:
            return _hand_over(talk, session, player, file)
        # A closed terminal and a polite kill end a trial as Ctrl-C does: with the known-good release serving.
        signals.as_ctrl_c()
        with _shown(talk, names, known.results) as listener:

            def followed(order: Json, hear: Callable[[Event], None]) -> Json:
                from gpuops.rollout.watch import Watcher

                def both(event: Event) -> None:
                    hear(event)
                    listener(event)

                return Watcher(session, places.connector(target, where, talk), both).run(order, lock_wait_s=lock_wait)

            outcome = player.play(target.address.name, followed)
    replayed = _Replayed(path, tuple(overrides), where.host)
    return _concluded(talk, trial, made, player, outcome, folder, redactor, replayed)


def _dry(talk: Talk, trial: LoadedTrial, made: Sequence[Prepared], told: Sequence[Json], redactor: Redactor) -> int:
    from gpuops.agent import shared
    from gpuops.report import trials as report
    from gpuops.trials.steps import plan_of

    model = trial.model
    plan = plan_of(trial, [each.variant.name for each in made])
    most = shared.module("experiment_plan").longest(plan)
    if talk.json:
        listed = [
            {
                "name": each.variant.name,
                "changes": redactor(each.variant.changes),
                "spec": step["order"]["spec"],
                "deadline_s": step["deadline_s"],
            }
            for each, step in zip(made, told, strict=True)
        ]
        talk.give({"name": trial.name, "mode": model.mode, "most": most, "steps": listed})
        return Exit.OK
    missing = sorted({each.missing for each in made if each.missing})
    if missing:
        talk.note(f"not on this machine yet, and left out of this plan: {', '.join(missing)} (gpuops builds make)")
    rules = f"{model.mode}, {most} launches at most of {len(made)} steps, stop: {model.stop}, caches: {model.caches}"
    said = [(each.variant.name, redactor(each.variant.changes), _what_for(each)) for each in made]
    talk.say(report.dry(trial.name, model.question, said, rules, talk.out_paint))
    return Exit.OK


def _what_for(made: Prepared) -> str:
    own = made.variant.own
    if own is None:
        return ""
    expected = f"expected: {own.expect}" if own.expect else ""
    return "\n".join(filter(None, [(own.why or "").strip(), expected, f"source: {own.source.strip()}" if own.source else ""]))


def _next(plan: Any, verdicts: Mapping[str, str]) -> str | None:
    from gpuops.agent import shared

    name: str | None = shared.module("experiment_plan").next_step(plan, verdicts)
    return name


def _hand_over(talk: Talk, session: Any, player: Player, file: Path) -> int:
    from gpuops.rollout.watch import hand_over

    op = hand_over(session, player.begin(session.target.address.name))
    if talk.json:
        talk.give({"op": op, "detached": True})
    else:
        talk.say([f"the host plays the trial as operation {op}; gpuops trial {file} --resume collects what it has found"])
    return Exit.OK


@contextmanager
def _shown(talk: Talk, names: Sequence[str], results: Sequence[Json]) -> Iterator[Callable[[Event], None]]:
    if talk.json or talk.quiet or not sys.stderr.isatty():
        with progress.shown(talk) as listener:
            yield listener
        return
    from rich.console import Console

    from gpuops.report.trial_live import TrialProgress

    view = TrialProgress(Console(stderr=True, highlight=False), talk.err_paint, names, results, verbose=talk.verbose)
    with progress.drawn(view.shown(), view.hear) as listener:
        yield listener


def _concluded(
    talk: Talk,
    trial: LoadedTrial,
    made: Sequence[Prepared],
    player: Player,
    outcome: Json,
    folder: Path,
    redactor: Redactor,
    replayed: _Replayed,
) -> int:
    """The table, the record of a complete trial, and the exit code. The table first: it is there when nothing can be kept."""
    from gpuops.report import trials as report
    from gpuops.trials import state

    record: Json | None = None
    saved: Path | None = None
    unkept: GpuopsError | None = None
    if not talk.json:
        with suppress(OutputLost):
            talk.say(report.table([each.variant.name for each in made], player.state.results, None, 0.0, talk.out_paint))
    if player.complete:
        try:
            record, saved = _kept(trial, made, player, folder, redactor, replayed)
            state.forget(folder, trial.name)
        except GpuopsError as error:
            unkept = error
            unkept.next = f"{error.next}; then: gpuops trial {shlex.quote(str(trial.path))} --resume"
    if record is not None and not talk.json:
        with suppress(OutputLost):
            talk.say(report.ended(record, str(saved), talk.out_paint))
    if outcome["code"] != Exit.OK:
        if unkept is not None:
            talk.note(f"warning: {unkept.what}: {unkept.evidence}")
        talk.fail(_early(outcome, trial.path), outcome=redactor(outcome), record=record)
        return int(outcome["code"])
    if unkept is not None:
        talk.fail(unkept, outcome=redactor(outcome), record=record)
        return int(unkept.code)
    if talk.json:
        talk.give({"outcome": outcome["outcome"], "release": outcome["release"], "path": str(saved), "record": record})
    elif not talk.quiet:
        talk.note(f"release {outcome['release']} (known-good) serves, and has been probed")
    return Exit.OK


def _kept(
    trial: LoadedTrial,
    made: Sequence[Prepared],
    player: Player,
    folder: Path,
    redactor: Redactor,
    replayed: _Replayed,
) -> tuple[Json, Path]:
    from gpuops.rollout import who
    from gpuops.trials import markdown, record, replay

    built = record.build(trial, made, player.state, redactor, who.me(), time.time())
    target = folder / built["id"]
    files = {
        record.PAGE: markdown.page(built),
        record.PLAYBOOK: redactor.known_in(replay.playbook_text(trial, replayed.path, replayed.overrides, replayed.host, target)),
        record.TRIAL: replay.trial_text(trial, redactor),
    }
    return built, record.save(folder, built, files)


def _redactor(base: LoadedPlaybook, made: Sequence[Prepared]) -> Redactor:
    """What takes the secrets of the base and of every step out of what is kept."""
    from gpuops.trials import redact

    known: list[str] = []
    for playbook in (base, *(each.playbook for each in made)):
        known += [*playbook.secret_values.values()]
        known += redact.secrets_in(playbook.model.model_dump(mode="json", by_alias=True, exclude_none=True))
    return redact.Redactor(known)


def _early(outcome: Json, file: Path) -> GpuopsError:
    # An operation that failed before its first step knows of no release.
    good, reason = outcome.get("release"), outcome.get("reason")
    texts = {
        "trial_cut": f"the trial ended early: {reason}; release {good} (known-good) serves again",
        "restore_failed": f"the trial is over, and release {good} is not back: {reason}",
    }
    code = Exit(outcome["code"]) if outcome["code"] in set(Exit) else Exit.FAILURE
    following = f"gpuops trial {file} --resume" if outcome["outcome"] == "trial_cut" else outcome.get("next") or "gpuops status"
    return GpuopsError(
        texts.get(outcome["outcome"], f"{outcome['outcome']}: {reason}"),
        evidence=outcome.get("evidence", ""),
        next=following,
        code=code,
        kind=outcome["outcome"],
    )
