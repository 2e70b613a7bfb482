"""What the lab does to a server and no product does: other branches, weights that say something, kernels that are wrong on purpose.

An SGLang plugin of its own, put on PYTHONPATH by ``lab/server.py``. Five variables, each for one module:

- ``LAB_FORCE_SM120=1``: take the sm_120 branches of the DeepSeek-V4 backend on another card (:mod:`.force`).
- ``LAB_WEIGHTS=1``: random weights of a trained model's scale instead of SGLang's dummy ones (:mod:`.weights`).
- ``LAB_PLANT=drop_split|scale``: make our sparse decode wrong (:mod:`.plants`).
- ``LAB_COMPRESSOR=1``: keep a product of SGLang's compressor out of torch.compile (:mod:`.compressor`).
- ``LAB_SHADOW=1``: compute stock's results too, and keep the differences in ``LAB_FOLDER`` (:mod:`.shadow`).
"""

from __future__ import annotations

import os


def register() -> None:
    """What SGLang calls in every process."""
    import multiprocessing
    from pathlib import Path

    from . import force, plants, weights

    if os.environ.get("LAB_FORCE_SM120") == "1":
        force.install()
    if os.environ.get("LAB_WEIGHTS") == "1":
        weights.install()
    if os.environ.get("LAB_COMPRESSOR") == "1":
        from . import compressor

        compressor.install()
    if os.environ.get("LAB_PLANT"):
        plants.install(os.environ["LAB_PLANT"])
    # Like the pack's own plugin: nothing is replaced in the launcher.
    if os.environ.get("LAB_SHADOW") == "1" and multiprocessing.parent_process() is not None:
        from . import shadow

        shadow.install(Path(os.environ["LAB_FOLDER"]) / "shadow.json")
