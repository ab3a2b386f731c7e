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
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster._errors import one_line
from roster.pipeline.errors import SinkFencedError
from roster.pipeline.tasks.writer import conformed
from roster.records.produce import WriteError
from roster.sinks.tasks.sql_values import DELETED, ROW, Limit, final_error, prepared
from roster.sinks.tasks.upsert import is_retracted, last_of_keys
from roster.state.bad_rows import bad_rows

if TYPE_CHECKING:
    from roster.sinks.tasks.sql_engine import Copied

log = logging.getLogger("roster.pipeline")

STAGING = "roster_staging_"
"""What names of staging tables begin with."""
_HELD_BYTES = 8 << 20
"""Bytes of rows that a task sends at once."""
_LONGEST_ERROR = 300
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_PASSING_STATES = ("08", "25P03", "40", "53", "57", "55P03")
"""What SQLSTATE begins with: connection, silence, rollback by the server, resources, an operator, a lock."""
_REFUSED = re.compile(r"authentication failed|does not exist|pg_hba\.conf|not permitted|password supplied|no password")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Server:
    """A database: its URL, with the password and for messages, and the seconds for which it is waited for."""

    address: str = field(repr=False)
    shown: str
    timeout: float

    def error_text(self, error: Exception) -> str:
        """Return a message of the database's driver on one line, without the password."""
        text = one_line(getattr(error, "orig", None) or error, _LONGEST_ERROR)
        password = re.search(r"//[^/@]*?:(.+)@", self.address)
        secrets = [password[1], unquote(password[1])] if password else []
        for name, values in parse_qs(urlsplit(self.address).query).items():
            secrets += values if "pass" in name.lower() else []
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    def patiently(self, work: Callable[[], Result]) -> Result:
        """Return what `work` does, and try again while the database is away. Raises its errors."""
        until, pause = time.monotonic() + self.timeout, _SHORTEST_PAUSE
        while True:
            is_away = False
            try:
                return work()
            except Exception as error:
                is_away = self.is_passing(error)
                if not is_away or time.monotonic() >= until:
                    raise
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
        state = getattr(getattr(error, "orig", None) or error, "sqlstate", None)
        return str(state).startswith(("22", "23"))  # a value, a constraint

    @staticmethod
    def is_passing(error: Exception) -> bool:
        """Return True for an error of a database's driver that time may cure: no connection, a lock, a restart."""
        if getattr(error, "connection_invalidated", False):
            return True
        cause = getattr(error, "orig", None) or error
        if state := getattr(cause, "sqlstate", None):  # too many clients, deadlocks, lost locks are of other classes
            return str(state).startswith(_PASSING_STATES)
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        return not kinds.isdisjoint({"OperationalError", "InterfaceError"}) and _REFUSED.search(str(cause)) is None


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
        self._session: Copied | None = None
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
        if self._session is None:
            return None
        try:
            self._session.commit()
        except Exception as error:
            raise self._failure(error) from None
        return Staged(self._name, self._rows, self._deletes, self._nulls, self._numbered, self._refused)

    def abort(self) -> None:
        """Drop the rows. What a database that is away keeps, the driver drops later."""
        self._held.clear()
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.abort()

    def _send(self) -> None:
        if not self._held:
            return
        rows, writer = pa.Table.from_batches(self._held), self._writer
        self._held, self._held_bytes = [], 0
        if writer.keys:
            rows = last_of_keys(rows, writer.keys)
        rows = rows.combine_chunks()
        if self._session is None:
            self._session = self._begun()
        if writer.sets_aside:
            bad = bad_rows(len(rows), lambda begin, end: self._added(rows.slice(begin, end - begin)))
            self._refused |= {rows[ROW][row].as_py(): str(error) for row, error in bad.items()}
        elif (error := self._added(rows)) is not None:
            raise final_error(f"{error}{unknown_record(writer.dead_letters)}")

    def _added(self, rows: pa.Table) -> Exception | None:
        """Send rows; return why one of them is refused, so none is sent."""
        assert self._session is not None  # it is begun
        keys = self._writer.keys
        try:
            batches = (prepared(batch, self._writer.limits) for batch in rows.to_batches())
            self._session.add(pa.Table.from_batches(batches))
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

    def _begun(self) -> Copied:
        from roster.sinks.tasks.sql_columns import staging_table
        from roster.sinks.tasks.sql_engine import Copied

        writer, server = self._writer, self._writer.server
        is_numbered = bool(writer.keys) or writer.sets_aside
        table = staging_table(self._name, writer.namespace, writer.schema, writer.keys, is_numbered=is_numbered)
        try:
            return server.patiently(lambda: Copied(server.address, table))
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
