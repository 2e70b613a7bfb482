"""One rank of an all-reduce. A program of its own, run by a runtime's Python for its PyTorch: nothing of the agent is imported here.

``python -c SOURCE RANK RANKS CARD FILE``: CARD is an ordinal among the visible ones, -1 for none (gloo instead of NCCL); FILE is where they meet.
Each stage that is reached is one JSON line: started, imported, joined, added (with ``right``), measured (with ``bytes`` and ``seconds``), done.
"""

import json
import sys
import time
from typing import Any

# Numbers in the sum that is checked: more than one of NCCL's chunks, and float32 holds the sums exactly.
NUMBERS = 1 << 18

# What the time is taken of: large enough for the links' full rate (NCCL tests, PERFORMANCE.md), small beside a card.
BYTES = 64 << 20
WARM_UPS, ROUNDS = 2, 5


def main(rank: int, ranks: int, card: int, meeting: str) -> None:
    say("started")
    import torch
    import torch.distributed as dist

    say("imported", torch=torch.__version__)
    device = torch.device("cpu") if card < 0 else torch.device("cuda", card)
    if card >= 0:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if card < 0 else "nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    say("joined")
    pattern = torch.arange(NUMBERS, device=device, dtype=torch.float32) % 7 + 1
    mine = pattern * (rank + 1)
    dist.all_reduce(mine)
    say("added", right=bool((mine == pattern * (ranks * (ranks + 1) // 2)).all()))
    if card >= 0:
        say("measured", bytes=BYTES, seconds=seconds(torch, dist, device))
    dist.destroy_process_group()
    say("done")


def seconds(torch: Any, dist: Any, device: Any) -> float:
    """The mean time of one all-reduce."""
    data = torch.zeros(BYTES // 4, device=device)
    for _ in range(WARM_UPS):
        dist.all_reduce(data)
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(data)
    torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / ROUNDS


def say(stage: str, **told: object) -> None:
    print(json.dumps({"stage": stage, **told}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
