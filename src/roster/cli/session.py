"""The Spark session of a command, and the progress of its jobs."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import click

from roster.cli.admin import admin
from roster.cli.errors import Failure, UserError, explained_imports, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from roster.cli.options import Target
    from roster.spark.state import StateProgress


@contextlib.contextmanager
def spark_session(target: Target | None, name: str) -> Iterator[SparkSession]:
    """Run with a Spark session, as `spark_starter`."""
    with spark_starter(target, name) as start:
        yield start()


@contextlib.contextmanager
def spark_starter(target: Target | None, name: str) -> Iterator[Callable[[], SparkSession]]:
    """Run with a function that starts a Spark session once; errors of its user become one line.

    target: the cluster that it works with, None if none. name: of the command.
    """
    with explained_imports(name):
        from py4j.protocol import Py4JError, Py4JJavaError
        from pyspark.errors import PySparkException

        from roster.pipeline.errors import reason_of
        from roster.spark import PipelineError, session

    with contextlib.nullcontext() if target is None else admin(target):  # for its errors
        try:
            with contextlib.ExitStack() as started:

                @functools.cache
                def start() -> SparkSession:
                    spark = session(f"roster {name}")
                    started.callback(spark.stop)
                    return spark

                yield start
        except PipelineError as error:
            raise (UserError if error.field else Failure)(one_line(error)) from None
        except (PySparkException, Py4JJavaError) as error:
            raise Failure(f"Spark: {reason_of(error)}") from None
        except (Py4JError, ConnectionError):
            raise ConnectionError("Spark's JVM has ended; start the command again") from None


def show_progress(progress: StateProgress) -> None:
    """Print a line on standard error."""
    click.echo(f"{progress.done} of {progress.partitions} partitions, {progress.records} changelog records", err=True)
