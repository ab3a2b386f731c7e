"""Tables of a database sink: the one it fills, the positions, and staging; and the statements that move rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql.types import StructType
from sqlalchemy.dialects import mysql, postgresql, sqlite

from roster.spark.errors import PipelineError
from roster.spark.tasks.arrow_function import arrow_schema
from roster.spark.tasks.write.database import NAME, Staged
from roster.spark.tasks.write.sql_columns import (
    EXACT_COLLATIONS,
    MYSQL,
    column_type,
    fits,
    is_nested,
)
from roster.spark.tasks.write.sql_engine import staging_table
from roster.spark.tasks.write.sql_values import DELETED, ROW

POSITIONS = "roster_positions"
"""The table of positions, beside the tables that they are of."""
_UPSERTS: Mapping[str, Any] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
    "mysql": mysql.insert,
    "mariadb": mysql.insert,
}


def positions_table(dialect: str, namespace: str | None) -> sa.Table:
    """Return the table with the next offset of each partition, by table and group."""
    text: Any = sa.Text()
    if dialect in MYSQL:
        text = mysql.VARCHAR(249, collation=EXACT_COLLATIONS[dialect])
    elif dialect not in ("postgresql", "sqlite"):
        text = sa.String(249)
    return sa.Table(
        POSITIONS,
        sa.MetaData(),
        sa.Column("table_name", sa.String(64), primary_key=True),
        sa.Column("consumer_group", text, primary_key=True),
        sa.Column("topic", text, primary_key=True),
        sa.Column("part", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("commit_id", sa.String(32), nullable=False),
        schema=namespace,
    )


@dataclass(frozen=True)
class Layout:
    """A table and the rows that go into it."""

    table: sa.Table
    """With the columns of the rows only."""
    schema: pa.Schema
    keys: tuple[str, ...]
    dialect: str

    def staging(self, name: str = NAME) -> sa.Table:
        """Return the staging table of an attempt."""
        options = {"prefixes": ["UNLOGGED"]} if self.dialect == "postgresql" else {}
        return staging_table(name, self.table.schema, self.schema, self.dialect, self.keys, **options)

    def counts(self, staged: Sequence[Staged]) -> sa.Select[Any]:
        """Return the query for the number of rows in each table of staging."""
        tables = [self.staging(each.name) for each in staged]
        return sa.select(*(sa.select(sa.func.count()).select_from(t).scalar_subquery() for t in tables))

    def moves(self, staged: Sequence[Staged]) -> list[Any]:
        """Return the statements that move the rows of staging, in the order of the tasks, into the table."""
        names = self.schema.names
        if not self.keys:
            rows = [sa.select(*self._values(self.staging(each.name))) for each in staged]
            return [self.table.insert().from_select(names, select) for select in rows]
        last = self._last_of_keys(staged)
        insert = _UPSERTS.get(self.dialect)
        found: list[Any] = []
        if insert is None:
            found.append(self._delete(last, nulls=True))
        else:
            if any(each.deletes for each in staged):
                found.append(self._delete(last, nulls=False))
            if any(each.nulls for each in staged):
                found.append(self._delete(last, nulls=True))
        rows_of_keys = sa.select(*self._values(last)).where(last.c[DELETED].is_(sa.false()))
        if insert is None:
            return [*found, self.table.insert().from_select(names, rows_of_keys)]
        return [*found, self._replacing(insert(self.table).from_select(names, rows_of_keys))]

    def _values(self, rows: Any) -> list[Any]:
        """Return the columns of staging as the table's; JSON came as text."""
        return [
            sa.cast(rows.c[field.name], self.table.c[field.name].type)
            if is_nested(field.type) and self.dialect == "postgresql"
            else rows.c[field.name]
            for field in self.schema
        ]

    def _last_of_keys(self, staged: Sequence[Staged]) -> Any:
        """Return the query for the last row of each key: of the last task, and there the last one."""
        tables = [self.staging(each.name) for each in staged]
        rows = sa.union_all(
            *(sa.select(*table.c, sa.literal_column(str(number)).label("task")) for number, table in enumerate(tables))
        ).subquery("staged")
        order = (rows.c.task.desc(), rows.c[ROW].desc())
        rank = sa.func.row_number().over(partition_by=[rows.c[name] for name in self.keys], order_by=order)
        ranked = sa.select(*rows.c, rank.label("roster_rank")).subquery("ranked")
        return sa.select(ranked).where(ranked.c.roster_rank == 1).subquery("last_rows")

    def _delete(self, last: Any, *, nulls: bool) -> Any:
        """Return the statement that deletes the rows of keys that are deleted, or with `nulls` have a null."""
        pairs = [(self.table.c[name], last.c[name]) for name in self.keys]
        if nulls:
            same = [mine.is_not_distinct_from(other) for mine, other in pairs]
            which = sa.or_(*(last.c[name].is_(None) for name in self.keys))
        else:
            same = [mine == other for mine, other in pairs]
            which = last.c[DELETED].is_(sa.true())
        if self.dialect not in _UPSERTS:
            which = sa.true()
        return self.table.delete().where(sa.exists(sa.literal_column("1")).where(*same, which))

    def _replacing(self, insert: Any) -> Any:
        """Return the INSERT that replaces the row of a key that is there."""
        others = [name for name in self.schema.names if name not in self.keys]
        if self.dialect in MYSQL:
            return insert.on_duplicate_key_update({name: insert.inserted[name] for name in others or self.keys})
        if not others:
            return insert.on_conflict_do_nothing(index_elements=list(self.keys))
        given = {name: insert.excluded[name] for name in others}
        return insert.on_conflict_do_update(index_elements=list(self.keys), set_=given)


def layout(table: str, namespace: str | None, columns: StructType, keys: Sequence[str], dialect: str) -> Layout:
    """Return the table that rows with these columns would be written to if it had to be created.

    Raises PipelineError that lists the columns of types that the database has no counterpart of.
    """
    schema, unknown, made = arrow_schema(columns), [], []
    for field, column in zip(schema, columns.fields, strict=True):
        kind = column_type(field.type, dialect, len(keys) if field.name in keys else 0)
        if kind is None or column.dataType.typeName() in ("variant", "void"):
            unknown.append(f"`{field.name}` is {column.dataType.simpleString()}")
            continue
        made.append(sa.Column(field.name, kind))
    if unknown:
        raise PipelineError(
            f"no column of the database holds {', '.join(unknown)}", field="write", fix="Convert it, or leave it out"
        )
    if taken := [name for name in (ROW, DELETED) if name in schema.names]:
        raise PipelineError(f"`{taken[0]}` is a column of staging", field="write", fix="Name it differently")
    unique = [sa.UniqueConstraint(*keys)] if keys else []
    return Layout(sa.Table(table, sa.MetaData(), *made, *unique, schema=namespace), schema, tuple(keys), dialect)


def check_existing(connection: sa.Connection, wanted: Layout, columns: StructType, name: str) -> None:
    """Raise PipelineError that lists how a table that exists differs from the rows. `name` is the sink's."""
    inspector, table = sa.inspect(connection), wanted.table
    given = {column["name"]: column for column in inspector.get_columns(table.name, table.schema)}
    problems = []
    for field, column in zip(wanted.schema, columns.fields, strict=True):
        text = column.dataType.simpleString()
        if (there := given.pop(field.name, None)) is None:
            problems.append(f"`{field.name}` ({text}) is none of the table's columns")
        elif there.get("computed") is not None:
            problems.append(f"`{field.name}` is computed by the table")
        elif not fits(field.type, there["type"], wanted.dialect):
            kind = there["type"].compile(connection.dialect)
            problems.append(f"`{field.name}` is {text}, and {kind} in the table")
    problems += [f"the rows have no `{left}`, which must not be null" for left in given if _is_needed(given[left])]
    if wanted.keys and not _has_unique(inspector, table, wanted.keys):
        problems.append(f"the table has no unique constraint of exactly {', '.join(wanted.keys)}")
    problems += _collations(connection, wanted)
    if problems:
        raise PipelineError(
            f"the rows do not fit {table.fullname}: {'; '.join(problems)}",
            field=name,
            fix="Change rows or table, or write to another table",
        )


def _is_needed(column: Mapping[str, Any]) -> bool:
    has_value = column.get("default") is not None or column.get("identity") or column.get("computed")
    return not (column["nullable"] or has_value or column.get("autoincrement") is True)


def _has_unique(inspector: sa.Inspector, table: sa.Table, keys: Sequence[str]) -> bool:
    where = table.name, table.schema
    found = [inspector.get_pk_constraint(*where)["constrained_columns"]]
    found += [each["column_names"] for each in inspector.get_unique_constraints(*where)]
    # SQLite's dialect only finds a constraint behind a column's type so.
    automatic: dict[str, Any] = {"include_auto_indexes": True} if inspector.dialect.name == "sqlite" else {}
    found += [
        [str(name) for name in each["column_names"]]
        for each in inspector.get_indexes(*where, **automatic)
        if each["unique"] and not (each.get("dialect_options") or {}).get("postgresql_where")
    ]
    return any(set(names) == set(keys) for names in found)


def _collations(connection: sa.Connection, wanted: Layout) -> list[str]:
    """Return what is wrong with MariaDB's comparison of the keys: it may take different texts for the same key."""
    if wanted.dialect not in MYSQL or not wanted.keys:
        return []
    query = sa.text(
        "select column_name, collation_name from information_schema.columns"
        " where table_schema = coalesce(:namespace, database()) and table_name = :name"
    )
    rows = connection.execute(query, {"namespace": wanted.table.schema, "name": wanted.table.name})
    exact = EXACT_COLLATIONS[wanted.dialect]
    return [
        f"the key `{column}` is compared as {collation}, for which different texts are the same; use {exact}"
        for column, collation in rows
        if column in wanted.keys and collation is not None and not collation.endswith(("_nopad_bin", "_0900_bin"))
    ]
