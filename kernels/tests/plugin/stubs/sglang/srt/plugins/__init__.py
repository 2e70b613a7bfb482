"""The part of SGLang's plugin loader that matters: it runs every entry point and only logs what that raises."""

import logging
from importlib.metadata import entry_points

logger = logging.getLogger(__name__)


def load_plugins():
    for entry in entry_points(group="sglang.srt.plugins"):
        try:
            entry.load()()
        except Exception:
            logger.exception("Failed to execute general plugin: %s", entry.name)
