"""`roster history replay`: what each assignor would have done at the rebalances of a recorded history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roster.assignors import ASSIGNORS, Assignor
from roster.cli.errors import UserError, one_line
from roster.cli.output import print_table
from roster.cli.plan.assignor_name import AssignorName
from roster.cli.recorded import from_option, recorded
from roster.cli.session import spark_session

_NAME = AssignorName(list(ASSIGNORS))


def _assignors(context: click.Context, option: click.Parameter, value: str) -> list[str | Assignor]:
    return [_NAME.convert(name.strip(), option, context) for name in value.split(",")]


@click.command(short_help="Try assignors on a recorded history.")
@from_option
@click.option("--to", required=True, metavar="FOLDER", help="Where to write replays (Parquet) and report.html; new.")
@click.option(
    "--assignors",
    default=",".join(ASSIGNORS),
    show_default=True,
    callback=_assignors,
    help="Names, or MODULE:ATTRIBUTE of assignors of your own that executors can import.",
)
def replay(folder: str, to: str, assignors: list[Any]) -> None:
    """Replay every recorded rebalance of all groups with each assignor, as one Spark job.

    An assignor goes on from its own last plan, and has rounds of its own. FOLDER gets a row for each rebalance and
    assignor, and a page that compares them.
    """
    place = Path(to)
    if place.exists():
        raise UserError(f"--to: {to} exists; name a new folder")
    recorded(folder)
    with spark_session(None, "history replay") as spark:
        from roster.history.folder import HistoryError  # noqa: PLC0415 - needs an extra
        from roster.spark.history import replay_history, replay_report  # noqa: PLC0415 - only this command needs Spark

        try:
            replays = replay_history(spark, folder, assignors)
        except HistoryError as error:
            raise UserError(f"--from: {one_line(error)}") from None
        replays.write.parquet(f"{to}/replays")
        rows = spark.read.parquet(f"{to}/replays")
        page, totals = replay_report(rows)
        (place / "report.html").write_text(page, encoding="utf-8")
        found = [[row[name] for name in ("policy", "rebalances", "moved", "stopped", "rounds")] for row in totals]
        titles = ("assignor", "rebalances", "moved", "stopped", "generations")
        print_table(titles, found, "no rebalances of groups with members")
    click.echo(f"{place / 'report.html'}", err=True)
