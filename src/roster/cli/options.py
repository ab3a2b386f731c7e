"""Options that several commands share, and the checks that name them."""

from __future__ import annotations

import math
import sys
from typing import Any

import click
from click.core import ParameterSource

from roster.cli.errors import Failure, UserError
from roster.model import AddressError, parse_addresses

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
INT32 = 2**31 - 1


class _Name(click.types.StringParamType):
    """The name of a topic, a group or a setting: text that Kafka's protocol can carry, so UTF-8 and not empty."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            self.fail(f"{text.encode(errors='surrogateescape')!r} is not UTF-8; a name in Kafka must be", param, ctx)
        if not 0 < size <= MOST_NAME_BYTES:
            self.fail("must not be empty" if not size else f"has {size} bytes, at most {MOST_NAME_BYTES}", param, ctx)
        return text


MOST_NAME_BYTES = 2**15 - 1
"""Longest string in Kafka's protocol, whose length is an int16."""

NAME = _Name()


class _Positive(click.FloatRange):
    """A number above 0 (or from `min` on) that is finite: nan and inf pass click's own range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


POSITIVE = _Positive(min=0, min_open=True)


class _OptionWithVariable(click.Option):
    """An option whose environment variable is named in an error only when the value came from there."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        hint = click.Parameter.get_error_hint(self, ctx)
        used = ctx is not None and ctx.get_parameter_source(self.name or "") is ParameterSource.ENVIRONMENT
        return f"{hint} (environment variable {self.envvar})" if used else hint


def _check_bootstrap(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return ",".join(map(str, parse_addresses(value)))
    except AddressError as error:
        raise click.BadParameter(str(error)) from error


bootstrap_option = click.option(
    "--bootstrap",
    "-b",
    cls=_OptionWithVariable,
    metavar="HOST:PORT[,…]",
    default=BOOTSTRAP_DEFAULT,
    show_default=True,
    envvar="ROSTER_BOOTSTRAP",
    show_envvar=True,
    callback=_check_bootstrap,
    help="Brokers to ask first.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")

yes_option = click.option("--yes", is_flag=True, help="Do not ask; needed where standard input is no terminal.")


def require_yes(yes: bool, what: str) -> None:
    """Refuse to go on without a terminal to ask on.

    Args:
        yes: whether --yes was given.
        what: the sentence that says what would happen, as in "deletes topic t and its records".

    Raises:
        UserError: neither --yes nor a terminal on standard input.

    """
    if not yes and not sys.stdin.isatty():
        raise UserError(f"--yes: this {what}, and there is no terminal to confirm it on; add --yes")


def confirm(yes: bool, question: str) -> None:
    """Ask on the terminal unless --yes was given.

    Raises:
        Failure: the answer was no.

    """
    if not yes and not click.confirm(question, err=True):
        raise Failure("not confirmed; nothing was changed")


def columns_of(value: str, option: str) -> tuple[str, ...]:
    """COLUMN[,COLUMN…] as a tuple without blanks or doubles.

    Raises:
        click.BadParameter: an empty or doubled name; the message names the option.

    """
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise click.BadParameter(f"{option} {value!r}: expected COLUMN[,COLUMN…], each once and none empty")
    return names
