"""Roster: a PySpark application as an ordinary member of a Kafka consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roster.member.leader import lead

__version__ = "0.1.0"

__all__ = ["__version__", "lead"]


def __getattr__(name: str) -> object:
    """Load the leader's duty, and numpy with it, on first use: `import roster` alone stays cheap."""
    if name == "lead":
        from roster.member.leader import lead  # noqa: PLC0415

        return lead
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
