"""The root of Roster's exceptions."""

from __future__ import annotations


class RosterError(Exception):
    """Base class of what Roster raises for a failure that a caller can handle.

    `roster.client.ClientError`, `roster.spark.PipelineError` and the broker's errors derive from it. Classes for a
    wrong argument are ValueErrors as well.
    """
