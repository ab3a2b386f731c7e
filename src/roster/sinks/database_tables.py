"""Tables of a database sink: the one it fills, the positions, and staging; and the statements that move rows."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine.interfaces import ReflectedColumn

from roster.model import TopicPartition
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.spark_types import StructType
from roster.sinks.tasks.database import Server, Staged
from roster.sinks.tasks.sql_columns import (
    EXACT_COLLATIONS,
    MYSQL,
    TRANSACTIONAL,
    column_type,
    fits,
    is_folding,
    limit_of,
    staging_table,
)
from roster.sinks.tasks.sql_values import DELETED, ROW, Limit
from roster.state.bad_rows import bad_rows

POSITIONS = "roster_positions"
"""The table of positions, beside the tables that they are of."""
_UPSERTS: Mapping[str, Any] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
    "mysql": mysql.insert,
    "mariadb": mysql.insert,
}


class PositionsTable:
    """The next offset of each partition that a group has written to a table, and the id of the last commit."""

    def __init__(self, dialect: str, namespace: str | None, of_table: str, group: str) -> None:
        text: sa.types.TypeEngine[str] = sa.Text()
        name: sa.types.TypeEngine[str] = sa.String(64)
        if dialect in MYSQL:
            text, name = (mysql.VARCHAR(size, collation=EXACT_COLLATIONS[dialect]) for size in (249, 64))
        elif dialect not in ("postgresql", "sqlite"):
            text = sa.String(249)
        self.table = sa.Table(
            POSITIONS,
            sa.MetaData(),
            sa.Column("table_name", name, primary_key=True),
            sa.Column("consumer_group", text, primary_key=True),
            sa.Column("topic", text, primary_key=True),
            sa.Column("part", sa.Integer(), primary_key=True, autoincrement=False),
            sa.Column("next_offset", sa.BigInteger(), nullable=False),
            sa.Column("commit_id", sa.String(32), nullable=False),
            schema=namespace,
            **TRANSACTIONAL,
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
    dialect: str
    is_numbered: bool
    """Whether staging has the numbers of rows."""
    limits: Mapping[str, Limit]
    """What columns of the table would change."""

    def staging(self, staged: Sequence[Staged]) -> list[sa.Table]:
        """Return the staging tables of some attempts."""
        more = self.table.schema, self.schema, self.dialect, self.keys
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
        if (insert := _UPSERTS.get(self.dialect)) is None:
            is_same = self._is_same(last, nulls=True)
            return [self._delete(is_same), self._inserting(self.table.insert(), rows_of_keys)]
        statements: list[sa.Executable] = []
        if any(attempt.deletes for attempt in staged):
            statements.append(self._delete(self._is_same(last, nulls=False) & last.c[DELETED].is_(sa.true())))
        if any(attempt.nulls for attempt in staged):
            has_null = sa.or_(*(last.c[name].is_(None) for name in self.keys))
            statements.append(self._delete(self._is_same(last, nulls=True) & has_null))
        return [*statements, self._replacing(self._inserting(insert(self.table), rows_of_keys))]

    def refused(self, connection: sa.Connection, staged: Sequence[Staged], server: Server) -> dict[int, dict[int, str]]:
        """Return why the table refuses rows of staging, by task and number; none is moved."""
        refused: dict[int, dict[int, str]] = {}
        trial = connection.begin_nested()
        if self.dialect == "postgresql":
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

    def _inserting(self, insert: sa.Insert, rows: sa.SelectBase) -> sa.Insert:
        """Return the INSERT of the rows that a query finds."""
        # SQLite's tables may ask to ignore what breaks a constraint, or to replace it.
        return insert.prefix_with("OR ABORT", dialect="sqlite").from_select(self.schema.names, rows)

    def _values(self, rows: sa.FromClause) -> list[sa.ColumnElement[object]]:
        """Return the columns of staging as the table's; JSON came as text."""
        return [
            sa.cast(rows.c[field.name], self.table.c[field.name].type)
            if pa.types.is_nested(field.type) and self.dialect == "postgresql"
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
        if self.dialect in MYSQL:
            return insert.on_duplicate_key_update({name: insert.inserted[name] for name in others or self.keys})
        if not others:
            return insert.on_conflict_do_nothing(index_elements=list(self.keys))
        values = {name: insert.excluded[name] for name in others}
        return insert.on_conflict_do_update(index_elements=list(self.keys), set_=values)


def layout(
    table: str, namespace: str | None, columns: StructType, keys: Sequence[str], dialect: str, *, is_numbered: bool
) -> Layout:
    """Return the table that rows with these columns would be written to if it had to be created.

    Raises PipelineError that lists the columns of types that the database has no counterpart of.
    """
    schema, unknown, columns_made = arrow_schema(columns), [], []
    for field, column in zip(schema, columns.fields, strict=True):
        kind = column_type(field.type, dialect, len(keys) if field.name in keys else 0)
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
    into = sa.Table(table, sa.MetaData(), *columns_made, *unique, schema=namespace, **TRANSACTIONAL)
    return Layout(into, schema, tuple(keys), dialect, is_numbered or bool(keys), {})


def check_existing(
    connection: sa.Connection, wanted: Layout, columns: StructType, name: str
) -> dict[str, Limit] | None:
    """Return what columns of the table would change, None if it is missing.

    Raises PipelineError, of the sink `name`, with all reasons not to write to it.
    """
    inspector, table, problems, there = sa.inspect(connection), wanted.table, _engines(connection, wanted), None
    if inspector.has_table(table.name, table.schema):
        with warnings.catch_warnings(action="ignore"):  # of types that SQLAlchemy does not know
            there = {column["name"]: column for column in inspector.get_columns(table.name, table.schema)}
        problems += _differences(connection, inspector, wanted, columns, there)
    if problems:
        fix = "Change rows or table, or write to another table"
        raise PipelineError(f"the rows do not fit {table.fullname}: {'; '.join(problems)}", field=name, fix=fix)
    return None if there is None else _limits(connection, wanted, there)


def _limits(connection: sa.Connection, wanted: Layout, there: Mapping[str, ReflectedColumn]) -> dict[str, Limit]:
    is_mysql, numbered = wanted.dialect in MYSQL, set[str]()
    if wanted.dialect == "sqlite":
        numbered = {name for (name,) in _queried(connection, _ROW_NUMBERS, wanted)}
    limits = {
        name: limit_of(
            there[name]["type"],
            wanted.dialect,
            len(wanted.keys) if name in wanted.keys else 0,
            is_numbered=name in numbered or (is_mysql and there[name].get("autoincrement") is True),
        )
        for name in wanted.schema.names
    }
    return {name: limit for name, limit in limits.items() if limit is not None}


def _differences(
    connection: sa.Connection,
    inspector: sa.Inspector,
    wanted: Layout,
    columns: StructType,
    given: Mapping[str, ReflectedColumn],
) -> list[str]:
    problems, exact = [], "varchar or varbinary" if wanted.dialect in MYSQL else "text"
    for field, column in zip(wanted.schema, columns.fields, strict=True):
        text = column.dataType.simpleString()
        if (there := given.get(field.name)) is None:
            problems.append(f"`{field.name}` ({text}) is none of the table's columns")
        elif there.get("computed") is not None or ((identity := there.get("identity")) and identity["always"]):
            problems.append(f"`{field.name}` is computed by the table")
        elif not fits(field.type, kind := there["type"], wanted.dialect):
            is_known = not isinstance(kind, sa.types.NullType)
            other = kind.compile(connection.dialect) if is_known else "of a type that SQLAlchemy does not know"
            other = 'name or "char"' if type(kind) is sa.String else other
            problems.append(f"`{field.name}` is {text}, and {other} in the table")
        elif field.name in wanted.keys and is_folding(kind, wanted.dialect):
            problems.append(_folded(field.name, kind.compile(connection.dialect), exact))
    left = [name for name in given if name not in wanted.schema.names and _is_needed(given[name])]
    problems += [f"the rows have no `{name}`, which must not be null" for name in left]
    if wanted.keys:
        by_catalog = {**dict.fromkeys(MYSQL, _indexes), "postgresql": _arbiters}.get(wanted.dialect)
        problems += by_catalog(connection, wanted) if by_catalog else _missing_index(inspector, wanted)
        problems += _collations(connection, wanted)
    return problems


def _is_needed(column: ReflectedColumn) -> bool:
    has_value = column.get("default") is not None or column.get("identity") or column.get("computed")
    return not (column["nullable"] or has_value or column.get("autoincrement") is True)


def _missing_index(inspector: sa.Inspector, wanted: Layout) -> list[str]:
    where = wanted.table.name, wanted.table.schema
    indexes = [inspector.get_pk_constraint(*where)["constrained_columns"]]
    indexes += [index["column_names"] for index in inspector.get_unique_constraints(*where)]
    # SQLite's dialect only finds a constraint behind a column's type so.
    automatic: dict[str, Any] = {"include_auto_indexes": True} if inspector.dialect.name == "sqlite" else {}
    indexes += [
        [name or "" for name in index["column_names"]]  # an expression has none
        for index in inspector.get_indexes(*where, **automatic)
        if index["unique"] and not any(name.endswith("_where") for name in index.get("dialect_options") or {})
    ]
    return [] if any(set(names) == set(wanted.keys) for names in indexes) else [_no_index(wanted)]


def _no_index(wanted: Layout) -> str:
    return f"the table has no unique constraint of exactly {', '.join(wanted.keys)}"


def _queried(connection: sa.Connection, query: str, wanted: Layout) -> Sequence[Any]:
    """Return what `query` finds of a table `:name` in the schema `:here`, or `:full`."""
    here = {"sqlite": "coalesce(:namespace, 'main')"}.get(wanted.dialect, "coalesce(:namespace, database())")
    full = connection.dialect.identifier_preparer.format_table(wanted.table)
    values = {"namespace": wanted.table.schema, "name": wanted.table.name, "positions": POSITIONS, "full": full}
    query = query.replace(":here", here)
    used = {name: value for name, value in values.items() if f":{name}" in query}
    return connection.execute(sa.text(query), used).all()


def _by_index(connection: sa.Connection, query: str, wanted: Layout) -> dict[str, list[Any]]:
    """Return the rows of a query by their first column, the name of an index, and without it."""
    indexes: dict[str, list[Any]] = {}
    for index, *column in _queried(connection, query, wanted):
        indexes.setdefault(index, []).append(column)
    return indexes


_ROW_NUMBERS = (
    "select name from pragma_table_info(:name, :here) where pk and upper(type) = 'INTEGER'"
    " and (select count(*) from pragma_table_info(:name, :here) where pk) = 1"
)
"""Query for the column that is SQLite's own number of a row."""


def _arbiters(connection: sa.Connection, wanted: Layout) -> list[str]:
    """Return what is wrong with PostgreSQL's unique indexes: an upsert looks into all that are of exactly the keys."""
    query = (
        "select i.relname, x.indimmediate, a.attname, c.collname from pg_index x"
        " join pg_class i on i.oid = x.indexrelid cross join lateral generate_series(0, x.indnkeyatts - 1) n"
        " join pg_attribute a on a.attrelid = x.indrelid and a.attnum = x.indkey[n]"
        " left join pg_collation c on c.oid in (x.indcollation[n], a.attcollation) and not c.collisdeterministic"
        " where x.indrelid = cast(:full as regclass) and x.indisunique and x.indisvalid"
        " and x.indpred is null and x.indexprs is null"
    )
    indexes = _by_index(connection, query, wanted)
    of_keys = {name: parts for name, parts in indexes.items() if {part[1] for part in parts} == set(wanted.keys)}
    deferrable = [name for name, parts in of_keys.items() if not parts[0][0]]
    folded = {(column, collation) for parts in of_keys.values() for _, column, collation in parts if collation}
    return [
        *([] if of_keys else [_no_index(wanted)]),
        *(f"the unique constraint `{name}` is deferrable, which no upsert can use" for name in deferrable),
        *(_folded(column, collation, "a deterministic one") for column, collation in sorted(folded)),
    ]


def _folded(column: str, comparison: str, exact: str) -> str:
    return f"the key `{column}` is compared as {comparison}, for which different texts are the same; use {exact}"


def _engines(connection: sa.Connection, wanted: Layout) -> list[str]:
    """Return which tables MariaDB keeps without transactions."""
    if wanted.dialect not in MYSQL:
        return []
    query = (
        "select table_name, engine from information_schema.tables join information_schema.engines using (engine)"
        " where table_schema = :here and table_name in (:name, :positions) and transactions <> 'YES'"
    )
    return [
        f"`{table}` has the engine {engine}, which has no transactions; use InnoDB"
        for table, engine in _queried(connection, query, wanted)
    ]


def _indexes(connection: sa.Connection, wanted: Layout) -> list[str]:
    """Return what is wrong with MariaDB's unique indexes: a row replaces the one that any of them finds."""
    query = (
        "select index_name, column_name, sub_part, extra = 'auto_increment' or (is_nullable = 'YES' and"
        " coalesce(column_default, 'NULL') = 'NULL' and locate('GENERATED', extra) = 0)"
        " from information_schema.statistics"
        " left join information_schema.columns using (table_schema, table_name, column_name)"
        " where table_schema = :here and table_name = :name and non_unique = 0"
    )
    keys, problems, is_found = set(wanted.keys), [], False
    for index, parts in _by_index(connection, query, wanted).items():
        names = {column for column, length, _ in parts if length is None}
        is_found |= names == keys and len(parts) == len(keys)
        is_never_found = any(is_own and column not in wanted.schema.names for column, _, is_own in parts)
        if not (keys <= names or is_never_found):
            shown = ", ".join(f"{column}({length})" if length else str(column) for column, length, _ in parts)
            problems.append(f"a row would replace one with other keys by the unique index `{index}` of {shown}")
    return problems if is_found else [*problems, _no_index(wanted)]


_COLLATIONS = {
    **dict.fromkeys(
        MYSQL,
        "select column_name, collation_name from information_schema.columns where table_schema = :here and"
        " table_name = :name and right(collation_name, 10) <> '_nopad_bin' and right(collation_name, 9) <> '_0900_bin'",
    ),
    "sqlite": "select x.name, x.coll from pragma_index_list(:name, :here) l join pragma_index_xinfo(l.name, :here) x"
    """ where l."unique" and x.key and x.coll <> 'BINARY'""",
}
"""Queries for columns that take different texts for the same."""


def _collations(connection: sa.Connection, wanted: Layout) -> list[str]:
    """Return what is wrong with the comparison of the keys."""
    if (query := _COLLATIONS.get(wanted.dialect)) is None:
        return []
    exact = {**EXACT_COLLATIONS, "sqlite": "BINARY"}[wanted.dialect]
    return [
        _folded(column, collation, exact)
        for column, collation in _queried(connection, query, wanted)
        if column in wanted.keys
    ]
