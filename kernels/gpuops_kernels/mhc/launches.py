"""What the gate compiles of this family: every kernel, for each range of rows that has a configuration."""

from __future__ import annotations

import torch

from ..registry import Expectation, Family, Launch
from . import cases, op

_PREFILL = 4096


def _case(rows: int, hidden: int) -> cases.Case:
    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    bf16 = torch.bfloat16
    return cases.Case(
        x=empty(rows, hidden, dtype=bf16),
        residual=empty(rows, op.STREAMS, hidden, dtype=bf16),
        post=empty(rows, op.STREAMS),
        comb=empty(rows, op.STREAMS, op.STREAMS),
        fn=empty(op.OUTPUTS, op.STREAMS * hidden),
        weight=empty(2 * op.OUTPUTS, op.STREAMS * hidden, dtype=bf16),
        scale=empty(3),
        base=empty(op.OUTPUTS),
        norm=op.Norm(empty(hidden, dtype=bf16), 1e-6),
    )


def _linear(rows: int, hidden: int) -> None:
    case = _case(rows, hidden)
    op.linear(case.flat, case.weight)


def _pre(rows: int, hidden: int) -> None:
    case = _case(rows, hidden)
    for norm in (None, case.norm):
        op.pre(case.residual, case.weight, case.scale, case.base, case.constants, norm)


def _post_pre(rows: int, hidden: int) -> None:
    case = _case(rows, hidden)
    for norm in (None, case.norm):
        op.post_pre(case.x, case.residual, case.post, case.comb, case.weight, case.scale, case.base, case.constants, norm)


def _rows(most: int, batch: int) -> int:
    """A number of rows that the configuration for up to ``most`` rows serves: the gate's batch sizes, 1 to 64, spread over its range."""
    least = max((limit for limit in op.DECODE_ROWS if limit < most), default=0) + 1
    return least + (most - least) * (batch - 1) // 63


def _launches() -> tuple[Launch, ...]:
    calls = {"linear": _linear, "pre": _pre, "post_pre": _post_pre}
    made = []
    for hidden in op.HIDDENS:
        for name, call in calls.items():
            for most in op.DECODE_ROWS:
                made.append(
                    Launch(
                        f"rows{most}/{name}-hidden{hidden}",
                        lambda batch, call=call, hidden=hidden, most=most: call(_rows(most, batch), hidden),
                    )
                )
            made.append(
                Launch(f"prefill/{name}-hidden{hidden}", lambda batch, call=call, hidden=hidden: call(_PREFILL * batch, hidden))
            )
    return tuple(made)


FAMILY = Family(
    name="mhc",
    keys=tuple(
        (f"mhc.{kernel}", f"hidden{hidden}{rows}")
        for hidden in op.HIDDENS
        for kernel, every_rows in (
            ("linear_partials", (*(f"-rows{most}" for most in op.DECODE_ROWS), "-prefill")),
            ("boundary_partials", (*(f"-rows{most}" for most in op.DECODE_ROWS), "-prefill")),
            ("linear_reduce", ("",)),
            ("pre_finish", ("",)),
        )
        for rows in every_rows
    ),
    launches=_launches(),
    expectations={
        "linear_partials": Expectation(mma=True, wide_loads=True),
        "boundary_partials": Expectation(mma=True, wide_loads=True),
        "linear_reduce": Expectation(),
        # With and without a norm.
        "pre_finish": Expectation(wide_loads=True, binaries=2),
    },
)
