"""`roster history export-case`: a recorded rebalance as a test."""

from __future__ import annotations

import click

from roster.cli.errors import UserError
from roster.cli.options import NAME
from roster.cli.output import print_json
from roster.cli.recorded import from_option, group_history


@click.command("export-case", short_help="Write a recorded rebalance as a test.")
@click.argument("group", type=NAME)
@from_option
@click.option("--generation", type=click.IntRange(0), required=True, help="The generation that was assigned.")
def export_case(group: str, folder: str, generation: int) -> None:
    """Print what the leader of a generation of GROUP was given and what it answered, as JSON.

    `roster.history.case.replay_case` computes the assignment again, and compares it byte by byte. It is said if the
    assignment computed now is another.
    """
    _, found = group_history(folder, group)
    from roster.history.case import case_of  # noqa: PLC0415 - needs an extra

    try:
        case = case_of(found, generation)
    except ValueError as error:
        raise UserError(f"--generation: {error}") from error
    print_json(case.as_json())
    if differing := case.differing():
        click.echo(f"roster: computed now, the assignment of {', '.join(differing)} differs", err=True)
