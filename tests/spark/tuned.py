"""Pipelines with inner settings of a test's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roster.pipeline.options import Tuning
from roster.spark import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable


def tuned(*, membership: Callable[..., Any] | None = None, **settings: Any) -> type[Pipeline]:
    """Return a Pipeline with these settings of `Tuning`; `membership` makes its group member."""
    member = None if membership is None else staticmethod(membership)
    return type("TunedPipeline", (Pipeline,), {"_tuning": Tuning(**settings), "_membership": member})
