"""Which cards a service uses, and who else is on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gpuops_agent import cards
from gpuops_agent.gpus import Card, GpuProcess

UUIDS = ("GPU-aaaa-0", "GPU-bbbb-1", "GPU-cccc-2", "GPU-dddd-3")
KNOWN = [Card(index, "NVIDIA H200", uuid, "", "580", 143771, 4) for index, uuid in enumerate(UUIDS)]


def document(visible: str | None = None, ranks: int | None = 2, **place: int) -> dict[str, Any]:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return {"env": env, "engine": {"ranks": {"patterns": [], "schedulers": ranks, "cards": place}}}


@pytest.mark.parametrize(
    ("said", "own"),
    [
        (document(), {0, 1}),
        (document(ranks=1), {0}),
        (document(ranks=None), {0, 1, 2, 3}),
        (document(first=2), {2, 3}),
        (document(first=1, step=2), {1, 3}),
        (document("2,3"), {2, 3}),
        (document("3, 1,0"), {1, 3}),
        (document("3,1,0", ranks=1), {3}),
        (document("GPU-cccc,GPU-dddd-3"), {2, 3}),
        (document("1,9,2", ranks=None), {1}),
        (document("", ranks=None), set()),
        (document("-1", ranks=None), set()),
        (document("MIG-1234", ranks=None), {0, 1, 2, 3}),
        (document("0", ranks=2), {0}),
        ({"env": {}, "engine": {"ranks": {"patterns": [], "schedulers": 2}}}, {0, 1}),
    ],
    ids=[
        "the first ones, as many as ranks",
        "one rank",
        "nobody knows how many ranks",
        "from another card on",
        "every other card",
        "by index",
        "in another order",
        "one rank in another order",
        "by uuid, cut or whole",
        "up to the first that is none",
        "none",
        "none, by a number that is none",
        "a part of a card",
        "fewer than ranks",
        "a release of an older gpuops",
    ],
)
def test_the_cards_of_a_service_are_those_that_it_sees_and_its_ranks_take(said: dict[str, Any], own: set[int]) -> None:
    assert cards.of_release(said, KNOWN) == own


# Pids that no process has: the driver's own names are shown.
OURS, FOREIGN = 2**22 + 1, 2**22 + 2


def on(*held: tuple[int, int, int | None]) -> list[GpuProcess]:
    return [GpuProcess(card, pid, used, "python3") for card, pid, used in held]


@pytest.mark.parametrize(
    ("held", "own", "ours", "elsewhere"),
    [
        (on((0, OURS, 9), (1, OURS, 9)), {0, 1}, (), ()),
        (on((0, OURS, 9), (1, FOREIGN, 512)), {0, 1}, (f"foreign process on card 1 only: pid {FOREIGN}, python3, 512 MiB",), ()),
        (
            on((0, FOREIGN, 500), (1, FOREIGN, 12)),
            {0, 1},
            (f"foreign process on cards 0 and 1: pid {FOREIGN}, python3, 512 MiB",),
            (),
        ),
        (on((0, FOREIGN, None)), {0}, (f"foreign process on card 0: pid {FOREIGN}, python3",), ()),
        (
            on((0, OURS, 9), (3, FOREIGN, 5)),
            {0, 1},
            (),
            (f"another process on card 3, not used by this service: pid {FOREIGN}, python3, 5 MiB",),
        ),
        (on((1, FOREIGN, 5), (3, FOREIGN, 7)), {0, 1}, (f"foreign process on card 1 only: pid {FOREIGN}, python3, 5 MiB",), ()),
    ],
    ids=["nobody", "on one of ours", "on all of ours", "memory that the driver does not tell", "on another card", "on both"],
)
def test_a_stranger_is_told_with_its_cards(
    held: list[GpuProcess], own: set[int], ours: tuple[str, ...], elsewhere: tuple[str, ...]
) -> None:
    assert cards.strangers(held, {OURS}, own) == cards.Strangers(ours, elsewhere)


def left(*held: tuple[int, int, int | None], used: tuple[int, ...] = (4, 4, 4, 4)) -> list[tuple[bool, str]]:
    """What a stop says of the first two cards, once free and once in words."""
    known = [replace(card, used_mib=mib) for card, mib in zip(KNOWN, used, strict=True)]
    return [(each.free, each.text) for each in cards.released({0, 1}, known, on(*held), {OURS})]


def test_a_stop_tells_of_each_card_of_the_service_whether_it_is_free() -> None:
    assert left() == [(True, "card 0 is free, 4 MiB used"), (True, "card 1 is free, 4 MiB used")]
    assert left((1, OURS, 900), used=(4, 904, 4, 4)) == [
        (True, "card 0 is free, 4 MiB used"),
        (False, f"card 1 is not free, 904 MiB used: pid {OURS}, python3, 900 MiB"),
    ]


def test_others_on_a_card_are_no_reason_to_call_it_not_free() -> None:
    assert left((0, FOREIGN, 900), (3, FOREIGN + 1, 9), used=(904, 4, 13, 4))[0] == (
        True,
        f"card 0 is free of it, 904 MiB used: pid {FOREIGN}, python3, 900 MiB",
    )


def test_memory_that_no_visible_process_holds_is_not_called_free() -> None:
    assert left(used=(4, 70000, 4, 4))[1] == (False, "card 1, 70000 MiB used by no process that can be seen from here")
