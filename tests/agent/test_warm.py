"""Reading weights ahead: when it is done, what is read, and what ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpuops_agent import warm
from gpuops_agent.warm import Room
from gpuops_agent.wire import Cancelled

GIB = 1 << 30


@pytest.mark.parametrize(
    ("total", "room", "wanted", "why"),
    [
        (10 * GIB, 100 * GIB, None, ""),
        (61 * GIB, 100 * GIB, None, "do not fit into 60%"),
        (61 * GIB, 100 * GIB, True, ""),
        (10 * GIB, 100 * GIB, False, "model.warm: false"),
        (10 * GIB, GIB, True, "only 1024 MB of memory are available"),
    ],
)
def test_weights_are_read_when_they_fit_or_when_the_playbook_says_so(
    total: int, room: int, wanted: bool | None, why: str
) -> None:
    said = warm.decide(total, Room(room, "MemAvailable"), wanted)
    assert why in said and bool(said) == bool(why)


def test_every_weight_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b.safetensors").write_bytes(b"x" * 20_000_000)
    (tmp_path / "config.json").write_text("{}")
    found = warm.warm(warm.files_of(tmp_path), lambda: False)
    assert (found.bytes, found.total, found.why) == (23_000_000, 23_000_000, "")


def test_a_cancelled_reading_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with pytest.raises(Cancelled):
        warm.warm(warm.files_of(tmp_path), lambda: True)


def test_a_file_that_cannot_be_read_ends_it_without_a_failure(tmp_path: Path) -> None:
    gone = tmp_path / "a.safetensors"
    gone.mkdir()
    found = warm.warm([gone], lambda: False)
    assert found.bytes == 0 and found.why.startswith("a.safetensors: ")


def test_memory_that_shrinks_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x")
    monkeypatch.setattr(warm, "room", lambda: Room(5 << 20, "/sys/fs/cgroup/memory.max"))
    found = warm.warm(warm.files_of(tmp_path), lambda: False)
    assert found.why == "memory is short: 5 MB (/sys/fs/cgroup/memory.max)"


def test_the_limit_of_a_control_group_counts_and_its_page_cache_as_free(tmp_path: Path) -> None:
    inner = tmp_path / "system.slice" / "gpuops"
    inner.mkdir(parents=True)
    for folder, most, used in ((inner, "max", 0), (inner.parent, str(8 * GIB), 6 * GIB)):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\nfile {GIB}\n")
    found = warm._limits(tmp_path, "/system.slice/gpuops", "memory.max", "memory.current", "file")
    assert found == [Room(3 * GIB, str(inner.parent / "memory.max"))]


def test_this_host_has_room_by_some_measure() -> None:
    assert warm.room().bytes > 0 and warm.room().why
