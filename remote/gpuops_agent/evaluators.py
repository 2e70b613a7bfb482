"""Evaluation tools that others have written: how each is asked to put a task to our server, and what its own records say.

Sources: lm-eval 0.4.13 (``lm_eval/_cli/run.py``, ``models/openai_completions.py``, ``loggers/evaluation_tracker.py``); sgl-eval 0.1.3
(``sgl_eval/cli.py``, ``metrics.py``, ``predictions.py``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

from .server import Server
from .wire import AgentError

Wanted = Dict[str, Any]
"""One evaluation of the playbook's ``ladder.evaluations``."""

# Both take the API key from here; arguments can be read by every user of the host.
KEY_VARIABLE = "OPENAI_API_KEY"

_SGL_EVAL = (
    "import os, sys; from sgl_eval.cli import main; "
    f"sys.exit(main([*sys.argv[1:], '--api-key', os.environ.get('{KEY_VARIABLE}') or 'EMPTY']))"
)


@dataclass(frozen=True)
class Score:
    """What a tool found. ``empty`` answers are those without text, ``failed`` those of them whose request failed; ``example`` is one bad answer."""

    metric: str
    value: float
    answers: int
    empty: int
    failed: int
    example: str


@dataclass(frozen=True)
class Tool:
    """``package`` is the folder by which a runtime that has the tool is known; ``argv`` what follows the Python; ``read`` its results.

    ``read`` raises AgentError for results that are missing or cannot be read.
    """

    package: str
    argv: Callable[[Wanted, Server, Path], List[str]]
    read: Callable[[Wanted, Path], Score]


def _lm_eval_argv(wanted: Wanted, server: Server, folder: Path) -> List[str]:
    chat = server.engine["endpoints"]["chat"][0]
    # Without a chat the tool counts tokens itself, with the model's own tokenizer.
    path, more = (
        (chat, "") if wanted["chat"] else (chat.replace("/chat/", "/"), f",tokenizer={server.model},tokenized_requests=False")
    )
    model = f"model={server.served_name},base_url={_url(server)}{path},num_concurrent={wanted['concurrency']},max_retries=3{more}"
    return [
        *("-m", "lm_eval", "--model", "local-chat-completions" if wanted["chat"] else "local-completions", "--model_args", model),
        *(["--apply_chat_template"] if wanted["chat"] else []),
        *("--tasks", wanted["task"], "--output_path", str(folder), "--log_samples"),
        *(["--limit", str(wanted["limit"])] if wanted.get("limit") else []),
        *wanted["options"],
    ]


def _read_lm_eval(wanted: Wanted, folder: Path) -> Score:
    told = _json(_only(folder, "*/results_*.json"))
    scores = (told.get("results") or {}).get(wanted["task"]) or (told.get("groups") or {}).get(wanted["task"])
    if not isinstance(scores, dict):
        raise _unreadable(f"no results of {wanted['task']}", folder)
    metric = _metric(wanted, scores)
    seen: Set[Tuple[str, Any]] = set()
    empty, example = 0, ""
    for path in sorted(folder.glob("*/samples_*.jsonl")):
        for row in _rows(path):
            # A task with several filters tells each answer once a filter.
            key = (path.name, row.get("doc_id"))
            if key in seen:
                continue
            seen.add(key)
            answers = [answer for each in row["resps"] for answer in (each if isinstance(each, list) else [each])]
            # Tasks that compare likelihoods have pairs of numbers here, and no text.
            texts = [answer for answer in answers if answer is None or isinstance(answer, str)]
            blank = len(texts) == len(answers) and any(_blank(text) for text in texts)
            empty += blank
            if blank and not example:
                example = f"{_question(row)}: empty"
    return Score(metric, float(scores[metric]), len(seen), empty, 0, example)


def _sgl_eval_argv(wanted: Wanted, server: Server, folder: Path) -> List[str]:
    base = server.engine["endpoints"]["chat"][0].replace("/chat/completions", "")
    return [
        *("-c", _SGL_EVAL, "run", wanted["task"], "--base-url", f"{_url(server)}{base}", "--model", server.served_name),
        *("--num-threads", str(wanted["concurrency"]), "--out-dir", str(folder)),
        *(["--num-examples", str(wanted["limit"])] if wanted.get("limit") else []),
        *wanted["options"],
    ]


def _read_sgl_eval(wanted: Wanted, folder: Path) -> Score:
    told = _json(_only(folder, "*/metrics.json"))
    if told.get("partial"):
        raise _unreadable("the run is only a part of what was asked for", folder)
    scores = told.get("aggregate") or {}
    metric = wanted.get("metric") or "score"
    _metric({**wanted, "metric": metric}, scores)
    answers = empty = failed = 0
    example = ""
    for path in sorted(folder.glob("*/output-rs*.jsonl")):
        for row in _rows(path):
            answers += 1
            blank = _blank(row.get("generation"))
            empty += blank
            failed += blank and row.get("finish_reason") == "error"
            if blank and not example:
                why = (
                    "its request failed"
                    if row.get("finish_reason") == "error"
                    else f"empty (finish reason {row.get('finish_reason')})"
                )
                example = f"{str(row.get('problem'))[:120]!r}: {why}"
    return Score(metric, float(scores[metric]), answers, empty, failed, example)


TOOLS: Dict[str, Tool] = {
    "lm-eval": Tool("lm_eval", _lm_eval_argv, _read_lm_eval),
    "sgl-eval": Tool("sgl_eval", _sgl_eval_argv, _read_sgl_eval),
}


def _metric(wanted: Wanted, scores: Dict[str, Any]) -> str:
    """The metric that is asked for: by its whole name (``exact_match,strict-match``) or up to the comma, where that says which.

    Raises:
        AgentError: there is none of that name, or several.
    """
    known = [
        name
        for name, value in scores.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and "_stderr" not in name and name != "sample_len"
    ]
    asked = wanted.get("metric")
    found = [name for name in known if asked in (None, name)] or [name for name in known if name.partition(",")[0] == asked]
    if len(found) == 1:
        return found[0]
    raise AgentError(
        f"{wanted['task']} has no metric {asked!r}" if asked and not found else f"{wanted['task']} has several metrics",
        evidence=f"metrics: {', '.join(known) or 'none'}",
        next=f"name one: ladder.evaluations.run, {wanted['name']}, metric",
        kind="evaluation",
    )


def _question(row: Dict[str, Any]) -> str:
    try:
        text = str(row["arguments"]["gen_args_0"]["arg_0"])
    except (KeyError, TypeError):
        text = f"document {row.get('doc_id')}"
    return repr(text[-120:])


def _blank(text: Any) -> bool:
    return not isinstance(text, str) or not text.strip()


def _url(server: Server) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise _unreadable(f"{len(found)} files {pattern}", folder)
    return found[0]


def _json(path: Path) -> Dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(repr(error), path) from error
    if not isinstance(value, dict):
        raise _unreadable("no JSON object", path)
    return value


def _rows(path: Path) -> Iterator[Dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for text in file:
                yield json.loads(text)
    except (OSError, ValueError) as error:
        raise _unreadable(repr(error), path) from error


def _unreadable(what: str, where: Path) -> AgentError:
    return AgentError("the evaluation's results cannot be read", evidence=f"{where}: {what}", kind="evaluation")
