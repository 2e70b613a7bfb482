"""What stands in for our kernels."""

import os

if os.environ.get("STUB_BROKEN_OPS"):
    raise ImportError("no module named triton")


def attend(*, heads=None, **kwargs):
    return f"our attention of {kwargs['q']}, {heads} heads"


def boundary(stock, rows):
    return f"our boundary of {rows}" if rows > 32 else stock(rows)


def act(layer, x):
    return f"our act of {x}"


def pre(layer, x):
    return f"our pre of {x}"
