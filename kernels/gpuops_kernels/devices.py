"""What a wrapper has to know of a device to choose a grid: nothing that depends on data."""

from __future__ import annotations

import functools

import torch

from . import configs

# RTX PRO 6000 Blackwell and H200: for tensors on the CPU, which stand for one of these in the interpreter and the gate.
_ASSUMED = {(12, 0): 188, (9, 0): 132}


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a device; for the CPU, those of the card that :func:`configs.assume` names."""
    if device.type == "cuda":
        return _multiprocessors(device.index)
    return _ASSUMED[configs.capability(device)]


@functools.cache
def _multiprocessors(index: int | None) -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index).multi_processor_count
