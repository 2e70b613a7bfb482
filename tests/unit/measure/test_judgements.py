"""The pure judgements: telemetry, counters, texts, figures."""

from __future__ import annotations

import pytest
from gpuops_agent import counters, gpus, load_client, telemetry, text_sanity
from gpuops_agent.load_run import Cell, Request, Run, figures, percentile
from gpuops_agent.telemetry import CardSample, Sample

from gpuops.engines.measuring import load_words
from gpuops.errors import GpuopsError

WORDS = load_words()

# No process has such a pid.
NOBODY = 2**22 + 1


def sample(**changes: object) -> Sample:
    calm = {"at": 1.0, "running": 4.0, "queued": 0.0, "generated": 1.0, "load": 0.1}
    return Sample(**{**calm, **changes})  # type: ignore[arg-type]


def card(*reasons: str) -> CardSample:
    return CardSample(0, 2400.0, 14000.0, 60.0, 300.0, 90000.0, frozenset(reasons))


@pytest.mark.parametrize(
    ("samples", "fault"),
    [
        ([sample(cards=[card("hw_thermal_slowdown")])], "card 0 was throttled: hw_thermal_slowdown"),
        ([sample(cards=[card("sw_thermal_slowdown")])], "card 0 was throttled: sw_thermal_slowdown"),
        ([sample(foreign=["foreign process on card 0: pid 9, python"])], "foreign process on card 0: pid 9, python"),
        ([sample(), sample(running=6.0)], "other requests were served: 6 at a time, of which 4 ours"),
        ([sample(running=3.0, queued=2.0)], "other requests were served: 5 at a time, of which 4 ours"),
        ([sample(compilers=["ptxas (pid 7)"])], "kernels were compiled: ptxas (pid 7)"),
    ],
)
def test_what_spoils_a_block_is_named(samples: list[Sample], fault: str) -> None:
    assert telemetry.judge(samples, 4, [], []) == [fault]


@pytest.mark.parametrize("samples", [[], [sample()], [sample(cards=[card("sw_power_cap")])], [sample(running=None, queued=None)]])
def test_a_calm_host_spoils_nothing_and_a_power_cap_is_calm(samples: list[Sample]) -> None:
    assert telemetry.judge(samples, 4, [], []) == []


def test_lines_of_compiles_and_xids_spoil_a_block() -> None:
    log = "Decode batch, #running-req: 4\nTriton kernel JIT compilation during inference: _gemm\n"
    lines = telemetry.compile_lines(log, WORDS)
    assert telemetry.judge([], 4, lines, ["NVRM: Xid (PCI:0000:01:00): 13"]) == [
        "kernels were compiled, by the log: Triton kernel JIT compilation during inference: _gemm",
        "the driver reported an error: NVRM: Xid (PCI:0000:01:00): 13",
    ]


@pytest.mark.failure_mode("card-shared")
def test_others_on_our_cards_are_foreign_and_on_other_cards_only_told() -> None:
    on_cards = [gpus.GpuProcess(index, pid, 1, "python") for index, pid in ((0, NOBODY), (0, NOBODY + 1), (1, NOBODY + 2))]
    found = telemetry.foreign(on_cards, {NOBODY}, {0})
    assert found.ours == (f"foreign process on card 0: pid {NOBODY + 1}, python, 1 MiB",)
    assert found.elsewhere == (f"another process on card 1, not used by this service: pid {NOBODY + 2}, python, 1 MiB",)
    assert telemetry.judge([sample(elsewhere=found.elsewhere)], 4, [], []) == []


def test_a_driver_that_numbers_processes_otherwise_names_nobody() -> None:
    assert telemetry.foreign([gpus.GpuProcess(0, NOBODY, 1, "python")], {10}, {0}) == telemetry.Strangers()


def test_cards_are_read_with_their_reasons() -> None:
    text = (
        "0, 2407, 14001, 61, 298.53, 91234, Not Active, Not Active, Not Active, Active, Active\n1, [N/A], 14001, 50, 20.00, 3, "
        + (", ".join(["Not Active"] * 5))
    )
    first, second = telemetry.parse_cards(text)
    assert (first.sm_mhz, first.watts, first.reasons) == (2407.0, 298.53, {"sw_thermal_slowdown", "sw_power_cap"})
    assert second.sm_mhz is None and not second.reasons


def test_counters_are_added_up_over_routes_and_not_over_ranks() -> None:
    page = (
        "# HELP x\n"
        'sglang:generation_tokens_total{is_streaming="true",model_name="m"} 100.0\n'
        'sglang:generation_tokens_total{is_streaming="false",model_name="m"} 8.0\n'
        'sglang:num_running_reqs{tp_rank="0"} 3.0\nsglang:num_running_reqs{tp_rank="1"} 3.0\n'
    )
    found = counters.parse(page, WORDS["counters"])
    assert found is not None
    assert (found.generated, found.running, found.cached) == (108.0, 3.0, 0.0)


def test_a_page_without_a_token_counter_is_no_witness() -> None:
    assert counters.parse("python_info 1.0\n", WORDS["counters"]) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("  \n", "the answer is empty"),
        ("!" * 40, "'!' is repeated 40 times in a row"),
        ("Paris " + "logupload" * 30, "'logupload' is repeated 30 times in a row"),
        ("a\ufffdb\ufffdc\ufffd\ufffd", "4 characters are no text"),
    ],
)
def test_texts_that_are_none_are_named(text: str, complaint: str) -> None:
    assert text_sanity.complaint(text) == complaint


@pytest.mark.parametrize(
    "text", ["Paris", "4", "ha ha ha ha!", "- a\n- b\n- c", "图书馆", "x" * 20, "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13"]
)
def test_short_foreign_and_listed_texts_are_texts(text: str) -> None:
    assert text_sanity.complaint(text) == ""


def test_another_script_than_the_expected_one_is_named() -> None:
    text = "Париж — столица Франции"
    assert text_sanity.complaint(text, "LATIN") == "19 of 19 letters are not latin"
    assert text_sanity.complaint(text) == "" and text_sanity.complaint("Paris (Париж) is the capital of France", "LATIN") == ""


def test_one_loop_is_an_accident_and_the_same_loop_everywhere_is_a_sign() -> None:
    assert text_sanity.all_the_same(["!!!!", "!!"]) == "all 2 answers are nothing but '!'"
    assert text_sanity.all_the_same(["", " "]) == "all 2 answers are empty"
    assert text_sanity.all_the_same(["!!!!", "the river"]) == ""


def test_percentiles_are_those_of_numpy() -> None:
    values = [3.0, 1.0, 2.0, 10.0]
    assert [percentile(values, share) for share in (0, 50, 95, 100)] == pytest.approx([1.0, 2.5, 8.95, 10.0])


def test_figures_follow_their_definitions() -> None:
    requests = [Request(3, 0.1, [0.02, 0.04]), Request(3, 0.3, [0.02, 0.02])]
    told = figures(Run("c", "native", 2, 2.0, requests), Cell("c", 2, 10, 3, 2))
    assert told["ttft_ms"]["p50"] == pytest.approx(200.0)
    assert told["tpot_ms"]["p50"] == pytest.approx(25.0)
    assert told["e2e_ms"]["p50"] == pytest.approx(250.0)
    assert (told["output_tok_s"], told["input_tok_s"]) == (3.0, 10.0)
    assert told["user_tok_s"] == pytest.approx(40.0)


def test_an_answer_of_one_token_has_no_gaps_to_speak_of() -> None:
    told = figures(Run("c", "native", 1, 1.0, [Request(1, 0.1)]), Cell("p", 1, 10, 1, 1))
    assert (told["itl_ms"], told["tpot_ms"], told["user_tok_s"]) == (None, None, None)


def test_a_result_line_of_the_engines_client_is_read() -> None:
    line = {
        "completed": 1,
        "duration": 2.0,
        "output_lens": [3],
        "ttfts": [0.1],
        "itls": [[0.2, 0.2]],
        "generated_texts": ["abc"],
        "errors": [""],
    }
    run = load_client.parse(line, "rust", "native", True)
    assert run.requests == [Request(3, 0.1, [0.2, 0.2], "abc", "")]
    with pytest.raises(KeyError):
        load_client.parse({"completed": 1}, "rust", "native", True)


def test_an_engine_that_is_not_known_has_no_words() -> None:
    with pytest.raises(GpuopsError, match="does not know how to measure"):
        load_words("other")
