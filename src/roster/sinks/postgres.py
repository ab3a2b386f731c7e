"""Tables of PostgreSQL: tasks fill staging, and one transaction moves its rows and the positions."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import override

from roster._extras import missing_error
from roster.model import TopicPartition
from roster.model.topology import repeated
from roster.pipeline.batch import Batch
from roster.pipeline.errors import PipelineError, RefusedRowsError, SinkFencedError
from roster.pipeline.spark_types import DataFrame, SparkSession, StructType
from roster.pipeline.tasks.writer import Writer
from roster.sinks.positions import PositionedSink
from roster.sinks.tasks import postgres as writing
from roster.sinks.tasks.postgres import PATIENCE, STAGING, DatabaseWriter, Server, Staged, unknown_record
from roster.sinks.tasks.sql_columns import quoted, staging_table

if TYPE_CHECKING or find_spec("psycopg") is not None:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from roster.sinks import postgres_tables as tables

log = logging.getLogger("roster.pipeline")

_ORPHAN_SECONDS = 3600
"""Age after which staging of any application is dropped."""
_TIDYING_SECONDS = 300
_MODULES, _EXAMPLE = ["psycopg", "adbc_driver_postgresql"], "postgresql://user:password@host/shop"
_LONGEST_NAME = 63
_SHOWN = ("user", "host", "hostaddr", "port", "dbname", "service", "sslmode")
"""Parameters of a URL that messages show; others may be secrets."""

Result = TypeVar("Result")


class _Written(NamedTuple):
    """Rows of a batch that are in staging."""

    into: tables.Layout
    staged: Sequence[Staged]


class _RefusalError(PipelineError):
    """The table refuses a row."""


class PostgresSink(PositionedSink):
    """Writes rows to a table of PostgreSQL, exactly once; tasks send them as Arrow columns by binary COPY.

    `url` is libpq's, for example "postgresql://user:password@host/shop?sslmode=verify-full". `table` is a name, or
    "schema.name"; it is created by the first batch if it is missing. Arrays, maps and structs become jsonb.

    `mode` "append" adds all rows. "upsert" keeps one row for each value of `keys`: a later row replaces an earlier one,
    and results that a stateful pipeline takes back are deleted. By default the results' own keys are used.

    Tasks write to unlogged tables named `roster_staging_…` beside it. One transaction on the driver moves their rows,
    and the positions in the table `roster_positions`. The user of `url` must be allowed to create tables there.

    A database that is away is waited for `timeout_ms` milliseconds, at start as long as for a broker.

    Needs the extra `postgres`, in the tasks too. Raises MissingExtraError without it, and PipelineError for an argument
    that is not valid. A run fails with PipelineError if the database cannot be reached, a table that exists does not
    have the columns of the rows, or it refuses a row.
    """

    name = "PostgresSink"

    def __init__(
        self, url: str, table: str, *, mode: str = "append", keys: str | Sequence[str] = (), timeout_ms: int = 120_000
    ) -> None:
        super().__init__(mode, keys)
        if missing := [module for module in _MODULES if find_spec(module) is None]:
            raise missing_error(self.name, "postgres", missing)
        self._parameters = _parsed(url)
        shown = {name: value for name, value in self._parameters.items() if name in _SHOWN}
        self._shown = make_conninfo("", **shown)
        namespace, _, self._table = str(table or "").rpartition(".")
        self._namespace = namespace or None
        if not self._table:
            raise PipelineError("no table given", field="table", fix="For example 'orders' or 'shop.orders'")
        if not isinstance(timeout_ms, int) or timeout_ms < 1:
            problem = f"{timeout_ms!r} is not a number of milliseconds"
            raise PipelineError(problem, field="timeout_ms", fix="Use 1 or more")
        self._timeout = self._patience = timeout_ms / 1000
        self._run = uuid.uuid4().hex[:8]
        self._opened: psycopg.Connection | None = None
        self._known: tuple[StructType, tables.Layout] | None = None
        self._has_created = False
        self._tidied = time.monotonic()

    @property
    def _server(self) -> Server:
        address = make_conninfo("", **PATIENCE | self._parameters)
        secrets = tuple(str(value) for name, value in self._parameters.items() if "pass" in name)
        return Server(address, self._shown, self._patience, secrets)

    @property
    def _connection(self) -> psycopg.Connection:
        if self._opened is not None:
            with contextlib.suppress(psycopg.Error):
                return tables.run(self._opened, "").connection  # it is there still
            self._opened.close()
        self._opened = connection = psycopg.connect(self._server.address, autocommit=True)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        for name in ("lock_timeout", "idle_in_transaction_session_timeout"):
            tables.run(connection, f"set {name} = '{writing.LOCK_SECONDS}s'")
        return connection

    def _transact(self, work: Callable[[psycopg.Connection], Result]) -> Result:
        """Return what `work` does in a transaction, which is waited for. Raises PipelineError."""

        def attempt() -> Result:
            connection = self._connection
            with connection.transaction():
                return work(connection)

        try:
            return self._server.patiently(attempt)
        except psycopg.Error as error:
            problem = f"{self._shown}: {self._server.error_text(error)}"
            if self._server.is_of_a_row(error):
                raise _RefusalError(f"{problem}{unknown_record(self._dead_letters)}") from None
            fix = "Check url, table and columns, and what the user may do in the database"
            raise PipelineError(problem, field=self.name, fix=fix) from None

    @override
    def open(self, spark: SparkSession, group: str, timeout_ms: int = 60_000) -> None:
        self._patience = timeout_ms / 1000
        try:
            super().open(spark, group, timeout_ms)
        finally:
            self._patience = self._timeout
        self._tidy()

    def _positions(self, group: str) -> tables.PositionsTable:
        return tables.PositionsTable(self._namespace, self._table, group)

    def _has(self, table: str) -> bool:
        return self._transact(lambda connection: tables.is_there(connection, table))

    def _create(self, made: tables.PositionsTable | tables.Layout) -> None:
        """Create a table if it is missing; another application may do so at the same moment."""
        try:
            if not self._has(made.name):
                self._transact(lambda connection: tables.run(connection, made.statement))
        except PipelineError:
            if not self._has(made.name):
                raise

    @override
    def positions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        of_group = self._positions(group)
        if not self._has(of_group.name):
            return {}
        positions = self._transact(lambda connection: of_group.read(connection, partitions))
        return {partition: position for partition, (position, _) in positions.items()}

    @override
    def check(self, schema: StructType) -> None:
        self._checked(schema)

    def _checked(self, schema: StructType) -> tables.Layout:
        """Return the table that rows with these columns need. Raise PipelineError for what no table has."""
        self._check_keys(schema)
        if twice := repeated(schema.names):
            problem = f"there are two columns {twice[0]!r}"
            raise PipelineError(problem, field="write", fix="Give each a name of its own")
        if "" in schema.names:
            raise PipelineError("a column has no name", field="write", fix="Give it one")
        for name in (self._table, *schema.names):
            if len(name.encode()) > _LONGEST_NAME:
                problem = f"the name {name!r} has more than {_LONGEST_NAME} bytes"
                raise PipelineError(problem, field="write", fix="Shorten it")
        keys = self._keys if self._is_upsert else ()
        is_numbered = self._dead_letters == ""
        return tables.layout(self._table, self._namespace, schema, keys, is_numbered=is_numbered)

    def _layout(self, schema: StructType, *, creates: bool) -> tables.Layout:
        """Return the table for rows with these columns. Raise PipelineError if it has others, or may not be written."""
        if self._known is not None and self._known[0] == schema and (self._has_created or not creates):
            return self._known[1]
        wanted = self._checked(schema)
        if creates:
            self._create(self._positions(""))
            self._create(wanted)
        limits = self._transact(lambda connection: tables.check_existing(connection, wanted, schema, self.name))
        if not creates:
            self._rehearse(wanted, is_there=limits is not None)
        wanted = replace(wanted, limits=limits or {})
        self._known, self._has_created = (schema, wanted), creates
        return wanted

    def _rehearse(self, wanted: tables.Layout, *, is_there: bool) -> None:
        """Do what a batch without rows does, and take it back. Raise PipelineError if the user may not do it."""
        token = uuid.uuid4().hex
        staged, nowhere = Staged(f"{self._prefix}{token[:16]}", 0, deletes=1, nulls=1), TopicPartition("", 0)
        positions = self._positions(token)
        has_positions = self._has(positions.name)

        def attempt(connection: psycopg.Connection) -> None:
            staging = wanted.staging(staged)
            make = staging_table(staging, wanted.schema, wanted.keys, is_numbered=wanted.is_numbered)
            for statement in (make, *(wanted.moves([staged]) if is_there else ())):
                tables.run(connection, statement)
            for known in ((), (nowhere,)) if has_positions else ():
                positions.store(connection, {nowhere: 0}, token, known)
            raise psycopg.Rollback

        self._transact(attempt)

    @property
    def _prefix(self) -> str:
        """What the names of staging begin with that is made now."""
        return f"{STAGING}{int(time.time()):08x}_{self._run}_"

    @override
    def warm_up(self, df: DataFrame) -> None:
        self._layout(df.schema, creates=False)
        super().warm_up(df)

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> DatabaseWriter:
        into = self._layout(schema, creates=batch is not None)
        where = self._namespace, self._prefix
        return DatabaseWriter(self._server, into.schema, into.keys, *where, self._dead_letters, into.limits)

    @override
    def collect(self, writer: Writer, results: Sequence[Staged | None], batch: Batch) -> _Written:
        assert self._known is not None  # task_writer has found it
        staged = [attempt._replace(task=task) for task, attempt in enumerate(results) if attempt is not None]
        return _Written(self._known[1], staged)

    @override
    def commit(self, written: _Written, batch: Batch) -> None:
        token = uuid.uuid4().hex
        try:
            refused: Mapping[int, Mapping[int, str]] = {
                staged.task: staged.refused for staged in written.staged if staged.refused
            }
            if refused:
                raise RefusedRowsError(refused, self.name)
            self._transact(lambda connection: self._move(connection, token, written, batch))
        except _RefusalError as error:
            sets_aside = self._dead_letters == ""
            refused = self._transact(lambda connection: self._refused(connection, written)) if sets_aside else {}
            self.abort(written, batch)
            if not refused:
                raise self._refusal(f"`{self._table}`", f", {error}", batch, "the column or constraint") from None
            raise RefusedRowsError(refused, self.name) from None
        except (SinkFencedError, RefusedRowsError):
            self.abort(written, batch)
            raise
        self._starts.update(batch.next_offsets)
        if time.monotonic() - self._tidied > _TIDYING_SECONDS:
            self._tidy()

    def _move(self, connection: psycopg.Connection, token: str, written: _Written, batch: Batch) -> None:
        """Move the rows and the positions, unless an earlier attempt, whose answer was lost, has done so."""
        table = self._positions(batch.owner.group)
        positions = table.read(connection, batch.ranges, lock=True)
        if positions and all(commit == token for _, commit in positions.values()):
            return
        self._fence({partition: position for partition, (position, _) in positions.items()}, batch)
        try:
            table.store(connection, batch.next_offsets, token, positions)
        except psycopg.errors.UniqueViolation as error:
            problem = f"another writer has just begun one of {', '.join(map(str, sorted(batch.ranges)))}"
            raise SinkFencedError(f"{problem}; the batch's results were dropped", field=self.name) from error
        if not written.staged:
            return
        self._check_staged(connection, written)
        drops = [f"drop table {written.into.staging(staged)}" for staged in written.staged]
        for statement in (*written.into.moves(written.staged), *drops):
            tables.run(connection, statement)

    def _check_staged(self, connection: psycopg.Connection, written: _Written) -> None:
        if lost := written.into.lost(connection, written.staged):
            raise SinkFencedError(f"{lost} lost its rows; the batch is read again", field=self.name)

    def _refused(self, connection: psycopg.Connection, written: _Written) -> dict[int, dict[int, str]]:
        self._check_staged(connection, written)
        return written.into.refused(connection, written.staged, self._server)

    @override
    def abort(self, written: _Written | None, batch: Batch) -> None:
        self._drop([staged.name for staged in written.staged] if written else [])

    def _drop(self, names: Sequence[str]) -> None:
        """Drop staging tables; those that cannot be dropped now are dropped later."""
        for name in names:
            try:
                tables.run(self._connection, f"drop table if exists {quoted(self._namespace, name)}")
            except psycopg.Error as error:
                log.debug("%s stays for now: %s", name, self._server.error_text(error))

    def _tidy(self) -> None:
        """Drop staging of killed tasks: of this run, in which none works now, and what is old of others."""
        self._tidied = time.monotonic()
        query = "select tablename from pg_tables where schemaname = coalesce(%s, current_schema())"
        with contextlib.suppress(psycopg.Error):
            names = [name for (name,) in tables.run(self._connection, query, [self._namespace])]
            self._drop([name for name in names if name.startswith(STAGING) and self._is_orphan(name)])

    def _is_orphan(self, name: str) -> bool:
        created_at, _, rest = name.removeprefix(STAGING).partition("_")
        try:
            return rest.startswith(self._run) or time.time() - int(created_at, 16) > _ORPHAN_SECONDS
        except ValueError:
            return False  # it only has a name like one

    @override
    def close(self) -> None:
        super().close()
        if self._opened is not None:
            self._tidy()
        if self._opened is not None:
            self._opened.close()
        self._opened = self._known = None


def _parsed(url: str) -> dict[str, Any]:
    """Return libpq's parameters. Raise PipelineError, which does not repeat the URL, if it is none of PostgreSQL."""
    scheme, mark, _ = url.partition("://")
    if mark and scheme not in ("postgresql", "postgres"):
        fix = f"For example {_EXAMPLE}; foreach_batch writes to any other database"
        raise PipelineError(f"{scheme} is not PostgreSQL", field="url", fix=fix)
    try:
        parameters = conninfo_to_dict(url) if mark else None
    except psycopg.ProgrammingError:
        parameters = None
    if parameters is None:
        raise PipelineError("it is not a URL of a database", field="url", fix=f"For example {_EXAMPLE}")
    if not all(port.isdecimal() for port in str(parameters.get("port", 0)).split(",")):
        fix = "Write /, @ and : of a user or password as %2F, %40 and %3A"
        raise PipelineError("the port is not a number", field="url", fix=fix)
    return parameters
