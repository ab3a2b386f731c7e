"""Connections by SQLAlchemy, with settings under which nothing is cut off, rounded or read from an old snapshot."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from roster.sinks.tasks.sql_columns import MYSQL
from roster.sinks.tasks.sql_values import final_error

_CONNECT_SECONDS = 10
LOCK_SECONDS = 10
"""After which a statement that waits for a lock fails and is tried again, and a server ends a transaction in which
nothing is asked: a driver that is frozen would hold its locks, and hold up the one in its place, for ever.
"""
PATIENCE = {
    "connect_timeout": str(_CONNECT_SECONDS),
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""libpq's settings under which the silence of a host that is gone is noticed within a minute."""
_LARGE_BYTES, _STATEMENT_BYTES = 200_000, 16_384
"""Bytes of rows that are checked for a packet's limit; bytes of a statement without its values."""
_ESCAPED = [bytes([code]) for code in b"\0\n\r\x1a\"'\\"]
"""What takes two bytes in a statement."""


def _settings(name: str, seconds: int) -> tuple[str, ...]:
    """Return the statements that begin a session of a kind of database."""
    if name == "postgresql":
        return (f"SET lock_timeout = '{seconds}s'", f"SET idle_in_transaction_session_timeout = '{seconds}s'")
    if name not in MYSQL:
        return ()
    return (
        # Without them a text that is too long is cut off, and a number out of range, and 0, replaced by another.
        "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO')",
        (
            f"SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"
            f" /*M!100300 , idle_transaction_timeout = {seconds} */"  # for MySQL a comment
        ),
    )


def engine_of(address: str | sa.URL, timeout: float) -> sa.Engine:
    """Return an engine with one connection. Raises ModuleNotFoundError without the driver, and ArgumentError."""
    url = sa.make_url(address)
    name = url.get_backend_name()
    settings = _settings(name, LOCK_SECONDS)
    arguments: dict[str, object] = {}
    if name == "postgresql":
        arguments = dict(PATIENCE)
    elif url.drivername.endswith("+pymysql"):
        arguments = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": max(round(timeout), 1)}
    elif name == "sqlite":
        arguments = {"timeout": LOCK_SECONDS}
    arguments = {key: value for key, value in arguments.items() if key not in url.query}
    options: dict[str, object] = {"isolation_level": "READ COMMITTED"} if settings else {}
    engine = sa.create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args=arguments, **options)

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        if name == "sqlite":
            connection.isolation_level = None  # the module would begin where it thinks fit
            connection.execute("PRAGMA foreign_keys = ON")  # as in other databases
        if settings:
            with connection.cursor() as cursor:
                for statement in settings:
                    cursor.execute(statement)
            connection.commit()

    @sa.event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        if name == "sqlite":  # a transaction that has read first could not get the lock later
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _check_packets(rows: Sequence[Mapping[str, object]], most: int) -> None:
    """Raise WriteError for a row that MariaDB does not take: it closes the connection, as if it went away."""
    for row in rows:
        large = (value.encode() if isinstance(value, str) else value for value in row.values())
        size = sum(len(value) + sum(map(value.count, _ESCAPED)) for value in large if isinstance(value, bytes))
        if size + _STATEMENT_BYTES > most:
            problem = f"a row takes {size:,} bytes, more than the {most:,} of the database's max_allowed_packet"
            raise final_error(f"{problem}. Raise that, or leave such rows out in map_arrow")


class Copied:
    """COPY in the binary format from Arrow columns into a new table, in one transaction."""

    def __init__(self, address: str, table: sa.Table) -> None:
        from adbc_driver_postgresql import dbapi

        self._connection, self._table = dbapi.connect(address), table
        self._cursor = self._connection.cursor()
        dialect: Any = postgresql.dialect
        # ADBC takes a statement as it is; the dialect of SQLAlchemy's drivers has each % in names twice.
        self._cursor.execute(str(CreateTable(table).compile(dialect=dialect(paramstyle="named"))))

    def add(self, rows: pa.Table) -> None:
        """Send rows; none after an error."""
        self._cursor.adbc_ingest(self._table.name, rows, mode="append", db_schema_name=self._table.schema)

    def commit(self) -> None:
        """Make it all last, and close the connection."""
        self._connection.commit()
        self.abort()

    def abort(self) -> None:
        """Close the connection, which undoes what is not committed."""
        self._cursor.close()
        self._connection.close()


class Inserted:
    """INSERT of many rows into a new table, committed one by one: a database may have one writer at a time."""

    def __init__(self, address: str, timeout: float, table: sa.Table) -> None:
        self._engine, self._table = engine_of(address, timeout), table
        table.create(self._engine, checkfirst=True)  # an earlier attempt, whose answer was lost, may have made it

    def add(self, rows: pa.Table) -> None:
        """Send rows."""
        values = rows.to_pylist()
        with self._engine.begin() as connection:
            if rows.nbytes > _LARGE_BYTES and self._engine.dialect.name in MYSQL:
                _check_packets(values, connection.scalar(sa.text("select @@max_allowed_packet")))
            connection.execute(self._table.insert(), values)

    def commit(self) -> None:
        """Close the connection."""
        self._engine.dispose()

    def abort(self) -> None:
        """Drop the table, and close the connection."""
        self._table.drop(self._engine)
        self._engine.dispose()
