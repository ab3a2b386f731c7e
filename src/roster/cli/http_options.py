"""Options of commands that answer over HTTP."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from roster.cli.errors import Failure, UserError
from roster.cli.options import POSITIVE
from roster.http.access import OPEN, Access, read_access
from roster.http.pages import Answer, Page, Stream
from roster.model import Address, AddressError, parse_address
from roster.security import SettingError

if TYPE_CHECKING:
    from roster.http.server import HttpServer

C = TypeVar("C", bound=Callable[..., object])


def _pattern(_context: click.Context, _parameter: click.Parameter, value: str) -> re.Pattern[str]:
    try:
        return re.compile(value, re.DOTALL)  # a group's name may have a line feed
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from None


groups_option = click.option(
    "--groups", "pattern", callback=_pattern, metavar="REGEX", default=".*", help="Groups whose whole name fits."
)


def listening_address(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Address | None:
    """Parse the value of an option that says where to listen."""
    try:
        return None if value is None else parse_address(value, listening=True)
    except AddressError as error:
        raise click.BadParameter(str(error)) from None


def http_config_option(command: C) -> C:
    """Add --http-config; the command gets `http_config`, the path or None."""
    return click.option(
        "--http-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Properties file with ssl.keystore.location, ssl.truststore.location, ssl.client.auth, token.",
    )(command)


def watching_options(listen: str, what: str, interval: float) -> Callable[[C], C]:
    """Add --groups, --listen, --interval and --http-config, of commands that show groups over HTTP.

    The command gets `pattern`, `listen`, `interval` and `http_config`. listen, interval: defaults.
    """
    option = partial(click.option, show_default=True)
    where, pause = f"Where {what} is.", "Seconds between two looks."
    options = [
        groups_option,
        option("--listen", callback=listening_address, metavar="HOST:PORT", default=listen, help=where),
        option("--interval", type=POSITIVE, default=interval, help=pause),
        http_config_option,
    ]
    return lambda command: reduce(lambda decorated, add: add(decorated), reversed(options), command)


def access_of(path: Path | None) -> Access:
    """Return the settings in the file of --http-config. Raises UserError if it cannot be used."""
    if path is None:
        return OPEN
    try:
        return read_access(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--http-config: {path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    except SettingError as error:
        raise UserError(f"--http-config: {error}") from None


@contextlib.contextmanager
def answering(
    option: str,
    address: Address,
    pages: Sequence[Page],
    access: Access,
    streams: Sequence[Stream] = (),
    what: str = "metrics at /metrics",
) -> Iterator[HttpServer]:
    """Answer over HTTP, also `/health`, until the end of the block. what: is where, as it is told.

    Raises Failure if the address cannot be used.
    """
    from roster.http.server import HttpServer, HttpServerError

    probe = Page("/health", lambda _: Answer(HTTPStatus.OK, b'{"status": "alive"}'), needs_token=False)
    try:
        server = HttpServer(address, [*pages, probe], access, streams=streams)
    except HttpServerError as error:
        raise Failure(f"{option}: {error}") from None
    with contextlib.closing(server):
        place = f"{access.scheme}://{Address(address.host, server.port)}"
        click.echo(what.replace("/", f"{place}/", 1), err=True)
        yield server
