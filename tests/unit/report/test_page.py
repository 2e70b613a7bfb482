"""The page: whole, quiet, and safe against what stands in answers; and what is said when the extra is missing."""

from __future__ import annotations

import builtins
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from samples import comparison

from gpuops.errors import GpuopsError
from gpuops.report import page, sheet


@pytest.fixture(scope="module")
def html() -> str:
    return page.html(sheet.of_comparison(*comparison(), "gpu-box"))


def test_every_chart_is_in_the_page_as_a_drawing(html: str) -> None:
    assert re.findall(r'<section id="chart-(\w+)">', html) == ["throughput", "ratios", "latency", "telemetry"]
    assert html.count("<svg") == 4


def test_the_page_asks_nothing_of_any_other_machine_and_runs_nothing(html: str) -> None:
    asks: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag in ("script", "link", "iframe", "img", "object", "embed"):
                asks.append(tag)
            elsewhere = [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href")]
            asks.extend(each for each in elsewhere if "=#" not in each)

    Reader().feed(html)
    assert asks == []
    assert set(re.findall(r"url\(([^)]*)", html)) <= {f"#{each}" for each in re.findall(r'id="([^"]+)"', html)}


def test_ids_are_unique_in_the_page_but_for_the_names_that_nothing_refers_to(html: str) -> None:
    referred = set(re.findall(r"#(\w+)", " ".join(re.findall(r'(?:xlink:href="|url\()#\w+', html))))
    ids = re.findall(r'id="([^"]+)"', html)
    assert all(ids.count(each) == 1 for each in referred)


def test_what_a_server_answered_is_text_and_no_markup(html: str) -> None:
    assert "Paris &lt;b&gt;|&lt;/b&gt;" in html and "<b>" not in html


def test_the_same_report_gives_the_same_page(html: str) -> None:
    assert page.html(sheet.of_comparison(*comparison(), "gpu-box")) == html


def test_a_host_without_cards_has_strips_of_its_own() -> None:
    text = page.html(sheet.of_comparison(*comparison(cards=False), "cpu-box"))
    assert "load of host" in text and "SM clock" not in text


def test_a_comparison_of_one_pair_has_its_dots_and_no_interval() -> None:
    assert 'id="chart-ratios"' in page.html(sheet.of_comparison(*comparison(pairs=1), "gpu-box"))


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_the_extra_it_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ImportError(f"No module named {missing!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GpuopsError) as caught:
        page.html(sheet.of_comparison(*comparison(), "gpu-box"))
    assert "pip install 'gpuops[report]'" in caught.value.next and missing in caught.value.evidence
