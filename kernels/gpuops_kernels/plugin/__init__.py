"""The SGLang plugin: puts this package's kernels in the place of SGLang's, proves on every rank that they are there, and refuses when they are not.

SGLang calls :func:`register` in every process, through the entry point group ``sglang.srt.plugins``. What happens then:

1. In a worker process, each module that holds a target is patched right after its import (:mod:`.imports`), so that no ``from module import
   function`` can have copied the original; modules that were there before are patched at once, and every binding of the original is replaced.
2. When the model is loaded and before CUDA graphs are captured, the replacements are verified and each rank writes its proof (:mod:`.proof`).
3. After the capture the proof is written again, with the number of calls that each replacement served: a kernel that is in place but that the engine
   goes around has none, and one that leaves small batches to the engine's own says how many it passed on.

Why not SGLang's own ``HookRegistry``: it wraps what it replaces (identity is lost, and a proof with it), imports the targets when the process starts,
before the engine has published its configuration, and only logs a target that is missing. Its loader also only logs an exception of a plugin and
serves stock. Therefore ``strict`` mode ends the process instead of raising (:mod:`.refusal`).

Importing this module imports neither torch nor triton.
"""

from __future__ import annotations


def register() -> None:
    """What SGLang calls in the launcher and in every worker process."""
    import multiprocessing
    import os

    from . import refusal, settings, worker

    try:
        wanted = settings.read(os.environ)
    except settings.SettingsError as error:
        refusal.refuse(str(error))
    if wanted.mode == "off":
        return
    try:
        worker.start(wanted, in_worker=multiprocessing.parent_process() is not None)
    except Exception as error:
        # SGLang's loader would log it, and serve stock.
        if wanted.mode == "strict":
            refusal.refuse(f"{type(error).__name__}: {error}")
        raise
