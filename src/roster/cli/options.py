"""Options that several commands share, and the checks that name them."""

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from roster.cli.errors import Failure, UserError
from roster.model import AddressError, parse_addresses
from roster.security import PLAINTEXT, Security, SettingError, load_properties

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
CLIENT_ID = "roster-cli"
PARTITIONERS = ("murmur2", "crc32", "fnv1a", "fnv1a-masked", "fnv1a-unsigned")
INT32 = 2**31 - 1
INT64 = 2**63 - 1


class _Name(click.types.StringParamType):
    """The name of a topic, a group or a setting: text that Kafka's protocol can carry, so UTF-8 and not empty."""

    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
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
    """A number above 0 (or from `min` on); nan passes click's own range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


POSITIVE = _Positive(min=0, min_open=True, max=1e9)  # as seconds: a thread cannot wait 300 years


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


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster of a command, and how to connect to it."""

    bootstrap: str = BOOTSTRAP_DEFAULT
    security: Security = PLAINTEXT
    client_id: str = CLIENT_ID


_bootstrap_option = click.option(
    "--bootstrap",
    "-b",
    cls=_OptionWithVariable,
    metavar="HOST:PORT[,…]",
    default=BOOTSTRAP_DEFAULT,
    show_default=True,
    envvar="ROSTER_BOOTSTRAP",
    show_envvar=True,
    callback=_check_bootstrap,
    help="Brokers to ask first; else those that --config names.",
)
C = TypeVar("C", bound=Callable[..., object])


def _target_options(*config_flags: str) -> Callable[[C], C]:
    """Return a decorator that adds --bootstrap and an option for the file to a command, which gets their `target`."""
    config_option = click.option(
        *config_flags,
        "config",
        cls=_OptionWithVariable,
        metavar="FILE",
        type=click.Path(path_type=Path),
        envvar="ROSTER_CONFIG",
        show_envvar=True,
        help="Properties file with security.protocol and other settings of Kafka's clients.",
    )

    def add(command: C) -> C:
        @functools.wraps(command)
        def with_target(*arguments: object, bootstrap: str, config: Path | None, **options: object) -> object:
            return command(*arguments, target=_target(bootstrap, config), **options)

        return _bootstrap_option(config_option(with_target))  # type: ignore[return-value]

    return add


def _target(bootstrap: str, config: Path | None) -> Target:
    if config is None:
        return Target(bootstrap)
    context = click.get_current_context()
    try:
        properties = load_properties(config)
        if properties.bootstrap and context.get_parameter_source("bootstrap") is ParameterSource.DEFAULT:
            bootstrap = ",".join(map(str, parse_addresses(properties.bootstrap, default_port=9092)))
    except SettingError as error:
        where = "" if error.key == str(config) else f"{config}: "
        raise UserError(f"--config: {where}{error}") from error
    except AddressError as error:
        raise UserError(f"--config: {config}: bootstrap.servers: {error}") from error
    return Target(bootstrap, properties.security, properties.client_id or CLIENT_ID)


cluster_options = _target_options("--config", "--command-config")
"""Adds --bootstrap and --config to a command, which gets their `target`."""
cluster_options_but_config = _target_options("--command-config")
"""Likewise for a command that has another --config: there the file is --command-config."""
form_option = click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl", "parquet"]), help="Format of FILE, if its name does not say."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask; needed where standard input is no terminal.")


def confirm(yes: bool, question: str) -> None:
    """Ask on the terminal unless --yes was given.

    Raises UserError if there is neither --yes nor a terminal on standard input, and Failure if the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"--yes: there is no terminal to ask {question!r} on; add --yes")
    if not click.confirm(question, err=True):
        raise Failure("not confirmed; nothing was changed")


def columns_of(value: str, option: str) -> tuple[str, ...]:
    """COLUMN[,COLUMN…] as a tuple without blanks or doubles.

    Raises click.BadParameter that names the option, for an empty or doubled name.
    """
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise click.BadParameter(f"{option} {value!r}: expected COLUMN[,COLUMN…], each once and none empty")
    return names
