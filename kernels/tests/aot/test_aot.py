"""A cache that was filled ahead of time is what the first real launch looks for, and says so when it is not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="filling a cache needs torch and triton")

import torch

from gpuops_kernels import aot, configs, registry
from gpuops_kernels.gate import check
from gpuops_kernels.mhc import launches
from gpuops_kernels.mhc import op as mhc

KERNELS = Path(__file__).parents[2]
SERVER = Path(__file__).with_name("server.py")
FAMILIES = ("mla_decode", "indexer", "mhc")

# Other batch sizes than the ones that the cache is filled with.
BATCHES = ("2", "7", "48", "1000")


@dataclass(frozen=True)
class Card:
    """A libcuda that answers "success", and a cache filled for a card with it."""

    libcuda: Path
    cache: Path
    told: dict[str, Any]

    def serve(self, package: Path, cache: Path) -> list[str]:
        """Launch as an engine does, with a package that lies somewhere else; returns the entries that the cache did not have."""
        before = _entries(cache)
        argv = [sys.executable, str(SERVER), "12.0", *BATCHES]
        subprocess.run(argv, env=_environment(self.libcuda, package, cache), check=True, timeout=300, cwd=package)
        return sorted(_entries(cache) - before)


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 whose functions do nothing and succeed; every attribute is 227 Ki, a size of shared memory."""
    if shutil.which("gcc") is None:
        pytest.skip("a stand-in for libcuda is made with gcc")
    folder = tmp_path_factory.mktemp("libcuda")
    driver = Path(str(pytest.importorskip("triton.backends.nvidia.driver").__file__)).parent
    text = (driver / "driver.c").read_text() + (driver / "driver.py").read_text()
    names = sorted(set(re.findall(r"\bcu[A-Z]\w+", text)) - {"cuDeviceGetAttribute", "cuFuncGetAttribute"})
    source = [f"int {name}() {{ return 0; }}" for name in names]
    source += [
        f"int {name}(int *value) {{ *value = 227 << 10; return 0; }}" for name in ("cuDeviceGetAttribute", "cuFuncGetAttribute")
    ]
    (folder / "cuda.c").write_text("\n".join(source) + "\n")
    argv = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "cuda.c"]
    subprocess.run(argv, cwd=folder, check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


@pytest.fixture(scope="module")
def card(libcuda: Path, tmp_path_factory: pytest.TempPathFactory) -> Card:
    cache = tmp_path_factory.mktemp("filled") / "cache"
    return Card(libcuda, cache, _fill(libcuda, KERNELS, cache))


def test_the_first_launch_of_a_server_misses_nothing(card: Card, tmp_path: Path) -> None:
    assert card.serve(_copy(tmp_path), card.cache) == []


def test_a_launch_with_another_configuration_misses(card: Card, tmp_path: Path) -> None:
    package = _copy(tmp_path)
    _configure(package, "indexer.logits", "heads64-page64", num_warps=8)
    cache = Path(shutil.copytree(card.cache, tmp_path / "cache"))
    missed = card.serve(package, cache)
    assert {path.partition("/")[2].partition(".")[0].removeprefix("__grp__") for path in missed} == {"indexer_logits"}


def test_an_empty_cache_misses_everything_that_a_server_launches(card: Card, tmp_path: Path) -> None:
    missed = card.serve(_copy(tmp_path), tmp_path / "cache")
    kernels = {"mla_decode_split", "mla_decode_combine", "indexer_logits", "boundary_partials", "pre_finish"}
    assert kernels <= {path.partition("/")[2].partition(".")[0] for path in missed}


def test_what_was_filled_is_told(card: Card) -> None:
    told = card.told
    assert (told["capability"], told["families"], told["launchers"]) == ("12.0", list(FAMILIES), True)
    assert told["kernels"] == told["compiled"] > 4 and told["cached"] == 0


def test_filling_again_compiles_nothing(card: Card) -> None:
    before = _entries(card.cache)
    again = _fill(card.libcuda, KERNELS, card.cache)
    assert (again["compiled"], again["cached"]) == (0, card.told["kernels"])
    assert _entries(card.cache) == before


@pytest.mark.parametrize("family", registry.FAMILIES)
def test_every_kernel_has_its_key_before_any_is_launched(family: str) -> None:
    # Triton 3.6.0 gives other keys to the same kernels when they are asked for in another order.
    program = (
        "import importlib, sys\n"
        "from triton.runtime.jit import JITFunction\n"
        "module = importlib.import_module(f'gpuops_kernels.{sys.argv[1]}.kernel')\n"
        "print([name for name, value in vars(module).items() if isinstance(value, JITFunction) and value.hash is None])"
    )
    ended = subprocess.run([sys.executable, "-c", program, family], cwd=KERNELS, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("capability", configs.capabilities(), ids=str)
@pytest.mark.parametrize("kernel", ["linear_partials", "boundary_partials"])
def test_no_number_of_rows_needs_a_binary_of_mhc_that_is_not_filled(capability: configs.Capability, kernel: str) -> None:
    def binary(rows: int) -> tuple[str, bool]:
        shape = mhc._shape(rows, mhc.HIDDENS[0])
        blocks = mhc._split(cpu, rows, mhc.STREAMS * mhc.HIDDENS[0], configs.lookup(cpu, f"mhc.{kernel}", shape))[2]
        return shape, blocks == 1

    cpu = torch.device("cpu")
    with configs.assume(capability):
        filled = {binary(launches._rows(most, batch)) for most in mhc.DECODE_ROWS for batch in check.BATCH_SIZES}
        filled |= {binary(launches._PREFILL * batch) for batch in check.BATCH_SIZES}
        assert {binary(rows) for rows in range(1, 9000)} <= filled


def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path) -> None:
    package = _copy(tmp_path)
    _configure(package, "indexer.logits", "heads64-page64", num_warps=3)
    ended = _run(
        _environment(None, package, None), "--capability", "12.0", "--cache", str(tmp_path / "cache"), "--family", "indexer"
    )
    assert ended.returncode == 2, ended
    assert "indexer/logits/heads64-page64 for compute capability 12.0: indexer_logits does not compile" in ended.stderr


def test_a_machine_without_a_card_needs_neither_torch_nor_triton(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from gpuops_kernels import aot\n"
        f"sys.exit(aot.main(['--capability', 'cpu', '--cache', {str(tmp_path / 'cache')!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=KERNELS, capture_output=True, text=True, check=True)
    told = json.loads(ended.stdout.splitlines()[-1])
    assert (told["capability"], told["kernels"]) == ("cpu", 0)


def test_a_check_without_a_card_says_so(tmp_path: Path) -> None:
    environment = {**_environment(None, KERNELS, None), "CUDA_VISIBLE_DEVICES": ""}
    ended = _run(environment, "--check", "--cache", str(tmp_path))
    assert ended.returncode == 2 and "there is no CUDA device here" in ended.stderr


@pytest.mark.parametrize(
    ("version", "environment", "families"),
    [
        ("0.5.15.post1", {}, ("mla_decode", "indexer", "mhc")),
        ("0.5.23", {}, ("mhc",)),
        ("0.5.23", {"GPUOPS_KERNELS_INDEXER": "1", "GPUOPS_KERNELS_MHC": "0"}, ("indexer",)),
        ("0.5.23", {"GPUOPS_KERNELS": "off"}, ()),
        ("9.9.9", {}, ()),
        ("", {}, registry.FAMILIES),
    ],
)
def test_what_is_compiled_is_what_the_plugin_puts_in_place(
    version: str, environment: dict[str, str], families: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aot.importlib.metadata, "version", lambda package: version)
    for name in [name for name in os.environ if name.startswith("GPUOPS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert aot.placed((12, 0)) == families


def _copy(folder: Path) -> Path:
    """The package at another place: a build on a host lies elsewhere than where it was made."""
    shutil.copytree(KERNELS / "gpuops_kernels", folder / "site" / "gpuops_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "site"


def _configure(package: Path, kernel: str, shape: str, **entry: int) -> None:
    path = package / "gpuops_kernels" / "configs" / "cc120.json"
    entries = json.loads(path.read_text())
    entries[kernel][shape].update(entry)
    path.write_text(json.dumps(entries))


def _fill(libcuda: Path, package: Path, cache: Path) -> dict[str, Any]:
    families = [word for family in FAMILIES for word in ("--family", family)]
    ended = _run(_environment(libcuda, package, None), "--capability", "12.0", "--cache", str(cache), *families)
    assert ended.returncode == 0, ended
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def _run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "gpuops_kernels.aot", *words]
    # Not here: -m looks into the present folder first.
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False, cwd="/")


def _environment(libcuda: Path | None, package: Path, cache: Path | None) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith(("GPUOPS_", "TRITON_"))}
    found |= {"PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}", "PYTHONDONTWRITEBYTECODE": "1"}
    if libcuda is not None:
        found |= {"LD_LIBRARY_PATH": str(libcuda), "TRITON_LIBCUDA_PATH": str(libcuda)}
    if cache is not None:
        found["TRITON_CACHE_DIR"] = str(cache)
    return found


def _entries(cache: Path) -> set[str]:
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
