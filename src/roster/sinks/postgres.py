"""Tables of PostgreSQL: a `DatabaseSink` whose tasks send rows by COPY."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from typing_extensions import override

from roster.pipeline.errors import PipelineError
from roster.sinks.database import DatabaseSink

if TYPE_CHECKING or find_spec("sqlalchemy") is not None:
    import sqlalchemy as sa

    from roster.sinks.tasks.sql_engine import PATIENCE


class PostgresSink(DatabaseSink):
    """Writes rows to a table of PostgreSQL, exactly once; tasks send them as Arrow columns by binary COPY.

    `url` is libpq's, for example "postgresql://user:password@host/shop?sslmode=verify-full". All else is as for
    `DatabaseSink`. Arrays, maps and structs become jsonb. Tables of staging are unlogged.

    Needs the extra `postgres`, in the tasks too.
    """

    name = "PostgresSink"
    _extra, _modules = "postgres", ["sqlalchemy", "psycopg", "adbc_driver_postgresql"]
    _example = "postgresql://user:password@host/shop"

    @override
    def _parsed(self, url: str) -> sa.URL:
        text = url.render_as_string(hide_password=False) if isinstance(url, sa.URL) else str(url)
        scheme, mark, rest = text.partition("://")
        is_ours = mark and scheme in ("postgresql", "postgres", "postgresql+psycopg")
        return super()._parsed(f"postgresql+psycopg://{rest}" if is_ours else url)

    @override
    def _check_backend(self, url: sa.URL) -> None:
        if url.drivername != "postgresql+psycopg":
            raise PipelineError(
                f"{url.drivername} is not PostgreSQL", field="url", fix=f"For example {self._example}, or DatabaseSink"
            )

    @override
    def _of_tasks(self) -> sa.URL:
        more = {key: value for key, value in PATIENCE.items() if key not in self._url.query}
        return self._url.set(drivername="postgresql").update_query_dict(more)
