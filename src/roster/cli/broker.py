"""`roster broker`: the embedded, durable, Kafka-compatible server."""

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

from roster._extras import how_to_install, missing_error
from roster.broker import Broker, BrokerConfig, BrokerFailedError, BrokerStartError, parse_listen, run
from roster.broker.config import OPTIONS
from roster.broker.hooks import Hooks, Measures
from roster.cli.errors import Failure, UserError
from roster.cli.http_options import access_of, answering, http_config_option, listening_address
from roster.http.access import Access
from roster.model import Address
from roster.model.options import Option

log = logging.getLogger(__name__)

LOG_LEVELS = ("debug", "info", "warning", "error")
SWITCH_INTERVAL = 0.0005
"""Seconds, a tenth of Python's: the event loop waits less for the threads that decode large requests."""
GC_THRESHOLDS = (2_000, 10, 25)
"""Full collections are rarer than by default: one stops the event loop while it visits the objects of all requests."""

C = TypeVar("C", bound=Callable[..., object])

_SEPARATORS: dict[type, str] = {tuple: ",", frozenset: ";"}
"""Of settings with several values, by their type."""


def broker_options(command: C) -> C:
    """Add an option for each setting; the command gets those by the settings' names."""
    for option in reversed(OPTIONS.values()):
        command = _click_option(option)(command)
    return command


def _click_option(option: Option) -> Callable[[C], C]:
    attributes: dict[str, Any] = {"default": option.default, "show_default": True}
    separator = _SEPARATORS.get(type(option.default))
    if option.kind == "bool":
        attributes = {"is_flag": True}
    elif option.least is not None:
        attributes["type"] = click.IntRange(option.least, option.most)
    elif option.choices:
        attributes["type"] = click.Choice(option.choices)
    elif option.kind == "Path":
        attributes["type"] = click.Path(path_type=Path, dir_okay=False)
    elif separator is not None:
        values: Any = option.default
        attributes |= {
            "default": separator.join(values),
            "show_default": bool(values),
            "metavar": f"NAME[{separator}…]",
        }
        attributes["callback"] = lambda _context, _parameter, text: type(values)(_names(text, separator))
    unit = f" ({option.unit})" if option.unit and not option.flag.endswith(f"-{option.unit}") else ""
    text = option.help[0].upper() + option.help[1:]
    return click.option(f"--{option.flag}", option.name, help=f"{text}{unit}.", **attributes)


def _names(text: str, separator: str) -> list[str]:
    return [name for part in text.split(separator) if (name := part.strip())]


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    help="Address to listen on; port 0 takes any free one.",
)
@click.option("--advertise", metavar="HOST:PORT", help="Address given to clients, if not the one of --listen.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default="roster-data",
    show_default=True,
    help="Directory of logs, offsets and groups.",
)
@broker_options
@click.option(
    "--http",
    callback=listening_address,
    metavar="HOST:PORT",
    help="Where /metrics and /health are; not served by default.",
)
@http_config_option
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="Least level of the log on standard error.",
)
def broker(
    listen: str,
    advertise: str | None,
    data: Path,
    http: Address | None,
    http_config: Path | None,
    log_level: str,
    **settings: object,
) -> None:
    """Run a Kafka-compatible broker in this process until SIGTERM or Ctrl-C.

    Acknowledges records, offsets and group changes only once they are on disk; all survive a restart.
    """
    if http_config is not None and http is None:
        raise UserError("--http-config: nothing is served over HTTP. Add --http HOST:PORT")
    try:
        host, port = parse_listen(listen)
        advertised_host, advertised_port = parse_listen(advertise, "--advertise") if advertise else (None, None)
        config = BrokerConfig(
            data_dir=data, host=host, port=port, advertised_host=advertised_host, advertised_port=advertised_port
        ).with_settings(settings)
        config.security.check_listener(host)
    except (BrokerStartError, ValueError) as error:
        raise UserError(str(error)) from error
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    if find_spec("pyarrow") is None:
        log.warning(
            "pyarrow is not installed: batches compressed with snappy, lz4 or zstd are stored and served, "
            "but not searched by time or compacted; %s",
            how_to_install("cli"),
        )
    hooks = Hooks() if http is None else Hooks(measures=Measures())
    try:
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.set_threshold(*GC_THRESHOLDS)
        with contextlib.ExitStack() as opened:
            serve = None if http is None else _metrics_server(http, access_of(http_config), opened)
            asyncio.run(run(config, lambda running: _announce(running, serve), hooks))
    except (BrokerStartError, BrokerFailedError) as error:
        raise Failure(str(error)) from error


def _metrics_server(address: Address, access: Access, opened: contextlib.ExitStack) -> Callable[[Broker], None]:
    """Return what serves the metrics of a broker in the running loop, until `opened` is closed."""
    try:
        from prometheus_client import CollectorRegistry

        from roster.metrics.broker import BrokerMetrics
        from roster.metrics.families import metrics_page
    except ModuleNotFoundError as error:
        raise Failure(str(missing_error("--http", "http", [error.name or "starlette"]))) from error

    def serve(running: Broker) -> None:
        registry = CollectorRegistry()
        registry.register(BrokerMetrics(running, asyncio.get_running_loop()))
        opened.enter_context(answering("--http", address, [metrics_page(registry)], access))

    return serve


def _announce(running: Broker, serve: Callable[[Broker], None] | None) -> None:
    if serve is not None:
        serve(running)
    gc.collect()
    gc.freeze()  # loaded objects stay: no collection has to visit them
    click.echo(f"roster broker serves {running.bootstrap}")
