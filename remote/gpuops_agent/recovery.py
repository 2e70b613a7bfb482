"""What a crashed rollout left behind is closed before the next one begins: journalled, and never guessed at."""

from __future__ import annotations

from typing import List

from . import journal, releases
from .files import write_json
from .paths import Service
from .recorder import outcome, outcome_file
from .releases import GOOD, READY, STAGED, STARTING, UNKNOWN, VERIFIED
from .wire import UNKNOWN as CODE_UNKNOWN


def close_cut_operations(service: Service, own: str) -> List[str]:
    """Give every operation that has no outcome one: `cut`. Releases that were on their way become `unknown`.

    Only the holder of the service's lock may call this: then no other runner lives.
    """
    cut = [
        folder.name
        for folder in service.operations.iterdir()
        if folder.is_dir() and folder.name != own and outcome(service, folder.name) is None
    ]
    for op in sorted(cut):
        journal.write(service, "cut", op=op)
        write_json(outcome_file(service, op), {"outcome": "cut", "code": CODE_UNKNOWN, "op": op, "reason": "its runner died"})
    for number in releases.numbers(service):
        if releases.state(service, number)["state"] not in (STAGED, STARTING, READY, VERIFIED):
            continue
        if number == releases.known_good(service):
            # Cut between the link and the state: the link is the promotion.
            releases.set_state(service, number, GOOD, "", own)
        else:
            releases.set_state(service, number, UNKNOWN, "its rollout was cut", own)
    return cut
