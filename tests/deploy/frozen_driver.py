"""A program that stands still once, at a step of a batch's commit.

    python frozen_driver.py SINK NUMBER FREEZE START PROGRAM [WORD ...]

The step is that of `STEPS[SINK]` with this number. The program stands still the first time it comes there after the
file FREEZE is there, which it removes. Its pipeline runs once the file START is there; "": at once.
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from roster.spark import Pipeline


class Step(NamedTuple):
    """A function of the driver's, before or behind which it stands still."""

    told: str
    """What has happened by then."""
    at: str
    """module:function, or module:class.method"""
    is_behind: bool = False
    of: str = ""
    """Only the calls in whose arguments this text is."""


_TRANSACTIONS = "roster.sinks.kafka_transactions:TransactionalSink"
_PRODUCER = "roster.client.producer_state:ProducerState"
_TABLE = (
    Step("no row is written", "roster.sinks.table:TableSink.task_writer"),
    Step("rows are in files", "roster.sinks.table:TableSink.commit"),
    Step("a version is read", "roster.sinks.positions:PositionedSink._fence"),
    Step("its positions are checked", "roster.sinks.positions:PositionedSink._fence", is_behind=True),
)
_GROUP = (
    Step("the sink has committed, the group has not", "roster.pipeline.driver.batch_run:BatchRuns._commit_offsets"),
    Step("both have", "roster.pipeline.driver.batch_run:BatchRuns._commit_offsets", is_behind=True),
)
_LOG = "roster.sinks.commit_log:CommitLog"
_WRITE = "deltalake:DeltaTable.create_write_transaction"
_POSITIONS = "roster.sinks.postgres_tables:PositionsTable"

STEPS = {
    "kafka": (
        Step("no transaction is begun", f"{_TRANSACTIONS}.begin"),
        Step("it is begun, without offsets", f"{_PRODUCER}.commit_offsets"),
        Step("offsets are on their way into it, records are not", f"{_TRANSACTIONS}._write"),
        Step("records and offsets are in it", f"{_TRANSACTIONS}.commit_batch"),
        Step("its end is to be sent", f"{_PRODUCER}.end"),
        Step("it is committed, and the driver does not know", f"{_PRODUCER}.ended"),
        Step("the driver knows", f"{_TRANSACTIONS}.commit_batch", is_behind=True),
    ),
    "parquet": (
        Step("no row is written", "roster.sinks.parquet:ParquetSink.task_writer"),
        Step("rows are in files", "roster.sinks.parquet:ParquetSink.commit"),
        Step("files are synced", f"{_LOG}._fence"),
        Step("positions are checked", f"{_LOG}._append"),
        Step("the log's entry has no name yet", "os:link", of="_roster/log"),
        Step("the entry counts, no file is published", f"{_LOG}.complete"),
        Step("one file is published", "roster.sinks.storage:Storage.publish", is_behind=True),
        *_GROUP,
    ),
    "delta": (
        *_TABLE,
        Step("the table's commit is to be written", _WRITE),
        Step("it is written", _WRITE, is_behind=True),
        *_GROUP,
    ),
    "delta-totals": (
        *_TABLE[:1],
        Step("rows are in files", f"{_TRANSACTIONS}._write"),
        Step("and the state's records in a transaction", "roster.sinks.table:TableSink.commit"),
        *_TABLE[2:],
        Step("the table's commit is to be written", _WRITE),
        Step("it is written", _WRITE, is_behind=True),
        Step("offsets are to be added to the transaction", f"{_TRANSACTIONS}.commit_batch"),
        Step("its end is to be sent", f"{_PRODUCER}.end"),
        Step("it is committed, and the driver does not know", f"{_PRODUCER}.ended"),
        Step("the driver knows", f"{_TRANSACTIONS}.commit_batch", is_behind=True),
    ),
    "iceberg": (
        *_TABLE,
        Step("manifests are written", "pyiceberg.table:Transaction.commit_transaction"),
        Step("so is the table's metadata", "pyiceberg.catalog:MetastoreCatalog._write_metadata", is_behind=True),
        Step("the catalog has committed", "pyiceberg.table:Transaction.commit_transaction", is_behind=True),
        *_GROUP,
    ),
    "postgres": (
        Step("no row is sent", "roster.sinks.postgres:PostgresSink.task_writer"),
        Step("rows are in staging", "roster.sinks.postgres:PostgresSink.commit"),
        Step("the transaction is begun", "roster.sinks.postgres:PostgresSink._move"),
        Step("positions are locked", f"{_POSITIONS}.read", is_behind=True, of="lock"),
        Step("they are checked", f"{_POSITIONS}.store"),
        Step("they are stored", f"{_POSITIONS}.store", is_behind=True),
        Step("rows are to be moved", "roster.sinks.postgres_tables:Layout.moves", is_behind=True),
        Step("rows are moved, nothing is committed", "roster.sinks.postgres:PostgresSink._move", is_behind=True),
        *_GROUP,
    ),
}
"""What the driver does from a batch's rows to the group's offsets, by sink; `delta-totals`: of totals with state."""


def stand_still(file: Path) -> None:
    if file.exists():
        file.unlink()
        os.killpg(0, signal.SIGSTOP)


def owner_of(step: Step) -> tuple[Any, str]:
    """Return the module or class that has a step's function, and the function's name."""
    module, _, path = step.at.partition(":")
    *names, name = path.split(".")
    return functools.reduce(getattr, names, importlib.import_module(module)), name


def freeze_at(step: Step, file: Path) -> None:
    """Have the program stand still at that step, with what it has started in its process group."""
    owner, name = owner_of(step)
    original = getattr(owner, name)

    def watched(*arguments: Any, **more: Any) -> Any:
        is_meant = not step.of or step.of in f"{arguments} {more}"
        if is_meant and not step.is_behind:
            stand_still(file)
        result = original(*arguments, **more)
        if is_meant and step.is_behind:
            stand_still(file)
        return result

    is_static = isinstance(vars(owner).get(name), staticmethod)
    setattr(owner, name, staticmethod(watched) if is_static else watched)


def wait_for(file: Path) -> None:
    """Have pipelines run once that file is there."""
    run = Pipeline.run

    def waiting(*arguments: Any, **more: Any) -> None:
        while not file.exists():
            time.sleep(0.02)
        run(*arguments, **more)

    setattr(Pipeline, "run", waiting)  # noqa: B010 - mypy knows the method's type


if __name__ == "__main__":
    _, sink, number, freeze, begin, program, *words = sys.argv
    freeze_at(STEPS[sink][int(number)], Path(freeze))
    if begin:
        wait_for(Path(begin))
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")
