"""The option of `roster plan` that names an assignor."""

import inspect
from typing import Any

import click

from roster.assignors import Assignor, Evaluation, evaluate, resolve_assignors
from roster.cli.errors import Failure
from roster.cli.options import imported
from roster.model import Problem


class AssignorName(click.Choice[str]):
    """One of the names, or `module:attribute`, which becomes the Assignor there; the current directory is searched."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name or the Assignor."""
        if isinstance(value, Assignor):
            return value
        if ":" not in value:
            return super().convert(value, param, ctx)
        try:
            return load_assignor(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def load_assignor(place: str) -> Assignor:
    """Import the assignor at `module:attribute`, an instance or a class that needs no arguments.

    Raises ValueError that says what is missing.
    """
    loaded, attribute = imported(place, "my_assignors:RACK_AWARE"), place.partition(":")[2]
    if inspect.isclass(loaded) and issubclass(loaded, Assignor):
        try:
            loaded = loaded()
        except Exception as error:
            raise ValueError(f"{attribute}() failed: {type(error).__name__}: {error}; name an instance") from error
    if not isinstance(loaded, Assignor):
        raise ValueError(f"{place!r} is of type {type(loaded).__name__}, not a roster.assignors.Assignor")
    (assignor,) = resolve_assignors([loaded]).values()
    return assignor


def evaluate_or_fail(assignor: Assignor, problem: Problem) -> Evaluation:
    """Evaluate; an exception of the assignor, or a plan that is not valid, is a Failure that names the assignor."""
    try:
        return evaluate(assignor, problem)
    except Exception as error:
        raise Failure(f"assignor {assignor.name}: {type(error).__name__}: {error}") from error
