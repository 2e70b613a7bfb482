"""Rung 9 with the tools themselves: lm-eval and sgl-eval, a task and data of our own, and a server that may answer by nothing.

The tools are installed once, from a package index, into ``.sandbox-tests`` of the checkout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from measuring import service
from test_evaluations import put
from wise_server import WiseServer, wise

VERSIONS = ("lm-eval[api]==0.4.13", "sgl-eval==0.1.3")
HOME = Path(__file__).resolve().parents[3] / ".sandbox-tests" / "evaluators-lm-0.4.13-sgl-0.1.3"

TASK = r"""
task: gpuops_sums
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "What is {{problem}}? Answer with the number only."
doc_to_target: "{{expected_answer}}"
generation_kwargs: {until: [], max_gen_toks: 16, do_sample: false}
filter_list:
  - {name: number, filter: [{function: regex, regex_pattern: "(-?[0-9]+)\\.?$"}, {function: take_first}]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of an environment that has both tools."""
    found = HOME / "bin" / "python"
    if not (HOME / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
        subprocess.run([found, "-m", "pip", "install", "--quiet", *VERSIONS], check=True)
        (HOME / "complete").touch()
    return str(found)


def evaluated(python: str, folder: Path, *broken: str) -> dict[str, Any]:
    """The rung's result for a server that is broken in these ways, by both tools."""
    data = folder / "sums.jsonl"
    rows = [{"id": at, "problem": f"{11 + 4 * at} + {7 + 5 * at}", "expected_answer": str(18 + 9 * at)} for at in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "sums.yaml").write_text(TASK.replace("DATA", str(data)))
    with wise() as server:
        demo = _service(python, folder, server)
        server.broken.update(broken)
        return put(
            demo,
            {"name": "sums", "tool": "lm-eval", "task": "gpuops_sums", "least": 0.9, "options": ["--include_path", str(tasks)]},
            {"name": "math", "tool": "sgl-eval", "task": "gsm8k", "least": 0.9, "options": ["--from-dataset", str(data)]},
        )


def _service(python: str, folder: Path, server: WiseServer) -> Any:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "PATH": os.environ["PATH"]}
    made = service(server.port, folder, argv=[python], env=offline)
    server.model = str(folder / "model")
    return made


def test_a_right_server_reaches_its_scores_by_the_real_tools(python: str, tmp_path: Path) -> None:
    rung = evaluated(python, tmp_path)
    assert rung["verdict"] == "right", rung
    assert rung["answer"] == ("sums: exact_match,number 1 over 6 answers, none empty; math: score 1 over 6 answers, none empty")


def test_a_server_that_is_silent_now_and_then_is_told_from_one_that_is_wrong(python: str, tmp_path: Path) -> None:
    rung = evaluated(python, tmp_path, "silent")
    assert rung["verdict"] == "wrong", rung
    assert rung["answer"] == (
        "sums: exact_match,number 0.6667 over 6 answers, of which 2 are empty; math: score 0.6667 over 6 answers, of which 2 are empty"
    )
