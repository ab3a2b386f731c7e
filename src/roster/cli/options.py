"""Options that several commands share, and the checks that name them."""

from __future__ import annotations

import click

from roster.model import AddressError, parse_addresses

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"


def _check_bootstrap(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return ",".join(map(str, parse_addresses(value)))
    except AddressError as error:
        raise click.BadParameter(str(error)) from error


bootstrap_option = click.option(
    "--bootstrap",
    "-b",
    metavar="HOST:PORT[,…]",
    default=BOOTSTRAP_DEFAULT,
    show_default=True,
    envvar="ROSTER_BOOTSTRAP",
    show_envvar=True,
    callback=_check_bootstrap,
    help="Brokers to ask first.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")


def columns_of(value: str, option: str) -> tuple[str, ...]:
    """COLUMN[,COLUMN…] as a tuple without blanks or doubles.

    Raises:
        click.BadParameter: an empty or doubled name; the message names the option.

    """
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise click.BadParameter(f"{option} {value!r}: expected COLUMN[,COLUMN…], each once and none empty")
    return names
