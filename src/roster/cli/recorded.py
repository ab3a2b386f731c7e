"""What is recorded of a group, for commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from roster.cli.errors import UserError, explained_imports, one_line

if TYPE_CHECKING:
    from roster.history.derived import GroupHistory
    from roster.history.folder import HistoryFolder

from_option = click.option(
    "--from", "folder", required=True, metavar="FOLDER", help="What `roster history record` wrote."
)


def recorded(folder: str) -> HistoryFolder:
    """Return the folder; a UserError if it has no history."""
    with explained_imports("history"):
        from roster.history.folder import HistoryError, HistoryFolder
    history = HistoryFolder(folder)
    try:
        history.require()
    except HistoryError as error:
        raise UserError(f"--from: {one_line(error)}") from None
    return history


def group_history(folder: str, group: str) -> tuple[HistoryFolder, GroupHistory]:
    """Read a group's recorded history; a UserError if it has none, or no rebalances."""
    place = recorded(folder)
    from roster.history.derived import GroupHistory
    from roster.history.folder import HistoryError

    try:
        history = GroupHistory(place.events(group), group)
    except HistoryError as error:
        raise UserError(f"--from: {one_line(error)}") from None
    if not history.timeline.rebalances:
        raise UserError(f"GROUP: {folder} has no rebalances of group {group}, or it is a share or streams group")
    return place, history
