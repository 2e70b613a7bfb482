"""Copies from a module that is patched while it is imported."""

from sglang.srt.layers.boundary import boundary  # noqa: F401
