"""Options of `roster plan` that are those of an assignor: `LagOptions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from roster.assignors import ASSIGNORS, LagOptions, lag_cooperative_sticky, lag_sticky
from roster.cli.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import TypeVar

    from roster.assignors import Assignor

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
        given: dict[str, Any] = {str(parameter.name): value}
        try:
            LagOptions(**given)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return value


def assignors_with(options: Mapping[str, Any], asked: Collection[str | Assignor]) -> Mapping[str, Assignor]:
    """Every assignor by name, those that have LagOptions with the ones that were given.

    Raises UserError when options were given and none of the assignors that are `asked` has any.
    """
    given = {name: options[name] for name in _LAG_HELP if options[name] is not None}
    if not given:
        return ASSIGNORS
    if MADE_WITH_OPTIONS.keys().isdisjoint(asked):
        flag = _flag(next(iter(given)))
        raise UserError(f"{flag}: only for {' and '.join(MADE_WITH_OPTIONS)}; name one with --assignor")
    made = LagOptions(**given)
    return {**ASSIGNORS, **{name: make(made) for name, make in MADE_WITH_OPTIONS.items()}}
