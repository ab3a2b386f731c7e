"""Rows written by the tasks into staging tables of PostgreSQL, one for each attempt of a task.

The driver moves the rows of the attempts that count into the table, with the positions, in one transaction.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster._errors import one_line
from roster.pipeline.errors import SinkFencedError
from roster.pipeline.tasks.writer import conformed
from roster.records.produce import WriteError
from roster.sinks.tasks.sql_columns import quoted, staging_table
from roster.sinks.tasks.sql_values import DELETED, ROW, Limit, final_error, prepared
from roster.sinks.tasks.upsert import is_retracted, last_of_keys
from roster.state.bad_rows import bad_rows

log = logging.getLogger("roster.pipeline")

STAGING = "roster_staging_"
"""What names of staging tables begin with."""
_HELD_BYTES = 8 << 20
"""Bytes of rows that a task sends at once."""
_LONGEST_ERROR = 300
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
LOCK_SECONDS = 10
"""After which a statement that waits for a lock fails and is tried again, and a server ends a transaction in which
nothing is asked: a driver that is frozen would hold its locks, and hold up the one in its place, for ever.
"""
PATIENCE = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""libpq's settings under which the silence of a host that is gone is noticed within a minute."""
_PASSING_STATES = ("08", "25P03", "40", "53", "57", "55P03")
"""What SQLSTATE begins with: connection, silence, rollback by the server, resources, an operator, a lock."""
_REFUSED = re.compile(r"authentication failed|does not exist|pg_hba\.conf|not permitted|password supplied|no password")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Server:
    """A database: libpq's parameters, with the secrets among them and for messages, and seconds to wait for it."""

    address: str = field(repr=False)
    shown: str
    timeout: float
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def error_text(self, error: Exception) -> str:
        """Return a message of the database's driver on one line, without the password."""
        text = one_line(error, _LONGEST_ERROR)
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def patiently(self, work: Callable[[], Result]) -> Result:
        """Return what `work` does, and try again while the database is away. Raises its errors."""
        until, pause = float("inf"), _SHORTEST_PAUSE
        while True:
            is_away = False
            try:
                return work()
            except Exception as error:
                is_away, now = self.is_passing(error), time.monotonic()
                if not is_away or now >= until:
                    raise
                until = min(until, now + self.timeout)  # from the first error on: this process may have stood still
                if pause == _SHORTEST_PAUSE:
                    text = self.error_text(error)
                    log.warning("%s does not answer; waiting for up to %.0f s: %s", self.shown, self.timeout, text)
            finally:
                if pause > _SHORTEST_PAUSE and not is_away:
                    log.warning("%s answers again", self.shown)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    @staticmethod
    def is_of_a_row(error: Exception) -> bool:
        """Return True for an error of a database's driver that a row has caused."""
        return str(getattr(error, "sqlstate", None)).startswith(("22", "23"))  # a value, a constraint

    @staticmethod
    def is_passing(error: Exception) -> bool:
        """Return True for an error of a database's driver that time may cure: no connection, a lock, a restart."""
        if state := getattr(error, "sqlstate", None):  # too many clients, deadlocks, lost locks are of other classes
            return str(state).startswith(_PASSING_STATES)
        kinds = {kind.__name__ for kind in type(error).__mro__}
        return not kinds.isdisjoint({"OperationalError", "InterfaceError"}) and _REFUSED.search(str(error)) is None


class Staged(NamedTuple):
    """What one attempt of a task has written."""

    name: str
    """Name of the staging table."""
    rows: int
    deletes: int = 0
    """Rows that delete their keys."""
    nulls: int = 0
    """Rows with a null among the keys."""
    numbered: int = 0
    """Rows that the task has made, refused and replaced ones included: their numbers in the staging table end there."""
    refused: Mapping[int, str] = {}
    """Why rows are not there, by their number."""
    task: int = 0
    """The number of the task."""


@dataclass(frozen=True)
class DatabaseWriter:
    """Settings of one batch's staging.

    schema: columns of the rows; keys: those that tell rows apart in upsert mode. namespace: the database schema of the
    staging tables, whose names begin with `prefix`. dead_letters: as in `Source`. limits: of the table's columns.
    """

    server: Server
    schema: pa.Schema
    keys: tuple[str, ...]
    namespace: str | None
    prefix: str
    dead_letters: str | None = None
    limits: Mapping[str, Limit] = field(default_factory=dict)

    @property
    def sets_aside(self) -> bool:
        """True if rows that are refused are left out, so rows have numbers."""
        return self.dead_letters == ""

    def open(self) -> DatabaseOutput:
        """Start the staging of one attempt of a task."""
        return DatabaseOutput(self)


class DatabaseOutput:
    """Rows of one attempt of a task."""

    def __init__(self, writer: DatabaseWriter) -> None:
        self._writer = writer
        self._name = f"{writer.prefix}{secrets.token_hex(8)}"
        self._connection: Any = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._rows = self._deletes = self._nulls = self._numbered = 0
        self._refused: dict[int, str] = {}

    def write(self, rows: pa.RecordBatch) -> None:
        """Buffer the rows, and send them once there are enough."""
        if not rows.num_rows:
            return
        plain = conformed(rows.replace_schema_metadata(None), self._writer.schema)
        if self._writer.keys:
            plain = plain.append_column(DELETED, pa.array(np.full(rows.num_rows, is_retracted(rows))))
        if self._writer.keys or self._writer.sets_aside:
            numbers = np.arange(self._numbered, self._numbered + rows.num_rows)
            plain = plain.append_column(ROW, pa.array(numbers))
        self._numbered += rows.num_rows
        self._held.append(plain)
        self._held_bytes += plain.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._send()

    def close(self) -> Staged | None:
        """Commit the rows; return where they are, None if there are none."""
        self._send()
        if self._connection is None:
            return None
        try:
            self._connection.commit()
        except Exception as error:
            raise self._failure(error) from None
        self.abort()
        return Staged(self._name, self._rows, self._deletes, self._nulls, self._numbered, self._refused)

    def abort(self) -> None:
        """Drop the rows. What a database that is away keeps, the driver drops later."""
        self._held.clear()
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()

    def _send(self) -> None:
        if not self._held:
            return
        rows, writer = pa.Table.from_batches(self._held), self._writer
        self._held, self._held_bytes = [], 0
        if writer.keys:
            rows = last_of_keys(rows, writer.keys)
        rows = rows.combine_chunks()
        if self._connection is None:
            self._connection = self._begun()
        if writer.sets_aside:
            bad = bad_rows(len(rows), lambda begin, end: self._added(rows.slice(begin, end - begin)))
            self._refused |= {rows[ROW][row].as_py(): str(error) for row, error in bad.items()}
        elif (error := self._added(rows)) is not None:
            raise final_error(f"{error}{unknown_record(writer.dead_letters)}")

    def _added(self, rows: pa.Table) -> Exception | None:
        """Send rows; return why one of them is refused, so none is sent."""
        writer, keys = self._writer, self._writer.keys
        try:
            batches = pa.Table.from_batches(prepared(batch, writer.limits) for batch in rows.to_batches())
            with self._connection.cursor() as cursor:
                cursor.adbc_ingest(self._name, batches, mode="append", db_schema_name=writer.namespace)
        except WriteError as error:
            return error
        except Exception as error:  # a COPY cannot go on
            raise self._failure(error) from None
        self._rows += len(rows)
        if keys:
            self._deletes += pc.sum(rows[DELETED]).as_py() or 0
            nulls = np.any([rows[name].is_null().to_numpy() for name in keys], axis=0)
            self._nulls += int(nulls.sum())
        return None

    def _begun(self) -> Any:
        """Return a connection whose transaction has made the staging table, for COPY in the binary format."""
        from adbc_driver_postgresql import dbapi

        writer, server = self._writer, self._writer.server
        is_numbered = bool(writer.keys) or writer.sets_aside
        table = quoted(writer.namespace, self._name)
        statement = staging_table(table, writer.schema, writer.keys, is_numbered=is_numbered)

        def begin() -> Any:
            connection = dbapi.connect(server.address)
            with connection.cursor() as cursor:
                cursor.execute(statement)
            return connection

        try:
            return server.patiently(begin)
        except Exception as error:
            raise self._failure(error, is_final=True) from None

    def _failure(self, error: Exception, *, is_final: bool = False) -> WriteError | SinkFencedError:
        """Return the error for one of the driver's; if the database is away, the batch is read again."""
        server = self._writer.server
        text = f"{server.shown}: {server.error_text(error)}"
        if is_final or not server.is_passing(error):
            return final_error(text)
        return SinkFencedError(f"{text}; the batch is read again")


def unknown_record(dead_letters: str | None) -> str:
    """Return what an error of a refused row says of the topic for dead letters, if that does not take it."""
    return f". It does not become a dead letter: {dead_letters}" if dead_letters else ""
