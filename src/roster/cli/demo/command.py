"""`roster demo`."""

import signal

import click

from roster.cli.demo.engine import STREAM_S, Demo
from roster.cli.demo.environment import flights, open_environment
from roster.cli.demo.jobs import AIRCRAFT, CARRIERS, FLIGHTS
from roster.cli.errors import FAILED, UserError, one_line
from roster.cli.options import POSITIVE
from roster.cli.signals import end_like_ctrl_c
from roster.spark import PipelineError
from roster.spark.spark_session import check_java

PARTITIONS, STATEFUL_PARTITIONS = 12, 4


@click.command()
@click.option("--stateful", is_flag=True, help="Keep totals and windows, with standby copies of the state.")
@click.option("--records", metavar="N", type=click.IntRange(min=100), help="Only the first N flights.")
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
    stateful: bool, records: int | None, partitions: int | None, rate: float | None, deadline: float, keep: bool
) -> int:
    """Two PySpark applications share a topic as one consumer group, and every record counts exactly once.

    A third application joins, one is killed with -9, the broker is killed with -9 and restarted. At the end the output
    is compared with a plain computation of the same file. Everything runs on this machine and is gone afterwards.
    `roster groups watch demo`, with the address in the first line, shows the group meanwhile.

    With --stateful two applications keep totals of each aircraft and delays of each carrier in windows, and a standby
    copy of each other's state. One is killed with -9, the other goes on with its copies. At the end all results are
    compared with a plain computation.
    """
    try:
        check_java()
    except PipelineError as error:
        raise UserError(one_line(error)) from error
    end_like_ctrl_c(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    jobs, parts = ((AIRCRAFT, CARRIERS), STATEFUL_PARTITIONS) if stateful else ((FLIGHTS,), PARTITIONS)
    with open_environment(partitions or parts, keep) as environment:
        if keep:
            click.echo(f"keeping {environment.directory}")
        environment.workload = flights(jobs, environment.directory, records)
        outcome = Demo(environment, rate, deadline).run()
    click.echo(f"demo: {outcome}")
    return 0 if outcome.holds else FAILED
