"""`roster exporter`: lag of the groups of any Kafka-compatible cluster, for Prometheus."""

from __future__ import annotations

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
