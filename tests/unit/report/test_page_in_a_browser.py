"""The page as a browser shows it: headless Chromium draws its charts, with their words, and needs no network for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image
from samples import comparison

from gpuops.report import page, sheet

PACKAGE = "chromium-headless-shell"
NAMES = (PACKAGE, "chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1000, 4200

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program. As root on a Debian-like system it is installed (about 100 MB), as the sandbox does with sshd."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "--no-install-recommends", "-y", PACKAGE]):
            subprocess.run(
                ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", *words], env=environment, check=True, capture_output=True
            )
        found = shutil.which(PACKAGE)
    assert found is not None, f"this test needs Chromium: sudo apt-get install --no-install-recommends {PACKAGE}"
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "comparison.html"
    path.write_text(page.html(sheet.of_comparison(*comparison(), "gpu-box")))
    return path


def run(chromium: str, *words: str) -> subprocess.CompletedProcess[str]:
    # No sandbox: Chromium refuses its own to root. No network of any kind: whatever the page asked for would fail.
    quiet = [
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--proxy-server=127.0.0.1:9",
        f"--window-size={WIDTH},{HEIGHT}",
    ]
    return subprocess.run([chromium, *quiet, *words], capture_output=True, text=True, timeout=120, check=True)


def test_a_browser_shows_every_chart_with_its_words(chromium: str, file: Path) -> None:
    dom = run(chromium, "--dump-dom", f"file://{file}").stdout
    for name in ("throughput", "ratios", "latency", "telemetry"):
        section = re.search(rf'<section id="chart-{name}">(.*?)</section>', dom, re.DOTALL)
        assert section is not None and "<svg" in section[1] and "<path" in section[1], name
    words = re.findall(r"<text[^>]*>([^<]+)</text>", dom)
    assert {"tok/s", "requests at a time", "change of B, % (more is better)", "c1: TTFT", "requests"} <= {
        each.strip() for each in words
    }
    assert "B has improved tok/s at c1" in dom


def test_the_screenshot_shows_both_sides_in_their_colours_in_every_chart(chromium: str, file: Path, tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    run(chromium, f"--screenshot={shot}", f"file://{file}")
    picture = numpy.asarray(Image.open(shot).convert("RGB"))
    assert picture.shape == (HEIGHT, WIDTH, 3)
    blue, orange = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)
    assert len(bands(picture, blue)) >= 3 and len(bands(picture, orange)) >= 4


def bands(picture: Any, colour: tuple[int, int, int]) -> list[int]:
    """Where, from above, a colour begins to stand; 60 rows without it end a stretch, as there are between charts."""
    found: list[int] = []
    last = -100
    for row in (picture == colour).all(axis=2).any(axis=1).nonzero()[0]:
        found += [int(row)] if row - last > 60 else []
        last = row
    return found
