"""Imported before the plugins are loaded, and so is the module that it copies from."""

from sglang.srt.layers.attention import attend  # noqa: F401
