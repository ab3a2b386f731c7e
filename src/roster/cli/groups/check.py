"""`roster groups check`: members whose subscriptions make rebalances worse than they need be."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from roster.cli.admin import admin
from roster.cli.errors import FAILED
from roster.cli.options import NAME, Target, cluster_options, json_option
from roster.cli.output import print_json, print_table
from roster.client import UnknownGroupError, check_group
from roster.wire.consumer import PROTOCOL_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roster.client import Admin, GroupDescription


def _descriptions(cluster: Admin, group: str | None) -> Iterator[GroupDescription]:
    """Describe the group named, or all groups of consumers but those deleted meanwhile."""
    if group is not None:
        yield cluster.describe_group(group)
        return
    for listed in cluster.list_groups():
        if listed.protocol_type == PROTOCOL_TYPE:
            with contextlib.suppress(UnknownGroupError):
                yield cluster.describe_group(listed.group_id)


@click.command(short_help="Find subscriptions that make rebalances worse.")
@click.argument("group", type=NAME, required=False)
@json_option
@cluster_options
def check(group: str | None, as_json: bool, target: Target) -> int:
    """Find members of GROUP, or of all groups, whose subscriptions make rebalances worse; exit code 1 if there are any.

    Finds claims without a generation or of an old one, subscriptions that cannot be read, mixed versions of the
    subscription, and topics that do not exist.

    Checked is what each member last joined with. With range and roundrobin claims do not matter.
    """
    with admin(target) as cluster:
        topics = cluster.list_topics(internal=True)
        found = [finding for each in _descriptions(cluster, group) for finding in check_group(each, topics)]
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        rows = [(each.group, each.client, each.member, each.problem) for each in found]
        print_table(
            ("group", "client", "member", "problem"), rows, "nothing found", shorten=("group", "client", "member")
        )
    return FAILED if found else 0
