"""Tables of a `PostgresSink`: the one it fills, the positions, and staging; and the statements that move rows."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import ReflectedColumn

from roster.model import TopicPartition
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.spark_types import StructType
from roster.sinks.tasks.postgres import Server, Staged
from roster.sinks.tasks.sql_columns import column_type, fits, is_folding, limit_of, staging_table
from roster.sinks.tasks.sql_values import DELETED, ROW, Limit
from roster.state.bad_rows import bad_rows

POSITIONS = "roster_positions"
"""The table of positions, beside the tables that they are of."""


class PositionsTable:
    """The next offset of each partition that a group has written to a table, and the id of the last commit."""

    def __init__(self, namespace: str | None, of_table: str, group: str) -> None:
        self.table = sa.Table(
            POSITIONS,
            sa.MetaData(),
            sa.Column("table_name", sa.String(64), primary_key=True),
            sa.Column("consumer_group", sa.Text(), primary_key=True),
            sa.Column("topic", sa.Text(), primary_key=True),
            sa.Column("part", sa.Integer(), primary_key=True, autoincrement=False),
            sa.Column("next_offset", sa.BigInteger(), nullable=False),
            sa.Column("commit_id", sa.String(32), nullable=False),
            schema=namespace,
        )
        self._row = {"table_name": of_table, "consumer_group": group}
        self._is_its = [self.table.c[name] == value for name, value in self._row.items()]

    def read(
        self, connection: sa.Connection, partitions: Collection[TopicPartition], *, lock: bool = False
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return position and last commit of each partition that has one; with `lock` no other one changes them."""
        columns = self.table.c
        topics = {p.topic: [q.partition for q in partitions if q.topic == p.topic] for p in partitions}
        query = (
            sa.select(columns.topic, columns.part, columns.next_offset, columns.commit_id)
            .where(*self._is_its)
            .where(
                sa.or_(
                    sa.false(), *(sa.and_(columns.topic == t, columns.part.in_(parts)) for t, parts in topics.items())
                )
            )
            .order_by(columns.topic, columns.part)
        )
        rows = connection.execute(query.with_for_update() if lock else query)
        return {TopicPartition(topic, part): (offset, commit) for topic, part, offset, commit in rows}

    def store(
        self,
        connection: sa.Connection,
        ends: Mapping[TopicPartition, int],
        token: str,
        known: Collection[TopicPartition],
    ) -> None:
        """Store new positions, of partitions that are `known` and others. Raises IntegrityError if these are, too."""
        columns = self.table.c
        ordered = sorted(ends.items())
        if moved := [{"of_topic": p.topic, "of_part": p.partition, "end": end} for p, end in ordered if p in known]:
            update = self.table.update().values(next_offset=sa.bindparam("end"), commit_id=token).where(*self._is_its)
            is_of = columns.topic == sa.bindparam("of_topic"), columns.part == sa.bindparam("of_part")
            connection.execute(update.where(*is_of), moved)
        if first := [{"topic": p.topic, "part": p.partition, "next_offset": n} for p, n in ordered if p not in known]:
            connection.execute(self.table.insert().values(**self._row, commit_id=token), first)


@dataclass(frozen=True)
class Layout:
    """A table and the rows that go into it."""

    table: sa.Table
    """With the columns of the rows only."""
    schema: pa.Schema
    keys: tuple[str, ...]
    is_numbered: bool
    """Whether staging has the numbers of rows."""
    limits: Mapping[str, Limit]
    """What columns of the table would change."""

    def staging(self, staged: Sequence[Staged]) -> list[sa.Table]:
        """Return the staging tables of some attempts."""
        more = self.table.schema, self.schema, self.keys
        return [staging_table(attempt.name, *more, is_numbered=self.is_numbered) for attempt in staged]

    def lost(self, connection: sa.Connection, staged: Sequence[Staged]) -> str:
        """Return a staging table without its rows, "" if there is none: a crash empties those without a log."""
        inspector = sa.inspect(connection)
        for attempt in staged:
            if not inspector.has_table(attempt.name, self.table.schema):
                return attempt.name
        rows = (sa.select(sa.func.count()).select_from(table).scalar_subquery() for table in self.staging(staged))
        counts = connection.execute(sa.select(*rows)).one()
        return next((attempt.name for attempt, count in zip(staged, counts, strict=True) if count != attempt.rows), "")

    def moves(self, staged: Sequence[Staged], only: tuple[int, int, int] | None = None) -> Sequence[sa.Executable]:
        """Return the statements that move the rows of staging, in the order of the tasks, into the table.

        only: of one task, by its index, the rows from a number up to before another one.
        """
        number = None if only is None else only[0]

        def selected(rows: sa.FromClause) -> Any:
            select = sa.select(*self._values(rows))
            return select if only is None else select.where(rows.c[ROW] >= only[1], rows.c[ROW] < only[2])

        if not self.keys:
            tables = enumerate(self.staging(staged))
            rows = [selected(table) for index, table in tables if number in (None, index)]
            return [self._inserting(self.table.insert(), select) for select in rows]
        last = self._last_of_keys(staged)
        rows_of_keys = selected(last).where(last.c[DELETED].is_(sa.false()))
        rows_of_keys = rows_of_keys if number is None else rows_of_keys.where(last.c.task == number)
        statements: list[sa.Executable] = []
        if any(attempt.deletes for attempt in staged):
            statements.append(self._delete(self._is_same(last, nulls=False) & last.c[DELETED].is_(sa.true())))
        if any(attempt.nulls for attempt in staged):
            has_null = sa.or_(*(last.c[name].is_(None) for name in self.keys))
            statements.append(self._delete(self._is_same(last, nulls=True) & has_null))
        return [*statements, self._replacing(self._inserting(postgresql.insert(self.table), rows_of_keys))]

    def refused(self, connection: sa.Connection, staged: Sequence[Staged], server: Server) -> dict[int, dict[int, str]]:
        """Return why the table refuses rows of staging, by task and number; none is moved."""
        refused: dict[int, dict[int, str]] = {}
        trial = connection.begin_nested()
        connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))

        def attempt(index: int, begin: int, end: int) -> Exception | None:
            try:
                with connection.begin_nested():
                    for statement in self.moves(staged, (index, begin, end)):
                        connection.execute(statement)
            except sa.exc.DBAPIError as error:
                if not server.is_of_a_row(error):
                    raise
                return error
            return None

        for index, of_task in enumerate(staged):
            if bad := bad_rows(of_task.numbered, functools.partial(attempt, index)):
                refused[of_task.task] = {row: server.error_text(error) for row, error in bad.items()}
        trial.rollback()
        return refused

    def _inserting(self, insert: Any, rows: sa.SelectBase) -> Any:
        """Return the INSERT of the rows that a query finds."""
        return insert.from_select(self.schema.names, rows)

    def _values(self, rows: sa.FromClause) -> list[sa.ColumnElement[object]]:
        """Return the columns of staging as the table's; JSON came as text."""
        return [
            sa.cast(rows.c[field.name], self.table.c[field.name].type)
            if pa.types.is_nested(field.type)
            else rows.c[field.name]
            for field in self.schema
        ]

    def _last_of_keys(self, staged: Sequence[Staged]) -> sa.Subquery:
        """Return the query for the last row of each key: of the last task, and there the last one."""
        tables = enumerate(self.staging(staged))
        rows = sa.union_all(
            *(sa.select(*table.c, sa.literal_column(str(number)).label("task")) for number, table in tables)
        ).subquery("staged")
        order = (rows.c.task.desc(), rows.c[ROW].desc())
        rank = sa.func.row_number().over(partition_by=[rows.c[name] for name in self.keys], order_by=order)
        ranked = sa.select(*rows.c, rank.label("roster_rank")).subquery("ranked")
        return sa.select(ranked).where(ranked.c.roster_rank == 1).subquery("last_rows")

    def _is_same(self, last: sa.Subquery, *, nulls: bool) -> sa.ColumnElement[bool]:
        """Return the condition that keys are equal; `nulls` are equal too, but no index finds these."""
        pairs = [(self.table.c[name], last.c[name]) for name in self.keys]
        return sa.and_(*(mine.is_not_distinct_from(other) if nulls else mine == other for mine, other in pairs))

    def _delete(self, which: sa.ColumnElement[bool]) -> sa.Delete:
        return self.table.delete().where(sa.exists(sa.literal_column("1")).where(which))

    def _replacing(self, insert: Any) -> Any:
        """Return the INSERT that replaces the row of a key that is there."""
        others = [name for name in self.schema.names if name not in self.keys]
        if not others:
            return insert.on_conflict_do_nothing(index_elements=list(self.keys))
        values = {name: insert.excluded[name] for name in others}
        return insert.on_conflict_do_update(index_elements=list(self.keys), set_=values)


def layout(table: str, namespace: str | None, columns: StructType, keys: Sequence[str], *, is_numbered: bool) -> Layout:
    """Return the table that rows with these columns would be written to if it had to be created.

    Raises PipelineError that lists the columns of types that the database has no counterpart of.
    """
    schema, unknown, columns_made = arrow_schema(columns), [], []
    for field, column in zip(schema, columns.fields, strict=True):
        kind = column_type(field.type)
        if kind is None or column.dataType.typeName() in ("variant", "void"):
            unknown.append(f"`{field.name}` is {column.dataType.simpleString()}")
            continue
        columns_made.append(sa.Column(field.name, kind))
    if unknown:
        raise PipelineError(
            f"no column of the database holds {', '.join(unknown)}", field="write", fix="Convert it, or leave it out"
        )
    if taken := [name for name in (ROW, DELETED) if name in schema.names]:
        raise PipelineError(f"`{taken[0]}` is a column of staging", field="write", fix="Name it differently")
    unique = [sa.UniqueConstraint(*keys)] if keys else []
    into = sa.Table(table, sa.MetaData(), *columns_made, *unique, schema=namespace)
    return Layout(into, schema, tuple(keys), is_numbered or bool(keys), {})


def check_existing(
    connection: sa.Connection, wanted: Layout, columns: StructType, name: str
) -> dict[str, Limit] | None:
    """Return what columns of the table would change, None if it is missing.

    Raises PipelineError, of the sink `name`, with all reasons not to write to it.
    """
    inspector, table, problems, there = sa.inspect(connection), wanted.table, list[str](), None
    if inspector.has_table(table.name, table.schema):
        with warnings.catch_warnings(action="ignore"):  # of types that SQLAlchemy does not know
            there = {column["name"]: column for column in inspector.get_columns(table.name, table.schema)}
        problems += _differences(connection, wanted, columns, there)
    if problems:
        fix = "Change rows or table, or write to another table"
        raise PipelineError(f"the rows do not fit {table.fullname}: {'; '.join(problems)}", field=name, fix=fix)
    if there is None:
        return None
    limits = {name: limit_of(there[name]["type"]) for name in wanted.schema.names}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _differences(
    connection: sa.Connection, wanted: Layout, columns: StructType, given: Mapping[str, ReflectedColumn]
) -> list[str]:
    problems = []
    for field, column in zip(wanted.schema, columns.fields, strict=True):
        text = column.dataType.simpleString()
        if (there := given.get(field.name)) is None:
            problems.append(f"`{field.name}` ({text}) is none of the table's columns")
        elif there.get("computed") is not None or ((identity := there.get("identity")) and identity["always"]):
            problems.append(f"`{field.name}` is computed by the table")
        elif not fits(field.type, kind := there["type"]):
            is_known = not isinstance(kind, sa.types.NullType)
            other = kind.compile(connection.dialect) if is_known else "of a type that SQLAlchemy does not know"
            other = 'name or "char"' if type(kind) is sa.String else other
            problems.append(f"`{field.name}` is {text}, and {other} in the table")
        elif field.name in wanted.keys and is_folding(kind):
            problems.append(_folded(field.name, kind.compile(connection.dialect), "text"))
    left = [name for name in given if name not in wanted.schema.names and _is_needed(given[name])]
    problems += [f"the rows have no `{name}`, which must not be null" for name in left]
    return [*problems, *(_index_problems(connection, wanted) if wanted.keys else ())]


def _is_needed(column: ReflectedColumn) -> bool:
    has_value = column.get("default") is not None or column.get("identity") or column.get("computed")
    return not (column["nullable"] or has_value or column.get("autoincrement") is True)


def _index_problems(connection: sa.Connection, wanted: Layout) -> list[str]:
    """Return what is wrong with the unique indexes: an upsert looks into all that are of exactly the keys."""
    query = (
        "select i.relname, x.indimmediate, a.attname, c.collname from pg_index x"
        " join pg_class i on i.oid = x.indexrelid cross join lateral generate_series(0, x.indnkeyatts - 1) n"
        " join pg_attribute a on a.attrelid = x.indrelid and a.attnum = x.indkey[n]"
        " left join pg_collation c on c.oid in (x.indcollation[n], a.attcollation) and not c.collisdeterministic"
        " where x.indrelid = cast(:full as regclass) and x.indisunique and x.indisvalid"
        " and x.indpred is null and x.indexprs is null"
    )
    full = connection.dialect.identifier_preparer.format_table(wanted.table)
    indexes: dict[str, list[Any]] = {}
    for index, *column in connection.execute(sa.text(query), {"full": full}):
        indexes.setdefault(index, []).append(column)
    of_keys = {name: parts for name, parts in indexes.items() if {part[1] for part in parts} == set(wanted.keys)}
    deferrable = [name for name, parts in of_keys.items() if not parts[0][0]]
    folded = {(column, collation) for parts in of_keys.values() for _, column, collation in parts if collation}
    return [
        *([] if of_keys else [f"the table has no unique constraint of exactly {', '.join(wanted.keys)}"]),
        *(f"the unique constraint `{name}` is deferrable, which no upsert can use" for name in deferrable),
        *(_folded(column, collation, "a deterministic one") for column, collation in sorted(folded)),
    ]


def _folded(column: str, comparison: str, exact: str) -> str:
    return f"the key `{column}` is compared as {comparison}, for which different texts are the same; use {exact}"
