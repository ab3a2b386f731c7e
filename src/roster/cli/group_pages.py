"""`roster console` and `roster exporter`: the groups of any Kafka-compatible cluster, for browsers and Prometheus."""

import contextlib
import re
import signal
import threading
from pathlib import Path

import click
from prometheus_client import CollectorRegistry

from roster.cli.admin import admin
from roster.cli.http_options import access_of, answering, watching_options
from roster.cli.options import Target, cluster_options
from roster.metrics.exporter import GroupExporter
from roster.metrics.families import metrics_page
from roster.metrics.positions import PositionReader
from roster.metrics.record_times import RecordTimes
from roster.model import Address
from roster.page.pages import page_answers
from roster.page.watch import GroupsWatch


@click.command(short_help="Show consumer groups in a browser.")
@watching_options("127.0.0.1:8086", "the page", 5.0)
@cluster_options
def console(
    pattern: re.Pattern[str], listen: Address, interval: float, http_config: Path | None, target: Target
) -> None:
    """Show consumer groups at http://HOST:PORT/ until Ctrl-C: lag, owners, rebalances. It only reads.

    The cluster is asked every --interval seconds, and for a group whose page is open every 2 seconds, however many
    browsers watch. What was seen is kept while the command runs.
    """
    access, stopped = access_of(http_config), threading.Event()
    with admin(target) as cluster:
        cluster.cluster_id()
    watch = GroupsWatch(
        target.bootstrap, pattern, client_id=target.client_id, security=target.security, interval=interval
    )
    with contextlib.closing(watch):
        pages, streams = page_answers(watch)
        with answering("--listen", listen, pages, access, streams, "groups at /"):
            signal.signal(signal.SIGTERM, lambda *_: stopped.set())
            stopped.wait()


@click.command(short_help="Serve lag of consumer groups to Prometheus.")
@watching_options("127.0.0.1:9308", "/metrics", 15.0)
@cluster_options
def exporter(
    pattern: re.Pattern[str], listen: Address, interval: float, http_config: Path | None, target: Target
) -> None:
    """Serve offsets and lag of consumer groups at http://HOST:PORT/metrics until Ctrl-C.

    The cluster is asked every --interval seconds, whoever scrapes how often. A group keeps its series while it has no
    members.
    """
    access, stopped = access_of(http_config), threading.Event()
    with admin(target) as cluster:
        cluster.cluster_id()
        groups = GroupExporter(
            cluster, PositionReader(cluster, RecordTimes(target.bootstrap, target.client_id, target.security)), pattern
        )
        registry = CollectorRegistry()
        registry.register(groups)
        with answering("--listen", listen, [metrics_page(registry)], access):
            signal.signal(signal.SIGTERM, lambda *_: stopped.set())
            groups.run(interval, stopped)
