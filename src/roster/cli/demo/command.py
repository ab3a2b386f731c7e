"""`roster demo`."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from roster.cli.demo.environment import flights, open_environment, users_file
from roster.cli.demo.script import STREAM_S, Script
from roster.cli.demo.view import open_view
from roster.cli.errors import FAILED, UserError, one_line
from roster.cli.options import POSITIVE, columns_of
from roster.cli.signals import end_like_ctrl_c
from roster.spark import PipelineError
from roster.spark.spark_session import check_java


@click.command()
@click.option(
    "--input",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file of your own, instead of the flights.",
)
@click.option("--key", metavar="COLUMN[,COLUMN…]", help="With --input: the columns to key, group and count by.")
@click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl", "parquet"]), help="Format of FILE, if its name does not say."
)
@click.option(
    "--partitions", type=click.IntRange(min=3), default=12, show_default=True, help="Partitions of the topic."
)
@click.option("--rate", type=POSITIVE, help=f"Records a second; default: all within {STREAM_S:g} s.")
@click.option(
    "--deadline", type=POSITIVE, default=480.0, show_default=True, help="Seconds after which the demo gives up."
)
@click.option("--keep", is_flag=True, help="Keep the directory with the broker's data, the output and the logs.")
@click.option("--no-view", is_flag=True, help="Print plain lines even on a terminal.")
def demo(
    file: Path | None,
    key: str | None,
    form: str | None,
    partitions: int,
    rate: float | None,
    deadline: float,
    keep: bool,
    no_view: bool,
) -> int:
    """Two PySpark applications share a topic as one consumer group, and every record counts exactly once.

    A third application joins, one is killed with -9, the broker is killed with -9 and restarted. At the end the output
    is compared with a plain computation of the same file. Everything runs on this machine and is gone afterwards.
    """
    if file is not None and key is None:
        raise UserError("--key: --input needs the columns to key by, for example --key COLUMN")
    if file is None and (key is not None or form is not None):
        raise UserError("--input: --key and --format are for a file of your own; name it with --input FILE")
    workload = users_file(file, columns_of(key, "--key"), form) if file is not None and key is not None else flights()
    _check_java()
    end_like_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    with open_environment(workload, partitions, keep) as environment:
        if keep:
            click.echo(f"keeping {environment.directory}")
        verdict = Script(environment, open_view(not no_view), rate, deadline).run()
    click.echo(f"demo: {verdict}")
    return 0 if verdict.holds else FAILED


def _check_java() -> None:
    try:
        check_java()
    except PipelineError as error:
        raise UserError(one_line(error)) from error
