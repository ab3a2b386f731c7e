"""Options of `roster plan` for an assignor: its name, and `LagOptions`."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from roster.assignors import (
    ASSIGNORS,
    Assignor,
    Evaluation,
    LagOptions,
    evaluate,
    lag_cooperative_sticky,
    lag_sticky,
    resolve_assignors,
)
from roster.cli.errors import Failure, UserError
from roster.cli.options import imported
from roster.model import Problem

F = TypeVar("F", bound=Callable[..., Any])

MADE_WITH_OPTIONS = {make().name: make for make in (lag_sticky, lag_cooperative_sticky)}

_LAG_HELP = {
    "max_skew": "lag-sticky, lag-cooperative-sticky: nothing moves for lag while the fullest member is within this "
    "fraction above what is possible.",
    "hysteresis": "Likewise: the fraction by which all moves together must relieve the fullest member.",
    "movement_cost": "Likewise: the records by which each moved partition must relieve it.",
}


def lag_options(command: F) -> F:
    """Add an option for each field of LagOptions; one that is not given is None."""
    for name, text in reversed(_LAG_HELP.items()):
        default = getattr(LagOptions(), name)
        command = click.option(
            _flag(name), type=type(default), callback=_check, show_default=str(default), default=None, help=text
        )(command)
    return command


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check(_context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None:
        option: dict[str, Any] = {str(parameter.name): value}
        try:
            LagOptions(**option)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return value


def assignors_with(options: Mapping[str, Any], chosen: Collection[str | Assignor]) -> Mapping[str, Assignor]:
    """Every assignor by name, those that have LagOptions with the ones that were given.

    Raises UserError when options were given and none of the assignors that are `asked` has any.
    """
    options_given = {name: options[name] for name in _LAG_HELP if options[name] is not None}
    if not options_given:
        return ASSIGNORS
    if MADE_WITH_OPTIONS.keys().isdisjoint(chosen):
        flag = _flag(next(iter(options_given)))
        raise UserError(f"{flag}: only for {' and '.join(MADE_WITH_OPTIONS)}; name one with --assignor")
    lag_options = LagOptions(**options_given)
    return {**ASSIGNORS, **{name: make(lag_options) for name, make in MADE_WITH_OPTIONS.items()}}


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
