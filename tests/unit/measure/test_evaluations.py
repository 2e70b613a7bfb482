"""Rung 9, evaluations by other people's tools: what their recorded results mean, and how the tools are run.

The recorded results are those of lm-eval 0.4.13 and sgl-eval 0.1.3, put to a server that answers every third question by nothing; an imitation tool
writes them. ``test_evaluators.py`` runs the tools themselves.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpuops_agent import evaluations, proc
from gpuops_agent.evaluators import TOOLS, Score
from gpuops_agent.paths import Service
from gpuops_agent.wire import AgentError
from measuring import service
from test_ladder import PROBE, climb
from wise_server import WiseServer, wise

RECORDED = Path(__file__).parents[2] / "fixtures" / "evaluations"
SUMS = {"name": "sums", "tool": "lm-eval", "task": "gpuops_sums", "least": 0.6}
OFF = ("identity", "answers", "arithmetic", "needles", "mixed", "tools", "logprobs", "soak")

# Stands for both tools: it writes the recorded results into the folder that it is told, and its arguments and environment beside them.
PROGRAM = """
import json, os, shutil, sys, time
folder = sys.argv[1 + max(sys.argv.index(name) for name in ("--output_path", "--out-dir") if name in sys.argv)]
told = {"argv": sys.argv, "key": os.environ.get("OPENAI_API_KEY"), "cards": os.environ["CUDA_VISIBLE_DEVICES"]}
open(os.path.join(os.path.dirname(folder), "told.json"), "w").write(json.dumps(told))
if "--hang" in sys.argv:
    time.sleep(600)
if "--fail" in sys.argv:
    sys.exit("error: no such task")
shutil.copytree(os.environ["RECORDED"], folder, dirs_exist_ok=True)
"""


@pytest.fixture
def server() -> Iterator[WiseServer]:
    with wise() as made:
        yield made


def made(server: WiseServer, folder: Path, recorded: Path, *, tool: str = "lm_eval") -> Service:
    """A service in whose runtime the imitation tool is installed, and writes these results."""
    package = folder / "packages" / tool
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / ("__main__.py" if tool == "lm_eval" else "cli.py")).write_text(
        PROGRAM if tool == "lm_eval" else f"def main(argv):\n    exec({PROGRAM!r}, {{}})\n"
    )
    env = {"PYTHONPATH": str(package.parent), "RECORDED": str(recorded)}
    demo = service(server.port, folder, probes=[PROBE], env=env, auth="Bearer @{secret:KEY}")
    demo.root.secrets.mkdir()
    (demo.root.secrets / "KEY").write_text("open-sesame-7291")
    server.model = str(folder / "model")
    return demo


def put(demo: Service, *wanted: dict[str, Any]) -> dict[str, Any]:
    """The rung's result."""
    (rung,) = climb(demo, 9, evaluations={"run": wanted}, **{name: {"gate": "off"} for name in OFF})["rungs"]
    found: dict[str, Any] = rung
    return found


def told(demo: Service) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((demo.release(1) / "evaluations" / "told.json").read_text())
    return value


def without_empty_answers(folder: Path) -> Path:
    """The recorded results of lm-eval, had the server answered the empty ones too."""
    shutil.copytree(RECORDED / "lm-eval", folder)
    (samples,) = folder.glob("*/samples_*.jsonl")
    samples.write_text(samples.read_text().replace('"resps": [[""]]', '"resps": [["I cannot say."]]'))
    return folder


@pytest.mark.parametrize(
    ("tool", "task", "metric"), [("lm-eval", "gpuops_sums", "exact_match,number"), ("sgl-eval", "gsm8k", "score")]
)
def test_a_tools_own_records_tell_the_score_and_the_empty_answers_apart(tool: str, task: str, metric: str) -> None:
    score = TOOLS[tool].read({"name": "sums", "task": task}, RECORDED / tool)
    assert (score.metric, round(score.value, 3), score.answers, score.empty, score.failed) == (metric, 0.667, 6, 2, 0)
    assert "empty" in score.example


def test_a_request_that_failed_is_an_empty_answer_of_its_own_kind(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "sgl-eval", tmp_path / "run")
    (rows,) = (tmp_path / "run").glob("*/output-rs0.jsonl")
    first, *rest = rows.read_text().splitlines()
    broken = {**json.loads(first), "generation": "", "finish_reason": "error"}
    rows.write_text("\n".join([json.dumps(broken), *rest]) + "\n")
    score = TOOLS["sgl-eval"].read({"name": "sums", "task": "gsm8k"}, tmp_path / "run")
    assert (score.empty, score.failed) == (3, 1) and "its request failed" in score.example


def test_a_part_of_a_run_is_no_result(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "sgl-eval", tmp_path / "run")
    (metrics,) = (tmp_path / "run").glob("*/metrics.json")
    metrics.write_text(json.dumps({**json.loads(metrics.read_text()), "partial": True}))
    with pytest.raises(AgentError, match="cannot be read"):
        TOOLS["sgl-eval"].read({"name": "sums", "task": "gsm8k"}, tmp_path / "run")


@pytest.mark.parametrize(("metric", "complaint"), [("f1", "has no metric 'f1'"), (None, "has several metrics")])
def test_a_metric_that_is_not_one_is_refused_and_the_known_ones_are_named(
    tmp_path: Path, metric: str | None, complaint: str
) -> None:
    shutil.copytree(RECORDED / "lm-eval", tmp_path / "run")
    (results,) = (tmp_path / "run").glob("*/results_*.json")
    results.write_text(results.read_text().replace('"sample_len": 6', '"exact_match,strict": 0.5'))
    with pytest.raises(AgentError, match=complaint) as caught:
        TOOLS["lm-eval"].read({"name": "sums", "task": "gpuops_sums", "metric": metric}, tmp_path / "run")
    assert caught.value.evidence == "metrics: exact_match,strict, exact_match,number"


@pytest.mark.parametrize(("value", "empty", "verdict"), [(0.9, 0, "right"), (0.5, 0, "wrong"), (0.9, 1, "wrong")])
def test_one_empty_answer_fails_an_evaluation_whatever_its_score(value: float, empty: int, verdict: str) -> None:
    assert evaluations.judge({"name": "x", "least": 0.8}, Score("acc", value, 10, empty, 0, ""))[0] == verdict


@pytest.mark.failure_mode("empty-answers")
def test_empty_answers_of_an_evaluation_are_serving_but_wrong_with_the_question(server: WiseServer, tmp_path: Path) -> None:
    rung = put(made(server, tmp_path, RECORDED / "lm-eval"), SUMS)
    assert (rung["rung"], rung["verdict"]) == (9, "wrong")
    assert rung["answer"] == "sums: exact_match,number 0.6667 over 6 answers, of which 2 are empty"
    assert "What is 19 + 17?" in rung["detail"] and rung["expectation"] == "at least 0.6, and no empty answer"


def test_the_tool_runs_in_the_servers_runtime_against_the_server_without_its_cards(server: WiseServer, tmp_path: Path) -> None:
    demo = made(server, tmp_path, without_empty_answers(tmp_path / "recorded"))
    rung = put(demo, {**SUMS, "limit": 6, "options": ["--include_path", "/tasks"]})
    assert rung["verdict"] == "right" and rung["answer"].endswith("over 6 answers, none empty")
    argv = told(demo)["argv"]
    assert f"model=fake,base_url=http://127.0.0.1:{server.port}/v1/chat/completions,num_concurrent=8,max_retries=3" in argv
    assert argv[-4:] == ["--limit", "6", "--include_path", "/tasks"] and told(demo)["cards"] == ""


def test_the_servers_key_is_in_the_tools_environment_and_in_no_argument(server: WiseServer, tmp_path: Path) -> None:
    demo = made(server, tmp_path, RECORDED / "lm-eval")
    put(demo, SUMS)
    assert told(demo)["key"] == "open-sesame-7291" and "open-sesame-7291" not in " ".join(told(demo)["argv"])


def test_the_score_must_be_reached(server: WiseServer, tmp_path: Path) -> None:
    rung = put(made(server, tmp_path, without_empty_answers(tmp_path / "recorded")), {**SUMS, "least": 0.7})
    assert rung["verdict"] == "wrong" and rung["expectation"].startswith("at least 0.7")


def test_sgl_eval_is_asked_by_its_own_words(server: WiseServer, tmp_path: Path) -> None:
    demo = made(server, tmp_path, RECORDED / "sgl-eval", tool="sgl_eval")
    rung = put(demo, {"name": "math", "tool": "sgl-eval", "task": "gsm8k", "limit": 6, "least": 0.5})
    assert rung["answer"] == "math: score 0.6667 over 6 answers, of which 2 are empty"
    argv = told(demo)["argv"]
    assert argv[argv.index("--base-url") + 1] == f"http://127.0.0.1:{server.port}/v1" and "gsm8k" in argv


@pytest.mark.parametrize(("when_missing", "verdict", "where"), [("skip", "skipped", "detail"), ("fail", "wrong", "answer")])
def test_a_tool_that_is_not_installed_is_left_out_by_name_or_has_failed(
    server: WiseServer, tmp_path: Path, when_missing: str, verdict: str, where: str
) -> None:
    demo = made(server, tmp_path, RECORDED / "sgl-eval", tool="sgl_eval")
    rung = put(demo, {**SUMS, "when_missing": when_missing})
    assert rung["verdict"] == verdict and rung[where] == "sums: lm-eval is not installed in the server's runtime"


def test_a_playbook_without_evaluations_leaves_the_rung_out(server: WiseServer, tmp_path: Path) -> None:
    assert put(made(server, tmp_path, RECORDED / "lm-eval"))["verdict"] == "skipped"


def test_a_tool_that_fails_is_named_with_its_last_words(server: WiseServer, tmp_path: Path) -> None:
    rung = put(made(server, tmp_path, RECORDED / "lm-eval"), {**SUMS, "options": ["--fail"]})
    assert rung["verdict"] == "wrong" and "ended with status 1" in rung["answer"] and "no such task" in rung["detail"]


def test_a_tool_that_does_not_end_is_ended_with_its_group(server: WiseServer, tmp_path: Path) -> None:
    demo = made(server, tmp_path, RECORDED / "lm-eval")
    rung = put(demo, {**SUMS, "options": ["--hang"], "deadline_s": 1.0})
    assert rung["verdict"] == "wrong" and "did not end in time" in rung["answer"]
    folder = str(demo.release(1) / "evaluations" / "sums")
    assert not [stat.pid for stat in proc.processes() if folder in proc.title(stat.pid)]


def test_a_server_that_has_died_under_an_evaluation_is_down_and_not_wrong(server: WiseServer, tmp_path: Path) -> None:
    demo = made(server, tmp_path, RECORDED / "lm-eval")
    server.asked = 60
    server.broken.add("dies")
    climbed = climb(demo, 9, evaluations={"run": [SUMS]}, **{name: {"gate": "off"} for name in OFF})
    assert climbed["verdict"] == "down"
