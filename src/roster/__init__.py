"""Roster: a PySpark application as an ordinary member of a Kafka consumer group."""

from importlib import import_module
from typing import TYPE_CHECKING

from roster._errors import RosterError
from roster._extras import MissingExtraError
from roster._version import __version__

if TYPE_CHECKING:
    from roster.member.assign_group import lead

__all__ = ["MissingExtraError", "RosterError", "__version__", "lead"]


def __getattr__(name: str) -> object:
    """Load `lead`, and numpy with it, on first use: `import roster` alone stays quick."""
    if name == "lead":
        return import_module("roster.member.assign_group").lead
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
