"""`roster demo`."""

import signal
from pathlib import Path

import click

from roster.cli.demo.engine import STREAM_S
from roster.cli.demo.environment import flights, in_order, open_environment, users_file
from roster.cli.demo.jobs import AIRCRAFT, CARRIERS, FLIGHTS
from roster.cli.demo.sharing import SharingDemo
from roster.cli.demo.takeover import TakeoverDemo
from roster.cli.demo.view import open_demo_view
from roster.cli.errors import FAILED, UserError, one_line
from roster.cli.options import POSITIVE, columns_of, form_option
from roster.cli.signals import end_like_ctrl_c
from roster.spark import PipelineError
from roster.spark.spark_session import check_java

PARTITIONS, STATEFUL_PARTITIONS = 12, 4


@click.command()
@click.option(
    "--input",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file of your own, instead of the flights.",
)
@click.option("--key", metavar="COLUMN[,COLUMN…]", help="With --input: the columns to key, group and count by.")
@form_option
@click.option("--stateful", is_flag=True, help="Keep totals and windows, with standby copies of the state.")
@click.option("--records", metavar="N", type=click.IntRange(min=100), help="With --stateful: only the first N flights.")
@click.option(
    "--partitions",
    type=click.IntRange(min=3),
    help=f"Partitions of a topic; default: {PARTITIONS}, with --stateful {STATEFUL_PARTITIONS}.",
)
@click.option("--rate", type=POSITIVE, help=f"Records a second; default: all within {STREAM_S:g} s.")
@click.option(
    "--deadline", type=POSITIVE, default=480.0, show_default=True, help="Seconds after which the demo gives up."
)
@click.option("--keep", is_flag=True, help="Keep the directory with the broker's data, the output and the logs.")
def demo(
    file: Path | None,
    key: str | None,
    form: str | None,
    partitions: int | None,
    rate: float | None,
    deadline: float,
    keep: bool,
    stateful: bool,
    records: int | None,
) -> int:
    """Two PySpark applications share a topic as one consumer group, and every record counts exactly once.

    A third application joins, one is killed with -9, the broker is killed with -9 and restarted. At the end the output
    is compared with a plain computation of the same file. Everything runs on this machine and is gone afterwards.

    With --stateful two applications keep totals of each aircraft and delays of each carrier in windows, and a standby
    copy of each other's state. One is killed with -9, the other goes on with its copies. At the end all results are
    compared with a plain computation.
    """
    if stateful and (file is not None or key is not None or form is not None):
        raise UserError("--stateful: streams the flights; leave --input, --key and --format out")
    if records is not None and not stateful:
        raise UserError("--records: is for --stateful; cut a file of your own for --input")
    if file is not None and key is None:
        raise UserError("--key: --input needs the columns to key by, for example --key COLUMN")
    if file is None and (key is not None or form is not None):
        raise UserError("--input: --key and --format are for a file of your own; name it with --input FILE")
    if file is not None and key is not None:
        workload = users_file(file, columns_of(key, "--key"), form)
    else:
        workload = flights((AIRCRAFT, CARRIERS) if stateful else (FLIGHTS,))
    _check_java()
    end_like_ctrl_c(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    kind, parts = (TakeoverDemo, STATEFUL_PARTITIONS) if stateful else (SharingDemo, PARTITIONS)
    with open_environment(workload, partitions or parts, keep) as environment:
        if keep:
            click.echo(f"keeping {environment.directory}")
        if stateful:
            environment.workload = in_order(workload, environment.directory, records)
        outcome = kind(environment, open_demo_view, rate, deadline).run()
    click.echo(f"demo: {outcome}")
    return 0 if outcome.holds else FAILED


def _check_java() -> None:
    try:
        check_java()
    except PipelineError as error:
        raise UserError(one_line(error)) from error
