"""`roster exporter`: lag of the groups of any Kafka-compatible cluster, for Prometheus."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from http import HTTPStatus
from pathlib import Path

import click
from prometheus_client import CollectorRegistry

from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError
from roster.cli.options import POSITIVE, Target, cluster_options
from roster.http.access import OPEN, Access, read_access
from roster.http.pages import Answer, Page
from roster.http.server import HttpServer, HttpServerError
from roster.metrics.exporter import GroupExporter
from roster.metrics.page import metrics_page
from roster.metrics.positions import PositionReader
from roster.metrics.record_times import RecordTimes
from roster.model import Address, AddressError, parse_address
from roster.security import SettingError


def _pattern(_context: click.Context, _parameter: click.Parameter, value: str) -> re.Pattern[str]:
    try:
        return re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from None


def _address(_context: click.Context, _parameter: click.Parameter, value: str) -> Address:
    try:
        return parse_address(value, listening=True)
    except AddressError as error:
        raise click.BadParameter(str(error)) from None


@click.command(short_help="Serve lag of consumer groups to Prometheus.")
@click.option(
    "--groups", "pattern", callback=_pattern, metavar="REGEX", default=".*", help="Groups whose whole name fits."
)
@click.option(
    "--listen",
    callback=_address,
    metavar="HOST:PORT",
    default="127.0.0.1:9308",
    show_default=True,
    help="Where /metrics is.",
)
@click.option("--interval", type=POSITIVE, default=15.0, show_default=True, help="Seconds between two looks.")
@click.option(
    "--http-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Properties file with ssl.keystore.location, ssl.truststore.location, ssl.client.auth, token.",
)
@cluster_options
def exporter(
    pattern: re.Pattern[str], listen: Address, interval: float, http_config: Path | None, target: Target
) -> None:
    """Serve offsets and lag of consumer groups at http://HOST:PORT/metrics until Ctrl-C.

    The cluster is asked every --interval seconds, whoever scrapes how often. A group keeps its series while it has no
    members.
    """
    access, stopped = _access(http_config), threading.Event()
    with admin(target) as cluster:
        cluster.cluster_id()
        groups = GroupExporter(
            cluster, PositionReader(cluster, RecordTimes(target.bootstrap, target.client_id, target.security)), pattern
        )
        registry = CollectorRegistry()
        registry.register(groups)
        probe = Page("/health", lambda _: Answer(HTTPStatus.OK, b'{"status": "alive"}'), needs_token=False)
        try:
            server = HttpServer(listen, [metrics_page(registry), probe], access)
        except HttpServerError as error:
            raise Failure(f"--listen: {error}") from None
        with contextlib.closing(server):
            click.echo(f"metrics at {access.scheme}://{Address(listen.host, server.port)}/metrics", err=True)
            signal.signal(signal.SIGTERM, lambda *_: stopped.set())
            groups.run(interval, stopped)


def _access(path: Path | None) -> Access:
    if path is None:
        return OPEN
    try:
        return read_access(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--http-config: {path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    except SettingError as error:
        raise UserError(f"--http-config: {error}") from None
