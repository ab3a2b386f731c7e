"""`roster groups list`: the groups of a cluster, and how far they are behind."""

from __future__ import annotations

import contextlib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from roster._json import JsonObject
from roster.cli.admin import admin
from roster.cli.options import Target, cluster_options, json_option
from roster.cli.output import print_found
from roster.client import AuthorizationError, GroupTypeError, UnknownGroupError, total_lags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roster.client import Admin, GroupDescription, GroupListing, TotalLag

MOST_LOOKED_INTO = 100
"""Most groups in a list that shows members and lag: these take two requests a group."""


@click.command("list", short_help="List groups with their state, members and lag.")
@click.argument("pattern", default="*")
@json_option
@cluster_options
def list_(pattern: str, as_json: bool, target: Target) -> None:
    """List groups with their state, type, members and lag; with PATTERN those whose name matches, as in 'shop*'.

    The type is classic, or consumer for groups of KIP-848. Members and lag are shown of up to 100 groups.
    """
    with admin(target) as cluster:
        listed = [group for group in cluster.list_groups() if fnmatchcase(group.group_id, pattern)]
        is_short = len(listed) <= MOST_LOOKED_INTO
        described = _described(cluster, listed) if is_short else {}
        lags = total_lags(cluster, list(described.values()))
    documents = [_document(group, described.get(group.group_id), lags.get(group.group_id)) for group in listed]
    rows = (_row(document, lags.get(document["group"])) for document in documents)
    nothing = "no groups" if pattern == "*" else f"no group matches {pattern!r}"
    columns: tuple[str, ...] = ("group", "state", "type", "protocol type", "members", "lag")
    if any(document["results"] for document in documents):
        columns = (*columns, "results")
        rows = ((*row, document["results"]) for row, document in zip(rows, documents, strict=True))
    print_found(as_json, documents, columns, rows, nothing, shorten=("group",))
    if not is_short:
        problem = f"members and lag are not shown of {len(listed)} groups, more than {MOST_LOOKED_INTO}"
        click.echo(f"{problem}; give a pattern, as in 'shop*'", err=True)


def _described(cluster: Admin, listed: Sequence[GroupListing]) -> dict[str, GroupDescription]:
    """Describe groups but those deleted meanwhile, of a type such as share, or that this client may only list."""
    descriptions = {}
    for group in listed:
        with contextlib.suppress(UnknownGroupError, GroupTypeError, AuthorizationError):
            descriptions[group.group_id] = cluster.describe_group(group.group_id)
    return descriptions


def _document(listed: GroupListing, described: GroupDescription | None, lag: TotalLag | None) -> JsonObject:
    return {
        "group": listed.group_id,
        "state": listed.state,
        "type": listed.group_type,
        "protocol_type": listed.protocol_type,
        "members": None if described is None else len(described.members),
        "lag": None if lag is None else lag.known,
        "lag_complete": lag is not None and lag.complete,
        "results": (lag and lag.results) or None,
    }


def _row(document: JsonObject, lag: TotalLag | None) -> tuple[object, ...]:
    kinds = (document[name] or None for name in ("state", "type", "protocol_type"))
    return (document["group"], *kinds, document["members"], None if lag is None or lag.known is None else lag)
