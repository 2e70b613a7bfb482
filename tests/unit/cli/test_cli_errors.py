"""Errors as the user sees them: three parts, an exit code, or one JSON object."""

from __future__ import annotations

import pytest

from gpuops.errors import Exit, GpuopsError, OutcomeUnknown, TransportError
from gpuops.report import errors
from gpuops.report.style import PLAIN, Paint, wants_colour

LOST = TransportError("gpu-box cannot be reached", evidence="connect: timed out\n3 attempts", next="ssh gpu-box true")


def test_an_error_has_three_parts_and_further_lines_are_indented_under_the_first():
    assert errors.lines(LOST, PLAIN) == [
        "error: gpu-box cannot be reached",
        "  because: connect: timed out",
        "           3 attempts",
        "  next: ssh gpu-box true",
    ]


def test_empty_parts_are_left_out():
    assert errors.lines(GpuopsError("it failed"), PLAIN) == ["error: it failed"]


def test_colour_goes_to_the_words_alone():
    assert errors.lines(GpuopsError("it failed"), Paint(True)) == ["\033[31merror:\033[0m it failed"]


class Stream:
    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("terminal", "environ", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_and_no_color_is_honoured(terminal, environ, wanted):
    assert wants_colour(Stream(terminal), environ) is wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LOST, 4),
        (OutcomeUnknown("the link is lost"), 12),
        (GpuopsError("busy", code=Exit.REFUSED), 13),
        (GpuopsError("disk full", code=Exit.HOST_UNFIT), 5),
    ],
)
def test_the_exit_code_is_the_errors(error, code, agent, gpuops):
    agent(status=error)
    said = gpuops("status", "--host", "gpu-box")
    assert (said.code, said.out) == (code, "")
    assert said.err.startswith(f"error: {error.what}\n")


def test_with_json_the_error_is_one_object_on_standard_output(agent, gpuops):
    agent(status=LOST)
    said = gpuops("status", "--host", "gpu-box", "--json")
    assert said.objects == [{"error": LOST.as_dict()}]
    assert (said.code, said.err) == (4, "")


def test_quiet_does_not_hide_errors(agent, gpuops):
    agent(status=LOST)
    assert "error: gpu-box" in gpuops("status", "--host", "gpu-box", "-q").err


def test_an_unexpected_failure_is_short_and_says_how_to_see_more(agent, gpuops):
    agent(status=ZeroDivisionError("oops"))
    said = gpuops("status", "--host", "gpu-box")
    assert said.code == 1
    assert said.err.splitlines()[0] == "error: gpuops failed unexpectedly: ZeroDivisionError('oops')"
    assert "-v shows the traceback" in said.err
    assert "Traceback" not in said.err


def test_verbose_shows_the_traceback_of_an_unexpected_failure(agent, gpuops):
    agent(status=ZeroDivisionError("oops"))
    assert "Traceback (most recent call last)" in gpuops("status", "--host", "gpu-box", "-v").err
