"""The option of `roster plan` that names an assignor."""

import inspect
import pkgutil
import sys
from typing import Any

import click

from roster.assignors import Assignor, Evaluation, evaluate, resolve_assignors
from roster.cli.errors import Failure
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
    module, _, attribute = place.partition(":")
    if not module or not attribute:
        raise ValueError(f"{place!r} must be MODULE:ATTRIBUTE, for example my_assignors:RACK_AWARE")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        loaded: object = pkgutil.resolve_name(place)
    except AttributeError as error:
        raise ValueError(f"{place!r}: {error}") from error
    except Exception as error:
        raise ValueError(f"module {module!r} cannot be imported: {type(error).__name__}: {error}") from error
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
