"""The root of Roster's exceptions, and their text on one line."""


class RosterError(Exception):
    """Base class of what Roster raises for a failure that a caller can handle.

    `roster.client.ClientError`, `roster.spark.PipelineError` and the broker's errors derive from it. Classes for a
    wrong argument are ValueErrors as well.
    """


def one_line(error: BaseException, most: int | None = None) -> str:
    """Return at most so many characters of the error's message on one line; without one the name of its class."""
    return " ".join(str(error).split())[:most] or type(error).__name__
