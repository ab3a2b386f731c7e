"""The assignors that balance lag."""

from roster.assignors.lag.policy import (
    LAG,
    LAG_COOPERATIVE_STICKY,
    LAG_STICKY,
    LagOptions,
    lag_cooperative_sticky,
    lag_sticky,
    with_offsets,
)

__all__ = [
    "LAG",
    "LAG_COOPERATIVE_STICKY",
    "LAG_STICKY",
    "LagOptions",
    "lag_cooperative_sticky",
    "lag_sticky",
    "with_offsets",
]
