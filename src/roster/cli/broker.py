"""`roster broker`: the embedded, durable, Kafka-compatible server."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from roster._extras import how_to_install
from roster.broker import (
    Broker,
    BrokerConfig,
    BrokerFailedError,
    BrokerSecurity,
    BrokerStartError,
    LogConfig,
    parse_listen,
    run,
)
from roster.cli.broker_options import limit_options, security_options
from roster.cli.errors import Failure, UserError
from roster.coordinator import CoordinatorConfig
from roster.transactions import TransactionConfig

log = logging.getLogger(__name__)

_LOG = LogConfig()
_GROUPS = CoordinatorConfig()
_TRANSACTIONS = TransactionConfig()
LOG_LEVELS = ("debug", "info", "warning", "error")
SWITCH_INTERVAL = 0.0005
"""Seconds, a tenth of Python's: the event loop waits less for the threads that decode large requests."""
GC_THRESHOLDS = (2_000, 10, 25)
"""Full collections are rarer than by default: one stops the event loop while it visits the objects of all requests."""


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
@click.option(
    "--partitions",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Partitions of a topic created without a number.",
)
@click.option(
    "--auto-create-topics", is_flag=True, help="Create a topic when a client asks for one that does not exist."
)
@click.option(
    "--segment-bytes",
    type=click.IntRange(14, 2**31 - 1),
    default=_LOG.segment_bytes,
    show_default=True,
    help="Bytes after which a new log segment begins.",
)
@click.option(
    "--retention-ms",
    type=click.IntRange(-1, 2**63 - 1),
    default=_LOG.retention_ms,
    show_default=True,
    help="Records older than this are deleted, a segment at a time; -1 keeps them. Topics may differ: retention.ms.",
)
@click.option(
    "--retention-bytes",
    type=click.IntRange(-1, 2**63 - 1),
    default=_LOG.retention_bytes,
    show_default=True,
    help="Bytes that a partition keeps at least when old segments are deleted; -1 keeps all. Topics: retention.bytes.",
)
@click.option(
    "--max-message-bytes",
    type=click.IntRange(1, 2**31 - 1),
    default=_LOG.max_message_bytes,
    show_default=True,
    help="Bytes of the largest record batch accepted.",
)
@click.option(
    "--initial-rebalance-delay-ms",
    type=click.IntRange(0),
    default=_GROUPS.initial_rebalance_delay_ms,
    show_default=True,
    help="How long the first rebalance of a group waits for more members.",
)
@click.option(
    "--min-session-timeout-ms",
    type=click.IntRange(1),
    default=_GROUPS.min_session_timeout_ms,
    show_default=True,
    help="Shortest session timeout that a member may ask for.",
)
@click.option(
    "--max-session-timeout-ms",
    type=click.IntRange(1),
    default=_GROUPS.max_session_timeout_ms,
    show_default=True,
    help="Longest session timeout that a member may ask for.",
)
@click.option(
    "--transaction-max-timeout-ms",
    type=click.IntRange(1, 2**31 - 1),
    default=_TRANSACTIONS.max_timeout_ms,
    show_default=True,
    help="Longest transaction timeout that a producer may ask for.",
)
@click.option(
    "--transactional-id-expiration-ms",
    type=click.IntRange(1, 2**31 - 1),
    default=_TRANSACTIONS.expiration_ms,
    show_default=True,
    help="How long a transactional id without transactions is kept.",
)
@security_options
@limit_options
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
    partitions: int,
    auto_create_topics: bool,
    segment_bytes: int,
    retention_ms: int,
    retention_bytes: int,
    max_message_bytes: int,
    initial_rebalance_delay_ms: int,
    min_session_timeout_ms: int,
    max_session_timeout_ms: int,
    transaction_max_timeout_ms: int,
    transactional_id_expiration_ms: int,
    log_level: str,
    security: dict[str, Any],
    limits: dict[str, Any],
    group_limits: dict[str, Any],
) -> None:
    """Run a Kafka-compatible broker in this process until SIGTERM or Ctrl-C.

    Acknowledges records, offsets and group changes only once they are on disk; all survive a restart.
    """
    try:
        host, port = parse_listen(listen)
        advertised_host, advertised_port = parse_listen(advertise, "--advertise") if advertise else (None, None)
        config = BrokerConfig(
            data_dir=data,
            host=host,
            port=port,
            advertised_host=advertised_host,
            advertised_port=advertised_port,
            default_partitions=partitions,
            auto_create_topics=auto_create_topics,
            security=BrokerSecurity(**security),
            **limits,
            log=LogConfig(
                segment_bytes=segment_bytes,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
                max_message_bytes=max_message_bytes,
            ),
            coordinator=CoordinatorConfig(
                initial_rebalance_delay_ms=initial_rebalance_delay_ms,
                min_session_timeout_ms=min_session_timeout_ms,
                max_session_timeout_ms=max_session_timeout_ms,
                **group_limits,
            ),
            transactions=TransactionConfig(
                max_timeout_ms=transaction_max_timeout_ms, expiration_ms=transactional_id_expiration_ms
            ),
        )
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
    try:
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.set_threshold(*GC_THRESHOLDS)
        asyncio.run(run(config, _announce))
    except (BrokerStartError, BrokerFailedError) as error:
        raise Failure(str(error)) from error


def _announce(running: Broker) -> None:
    gc.collect()
    gc.freeze()  # what was loaded so far stays: no collection has to visit it
    click.echo(f"roster broker serves {running.bootstrap}")
