"""The doctor's all-reduce by the PyTorch of a real runtime: without a card by gloo, beside a server that serves."""

from __future__ import annotations

from lab import Lab


def test_the_ranks_of_the_runtimes_own_pytorch_add_up_to_the_right_sum(serving: Lab) -> None:
    ran = serving.run("doctor", "--collective", "--json")
    (found,) = [check for check in ran.json["checks"] if check["name"] == "all-reduce"]
    assert (found["state"], found["what"]) == ("ok", "2 ranks (gloo) add up to the right sum"), found
    assert found["evidence"].startswith("torch ")
    assert serving.status("--check")["check"]["state"] == "serving"
