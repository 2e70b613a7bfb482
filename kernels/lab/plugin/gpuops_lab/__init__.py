"""What the lab does to a server and no product does: other branches, weights that say something, kernels that are wrong on purpose.

An SGLang plugin of its own, put on PYTHONPATH by ``lab/server.py``. Three variables, each for one module:

- ``LAB_FORCE_SM120=1``: take the sm_120 branches of the DeepSeek-V4 backend on another card (:mod:`.force`).
- ``LAB_WEIGHTS=1``: random weights of a trained model's scale instead of SGLang's dummy ones (:mod:`.weights`).
- ``LAB_PLANT=drop_split|scale``: make our sparse decode wrong (:mod:`.plants`).
"""

from __future__ import annotations

import os


def register() -> None:
    """What SGLang calls in every process."""
    from . import force, plants, weights

    if os.environ.get("LAB_FORCE_SM120") == "1":
        force.install()
    if os.environ.get("LAB_WEIGHTS") == "1":
        weights.install()
    if os.environ.get("LAB_PLANT"):
        plants.install(os.environ["LAB_PLANT"])
