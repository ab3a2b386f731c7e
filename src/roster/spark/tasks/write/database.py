"""Rows written by the tasks into staging tables of a database, one for each attempt of a task.

The driver moves the rows of the attempts that count into the table, with the positions, in one transaction.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster._errors import one_line
from roster.records.produce import WriteError
from roster.spark.errors import SinkFencedError
from roster.spark.tasks.write.sql_values import DELETED, ROW, final_error, prepared
from roster.spark.tasks.write.task import conformed
from roster.spark.tasks.write.updates import is_retracted, last_of_keys

log = logging.getLogger("roster.pipeline")

STAGING = "roster_staging_"
"""What names of staging tables begin with."""
NAME = f"{STAGING}name"
"""Stands for the name of an attempt's table in statements."""
_HELD_BYTES = 8 << 20
"""Bytes of rows that a task sends at once."""
_LONGEST_ERROR = 300
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_PASSING_STATES = ("08", "40", "53", "57")
"""Classes of SQLSTATE: connection, rollback by the server, resources, an operator's intervention."""
_LOCK_TIMEOUT = "55P03"
_PASSING_CODES = frozenset({1040, 1053, 1205, 1213, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
"""MariaDB's: too many connections, shutdown, locks, no connection."""
_REFUSED = re.compile(r"authentication failed|does not exist|pg_hba\.conf|not permitted|password supplied|no password")

Result = TypeVar("Result")


class Staged(NamedTuple):
    """What one attempt of a task has written."""

    name: str
    """Of the staging table."""
    rows: int
    deletes: int = 0
    """Rows that delete their keys."""
    nulls: int = 0
    """Rows with a null among the keys."""


class Session(Protocol):
    """A task's connection to the database."""

    def create(self, statement: str) -> None:
        """Create the staging table."""

    def add(self, table: str, rows: pa.Table) -> None:
        """Add rows to it."""

    def commit(self) -> None:
        """Make it all last, and close the connection."""

    def abort(self, statement: str) -> None:
        """Undo it all, by `statement` if need be, and close the connection."""


@dataclass(frozen=True)
class DatabaseWriter:
    """Settings of one batch's staging.

    address: the database's URL, with its password. schema: columns of the rows; keys: those that tell rows apart in
    upsert mode. create, drop: statements that make and drop a staging table named `NAME`. timeout: seconds for which a
    database that is away is waited for.
    """

    address: str = field(repr=False)
    shown: str
    """The URL for messages."""
    dialect: str
    schema: pa.Schema
    keys: tuple[str, ...]
    namespace: str | None
    """The database schema of the staging tables."""
    prefix: str
    create: str
    drop: str
    timeout: float

    def open(self) -> DatabaseOutput:
        """Start the staging of one attempt of a task."""
        return DatabaseOutput(self, _Copied if self.dialect == "postgresql" else _Inserted)


class DatabaseOutput:
    """Rows of one attempt of a task."""

    def __init__(self, writer: DatabaseWriter, connect: Callable[[DatabaseWriter], Session]) -> None:
        self._writer, self._connect = writer, connect
        self._name = f"{writer.prefix}{secrets.token_hex(8)}"
        self._session: Session | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._rows = self._deletes = self._nulls = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Buffer the rows, and send them once there are enough."""
        if not rows.num_rows:
            return
        plain = conformed(rows.replace_schema_metadata(None), self._writer.schema)
        if self._writer.keys:
            plain = plain.append_column(DELETED, pa.array(np.full(rows.num_rows, is_retracted(rows))))
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
        return Staged(self._name, self._rows, self._deletes, self._nulls)

    def abort(self) -> None:
        """Drop the rows. What a database that is away keeps, the driver drops later."""
        self._held.clear()
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.abort(self._writer.drop.replace(NAME, self._name))

    def _send(self) -> None:
        if not self._held:
            return
        rows = pa.Table.from_batches(self._held)
        self._held, self._held_bytes = [], 0
        if self._writer.keys:
            rows = self._numbered(last_of_keys(rows, self._writer.keys))
        values = [prepared(batch, self._writer.dialect) for batch in rows.combine_chunks().to_batches()]
        if self._session is None:
            self._session = self._begun()
        try:
            self._session.add(self._name, pa.Table.from_batches(values))
        except Exception as error:
            raise self._failure(error) from None
        self._rows += rows.num_rows

    def _numbered(self, rows: pa.Table) -> pa.Table:
        deletes = rows[DELETED]
        nulls = np.zeros(rows.num_rows, bool)
        for name in self._writer.keys:
            nulls |= rows[name].is_null().to_numpy()
        self._deletes += pc.sum(deletes).as_py() or 0
        self._nulls += int(nulls.sum())
        return rows.append_column(ROW, pa.array(np.arange(self._rows, self._rows + rows.num_rows)))

    def _begun(self) -> Session:
        writer = self._writer

        def begin() -> Session:
            session = self._connect(writer)
            session.create(writer.create.replace(NAME, self._name))
            return session

        try:
            return patiently(begin, writer.dialect, writer.shown, writer.timeout)
        except Exception as error:
            raise self._failure(error, is_final=True) from None

    def _failure(self, error: Exception, *, is_final: bool = False) -> WriteError:
        """Return the error for one of the driver's; if the database is away, the batch is read again."""
        text = one_line(getattr(error, "orig", None) or error, _LONGEST_ERROR)
        text = f"{self._writer.shown}: {without_password(text, self._writer.address)}"
        if not is_final and is_passing(error, self._writer.dialect):
            raise SinkFencedError(f"{text}; the batch is read again") from None
        return final_error(text)


def without_password(text: str, address: str) -> str:
    """Return a message of a driver's without the password of a URL."""
    found = re.search(r"//[^/@]*?:(.+)@", address)
    secrets_of = [found[1], unquote(found[1])] if found else []
    secrets_of += parse_qs(urlsplit(address).query).get("password", [])
    for each in secrets_of:
        text = text.replace(each, "***")
    return text


def patiently(work: Callable[[], Result], dialect: str, shown: str, timeout: float) -> Result:
    """Return what `work` does, and try again for `timeout` seconds while the database is away. Raises its errors."""
    until, pause, waits = time.monotonic() + timeout, _SHORTEST_PAUSE, False
    while True:
        away: Exception | None = None
        try:
            return work()
        except Exception as error:
            away = error if is_passing(error, dialect) else None
            if away is None or time.monotonic() >= until:
                raise
        finally:
            if waits and away is None:
                log.warning("%s answers again", shown)
        if not waits:
            text = one_line(getattr(away, "orig", None) or away, _LONGEST_ERROR)
            log.warning("%s does not answer; waiting for up to %.0f s: %s", shown, timeout, text)
        waits = True
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def is_passing(error: Exception, dialect: str) -> bool:
    """Return True for an error of a database driver that time may cure: no connection, a lock, a restart."""
    if getattr(error, "connection_invalidated", False):
        return True
    cause = getattr(error, "orig", None) or error
    names = {each.__name__ for each in type(cause).__mro__}
    if not names & {"OperationalError", "InterfaceError"}:
        # Too many clients, deadlocks and lost locks have classes of their own.
        state = getattr(cause, "sqlstate", None)
        return isinstance(state, str) and (state.startswith(_PASSING_STATES) or state == _LOCK_TIMEOUT)
    if dialect == "sqlite":
        return "locked" in str(cause) or "busy" in str(cause)
    if dialect == "postgresql":
        state = getattr(cause, "sqlstate", None)
        if state:
            return str(state).startswith(_PASSING_STATES) or state == _LOCK_TIMEOUT
        return _REFUSED.search(str(cause)) is None
    if dialect in ("mysql", "mariadb"):
        code = cause.args[0] if cause.args else 0
        return code in _PASSING_CODES or code == 0
    return True


class _Copied:
    """COPY in the binary format from Arrow columns, in one transaction."""

    def __init__(self, writer: DatabaseWriter) -> None:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - an extra of its own

        self._connection = dbapi.connect(writer.address)
        self._cursor = self._connection.cursor()
        self._namespace = writer.namespace

    def create(self, statement: str) -> None:
        self._cursor.execute(statement)

    def add(self, table: str, rows: pa.Table) -> None:
        self._cursor.adbc_ingest(table, rows, mode="append", db_schema_name=self._namespace)

    def commit(self) -> None:
        self._connection.commit()
        self.abort("")

    def abort(self, statement: str) -> None:
        self._cursor.close()
        self._connection.close()


class _Inserted:
    """INSERT of many rows by SQLAlchemy, committed one by one: a database may have one writer at a time."""

    def __init__(self, writer: DatabaseWriter) -> None:
        from roster.spark.tasks.write import sql_engine  # noqa: PLC0415 - an extra of its own

        self._engine = sql_engine.engine_of(writer.address, writer.timeout)
        self._table = functools.partial(
            sql_engine.staging_table, namespace=writer.namespace, schema=writer.schema, keys=writer.keys
        )
        self._dialect = writer.dialect

    def create(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.exec_driver_sql(statement)

    def add(self, table: str, rows: pa.Table) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._table(table, dialect=self._dialect).insert(), rows.to_pylist())

    def commit(self) -> None:
        self._engine.dispose()

    def abort(self, statement: str) -> None:
        self.create(statement)
        self._engine.dispose()
