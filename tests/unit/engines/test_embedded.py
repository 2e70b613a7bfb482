"""The embedded runtime's import shim and model converter, without the runtime: what can be said in a plain Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EMBEDDED = Path(__file__).parents[3] / "playbooks" / "embedded"
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+ +# (\d+) B\Z")


def run(code: str, *, enabled: bool) -> str:
    """stdout of ``code`` in a Python that has loaded the shim."""
    environment = {**os.environ, "PYTHONPATH": str(EMBEDDED), "SGLANG_USE_CPU_ENGINE": "1" if enabled else "0"}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, sgl_cpu_shim\n{code}"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pins() -> list[str]:
    lines = (EMBEDDED / "sglang-cpu.lock").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_the_shim_does_nothing_unless_the_cpu_engine_is_asked_for() -> None:
    assert run("import importlib.util as u; print(u.find_spec('torchvision'))", enabled=False) == "None"


def test_a_missing_package_becomes_a_stand_in() -> None:
    code = "from torchvision.transforms import InterpolationMode; print(InterpolationMode.BICUBIC)"
    assert run(code, enabled=True) == "BICUBIC"


def test_a_stand_in_computes_nothing() -> None:
    code = "import sgl_kernel\ntry: sgl_kernel.rmsnorm()\nexcept RuntimeError as error: print(error)"
    assert run(code, enabled=True) == "sgl_kernel.rmsnorm is a stand-in: it is not available on SGLang's CPU engine"


def test_submodules_of_sgl_kernel_stay_missing_since_sglang_has_its_own_fallback() -> None:
    code = "try: import sgl_kernel.scalar_type\nexcept ImportError: print('missing')"
    assert run(code, enabled=True) == "missing"


def test_other_packages_are_none_of_the_shims_business() -> None:
    assert run("import importlib.util as u; print(u.find_spec('no_such_package_at_all'))", enabled=True) == "None"


def test_an_installed_package_wins_over_its_stand_in(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("__version__ = 'real'\n")
    assert run(f"sys.path.append({str(tmp_path)!r}); import torchvision; print(torchvision.__version__)", enabled=True) == "real"


def test_the_shim_is_loaded_by_every_python_of_the_runtime() -> None:
    assert (EMBEDDED / "sgl_cpu_shim.pth").read_text() == "import sgl_cpu_shim\n"


def test_the_converter_says_which_file_is_missing(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        str(EMBEDDED / "convert_gguf.py"),
        "--wheel-dir",
        str(tmp_path),
        "--gguf",
        "x.gguf",
        "--out",
        str(tmp_path / "m"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"convert_gguf: x.gguf: no such file in {tmp_path}\n")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("line", pins())
def test_every_distribution_is_pinned_with_its_size(line: str) -> None:
    assert PIN.match(line)


def test_the_lock_states_the_total_download() -> None:
    total = sum(int(match.group(1)) for match in map(PIN.match, pins()) if match)
    assert f"# total {total} B" in (EMBEDDED / "sglang-cpu.lock").read_text()
