"""Nothing is compiled for this family."""

from __future__ import annotations

from ..registry import Family

FAMILY = Family(name="swiglu", keys=(), launches=())
