"""What is known of an inference engine, per version: its argv, caches, endpoints, log and processes.

The knowledge is data, one row a fact: ``<engine>.json`` beside this file, and ``failures/<engine>.json`` for what its logs say of failures; each
row with its ``source``, and with ``since`` (inclusive) and ``until`` (exclusive) where it does not hold for every version. :func:`facts` picks the
rows of one version. The controller turns flags into an argv with :meth:`EngineFacts.launch`; the agent on the host gets the rest as plain JSON,
:meth:`EngineFacts.as_order`, so that no word of an engine is in the agent's code.
"""

from __future__ import annotations

from gpuops.engines.argv import Flag, FlagRules
from gpuops.engines.facts import EngineFacts, facts, reading

__all__ = ["EngineFacts", "Flag", "FlagRules", "facts", "reading"]
