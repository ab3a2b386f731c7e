"""Connections to PostgreSQL: the driver's by SQLAlchemy, those of tasks by ADBC."""

from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

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


def engine_of(url: sa.URL) -> sa.Engine:
    """Return an engine with one connection."""
    arguments = {key: value for key, value in PATIENCE.items() if key not in url.query}
    engine = sa.create_engine(
        url, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args=arguments, isolation_level="READ COMMITTED"
    )

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{LOCK_SECONDS}s'")
        connection.commit()

    return engine


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
