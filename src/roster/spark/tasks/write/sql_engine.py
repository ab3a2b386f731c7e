"""Connections by SQLAlchemy, with settings under which nothing is cut off, rounded or read from an old snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from roster.spark.tasks.write.sql_columns import MYSQL, staging_columns
from roster.spark.tasks.write.sql_values import DELETED, ROW

_CONNECT_SECONDS = 10
LOCK_SECONDS = 10
"""After which a statement that waits for a lock fails, and is tried again."""
PATIENCE = {
    "connect_timeout": str(_CONNECT_SECONDS),
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""libpq's settings under which the silence of a host that is gone is noticed within a minute."""


def engine_of(address: str | sa.URL, timeout: float) -> sa.Engine:
    """Return an engine with one connection. Raises ModuleNotFoundError without the driver, and ArgumentError."""
    url = sa.make_url(address)
    name = url.get_backend_name()
    arguments: dict[str, Any] = {}
    if name == "postgresql":
        arguments = dict(PATIENCE)
    elif url.drivername.endswith("+pymysql"):
        arguments = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": max(round(timeout), 1)}
    elif name == "sqlite":
        arguments = {"timeout": LOCK_SECONDS}
    arguments = {key: value for key, value in arguments.items() if key not in url.query}
    options: dict[str, Any] = {"isolation_level": "READ COMMITTED"} if name in _SETTINGS else {}
    engine = sa.create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args=arguments, **options)
    if name == "sqlite":
        _begin_immediately(engine)
    elif name in _SETTINGS:
        _run_first(engine, _SETTINGS[name])
    return engine


_STRICT = (
    # Without it a text that is too long is cut off, and a number out of range replaced by another.
    "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
    f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}",
)
_SETTINGS = {
    **dict.fromkeys(MYSQL, _STRICT),
    "postgresql": (f"SET lock_timeout = '{LOCK_SECONDS}s'",),
}


def _run_first(engine: sa.Engine, statements: Sequence[str]) -> None:
    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()


def _begin_immediately(engine: sa.Engine) -> None:
    """Have transactions of SQLite begin with the lock: one that has read first could not get it later."""

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the module would begin where it thinks fit

    @sa.event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def staging_table(
    name: str, namespace: str | None, schema: pa.Schema, dialect: str, keys: Sequence[str], **options: Any
) -> sa.Table:
    """Return the staging table of an attempt; with keys it has the order of the rows and the mark of deletes."""
    columns = staging_columns(schema, dialect, keys)
    if keys:
        columns += [sa.Column(DELETED, sa.Boolean()), sa.Column(ROW, sa.BigInteger())]
    return sa.Table(name, sa.MetaData(), *columns, schema=namespace, **options)
