"""`roster history record`: the history of all groups as Parquet files."""

from __future__ import annotations

import contextlib
import signal
from threading import Event
from typing import TYPE_CHECKING

import click

from roster.cli.admin import admin
from roster.cli.errors import explained_imports
from roster.cli.options import NAME, Target, cluster_options
from roster.cli.session import spark_session
from roster.cli.signals import end_like_ctrl_c
from roster.client import AuthorizationError, UnknownTopicError
from roster.model import TopicPartition, parse_addresses

if TYPE_CHECKING:
    from roster.client import Admin

_TOPIC = "__consumer_offsets"
_POLL_SECONDS = 10.0


@click.command(short_help="Record commits and rebalances of all groups.")
@click.option("--to", required=True, metavar="FOLDER", help="Where to write; all recorders of a cluster share it.")
@click.option("--group", type=NAME, default="roster-history", show_default=True, help="The recorders' own group.")
@click.option("--once", is_flag=True, help="Record what there is, and end.")
@cluster_options
def record(to: str, group: str, once: bool, target: Target) -> None:
    """Record the history of all consumer groups as Parquet files, until Ctrl-C.

    A Spark application reads __consumer_offsets as a member of a group, each record exactly once; start it on several
    machines, and they share the work. The ends of all topics are recorded each minute. Without the right to read that
    topic the groups are polled every 10 seconds instead: rebalances in between are seen as one, without their
    generation.
    """
    with admin(target) as cluster:
        reason = _refusal(cluster, target)
    if reason:
        click.echo(f"roster: {reason}; polling the groups instead, which is less exact", err=True)
        _poll(to, target, once=once)
        return
    with spark_session(target, "history record") as spark:
        from roster.spark import record_history  # noqa: PLC0415 - only this command needs Spark

        record_history(spark, target.bootstrap, to, group=group, security=target.security, available_now=once)


def _refusal(cluster: Admin, target: Target) -> str:
    """Return why this client cannot read records of __consumer_offsets, "" if it can."""
    with explained_imports("history"):
        from roster.records.fetch import read_ranges  # noqa: PLC0415 - needs an extra
        from roster.records.fetch_decisions import FetchError, Settings  # noqa: PLC0415
    try:
        count = len(cluster.describe_topic(_TOPIC).partitions)
        partitions = [TopicPartition(_TOPIC, number) for number in range(count)]
        begins, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
    except (AuthorizationError, UnknownTopicError) as error:
        return str(error)
    filled = [(*tp, begins[tp], begins[tp] + 1) for tp in partitions if ends[tp] > begins[tp]]
    addresses, settings = parse_addresses(target.bootstrap), Settings(fail_on_data_loss=False)
    try:
        for _ in read_ranges(addresses, target.client_id, filled[:1], settings, security=target.security):
            break
    except FetchError as error:
        return str(error)
    return ""


def _poll(to: str, target: Target, *, once: bool) -> None:
    from roster.history.folder import HistoryFolder  # noqa: PLC0415 - needs an extra
    from roster.history.recorders import MINUTE_MS, Poller, record_ends, regularly  # noqa: PLC0415

    folder = HistoryFolder(to)
    with admin(target) as cluster, contextlib.ExitStack() as stack:
        poller = Poller(cluster, folder)
        if once:
            record_ends(cluster, folder)
            poller.poll()
            return
        end_like_ctrl_c(signal.SIGTERM, signal.SIGHUP)
        stack.enter_context(regularly(lambda: record_ends(cluster, folder), MINUTE_MS / 1000, "ends"))
        stack.enter_context(regularly(poller.poll, _POLL_SECONDS, "poll"))
        Event().wait()
