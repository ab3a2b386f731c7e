"""Tables of a `PostgresSink`: the one it fills, the positions, and staging; and the statements that move rows."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import pyarrow as pa

from roster.model import TopicPartition
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.spark_types import StructType
from roster.sinks.tasks.postgres import Server, Staged
from roster.sinks.tasks.sql_columns import column_type, fits, is_folding, limit_of, quoted
from roster.sinks.tasks.sql_values import DELETED, ROW, Limit
from roster.state.bad_rows import bad_rows

POSITIONS = "roster_positions"
"""The table of positions, beside the tables that they are of."""
_TASK = "roster_task"


def run(connection: psycopg.Connection, statement: str, values: Sequence[object] | None = None) -> psycopg.Cursor[Any]:
    """Run a statement, whose names are quoted."""
    return connection.execute(cast("Any", statement), values)


def is_there(connection: psycopg.Connection, table: str) -> bool:
    """Return True if there is a table of this name in SQL."""
    return run(connection, "select to_regclass(%s) is not null", [table]).fetchone() == (True,)


class PositionsTable:
    """The next offset of each partition that a group has written to a table, and the id of the last commit."""

    def __init__(self, namespace: str | None, of_table: str, group: str) -> None:
        self.name = quoted(namespace, POSITIONS)
        self._in_query, self._its = self.name.replace("%", "%%"), [of_table, group]

    @property
    def statement(self) -> str:
        """Makes the table."""
        return (
            f"create table if not exists {self.name} (table_name varchar(64), consumer_group text, topic text,"
            " part integer, next_offset bigint not null, commit_id varchar(32) not null,"
            " primary key (table_name, consumer_group, topic, part))"
        )

    def read(
        self, connection: psycopg.Connection, partitions: Collection[TopicPartition], *, lock: bool = False
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return position and last commit of each partition that has one; with `lock` no other one changes them."""
        query = (
            f"select topic, part, next_offset, commit_id from {self._in_query} p where table_name = %s and"  # noqa: S608
            " consumer_group = %s and (topic, part) in (select * from unnest(%s::text[], %s::int[]))"
            f" order by topic, part{' for update of p' if lock else ''}"
        )
        topics, numbers = [p.topic for p in partitions], [p.partition for p in partitions]
        rows = run(connection, query, [*self._its, topics, numbers])
        return {TopicPartition(topic, part): (offset, commit) for topic, part, offset, commit in rows}

    def store(
        self,
        connection: psycopg.Connection,
        ends: Mapping[TopicPartition, int],
        token: str,
        known: Collection[TopicPartition],
    ) -> None:
        """Store new positions, of partitions that are `known` and others. Raises UniqueViolation if these are, too."""
        columns = "next_offset, commit_id, table_name, consumer_group, topic, part"
        insert = f"insert into {self._in_query} ({columns}) values (%s, %s, %s, %s, %s, %s)"  # noqa: S608
        its = "table_name = %s and consumer_group = %s and topic = %s and part = %s"
        update = f"update {self._in_query} set next_offset = %s, commit_id = %s where {its}"  # noqa: S608
        for partition, end in sorted(ends.items()):
            run(connection, update if partition in known else insert, [end, token, *self._its, *partition])


@dataclass(frozen=True)
class Layout:
    """A table and the rows that go into it."""

    namespace: str | None
    table: str
    schema: pa.Schema
    keys: tuple[str, ...]
    is_numbered: bool
    """Whether staging has the numbers of rows."""
    limits: Mapping[str, Limit]
    """What columns of the table would change."""

    @property
    def name(self) -> str:
        """The table's name in SQL."""
        return quoted(self.namespace, self.table)

    @property
    def statement(self) -> str:
        """Makes the table."""
        columns = [f"{quoted(field.name)} {column_type(field.type)}" for field in self.schema]
        columns += [f"unique ({self._names(self.keys)})"] if self.keys else []
        return f"create table if not exists {self.name} ({', '.join(columns)})"

    def staging(self, attempt: Staged) -> str:
        """Return the name in SQL of the staging table of an attempt."""
        return quoted(self.namespace, attempt.name)

    def lost(self, connection: psycopg.Connection, staged: Sequence[Staged]) -> str:
        """Return a staging table without its rows, "" if there is none: a crash empties those without a log."""
        for attempt in staged:
            table = self.staging(attempt)
            count = f"select count(*) from {table}"  # noqa: S608
            if not is_there(connection, table) or run(connection, count).fetchone() != (attempt.rows,):
                return attempt.name
        return ""

    def moves(self, staged: Sequence[Staged], only: tuple[int, int, int] | None = None) -> list[str]:
        """Return the statements that move the rows of staging, in the order of the tasks, into the table.

        only: of one task, by its index, the rows from a number up to before another one.
        """
        values = ", ".join(
            f"s.{quoted(field.name)}{'::jsonb' if pa.types.is_nested(field.type) else ''}" for field in self.schema
        )
        insert = f"insert into {self.name} ({self._names(self.schema.names)}) select {values} from"
        span = "" if only is None else f" and s.{ROW} >= {only[1]} and s.{ROW} < {only[2]}"
        if not self.keys:
            indexes = range(len(staged)) if only is None else [only[0]]
            return [f"{insert} {self.staging(staged[index])} s where true{span}" for index in indexes]
        last = self._last_of_keys(staged)
        delete, statements = f"delete from {self.name} t using {last} s where", list[str]()  # noqa: S608
        pairs = [(f"t.{quoted(name)}", f"s.{quoted(name)}") for name in self.keys]
        if any(attempt.deletes for attempt in staged):
            statements.append(f"{delete} s.{DELETED} and {' and '.join(f'{mine} = {other}' for mine, other in pairs)}")
        if any(attempt.nulls for attempt in staged):  # which no index finds
            are_same = " and ".join(f"{mine} is not distinct from {other}" for mine, other in pairs)
            statements.append(f"{delete} {are_same} and ({' or '.join(f'{other} is null' for _, other in pairs)})")
        span += "" if only is None else f" and s.{_TASK} = {only[0]}"
        others = [quoted(name) for name in self.schema.names if name not in self.keys]
        update = f"update set {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "nothing"
        conflict = f"on conflict ({self._names(self.keys)}) do {update}"
        return [*statements, f"{insert} {last} s where not s.{DELETED}{span} {conflict}"]

    @staticmethod
    def _names(names: Sequence[str]) -> str:
        return ", ".join(map(quoted, names))

    def _last_of_keys(self, staged: Sequence[Staged]) -> str:
        """Return the query for the last row of each key: of the last task, and there the last one."""
        rows = " union all ".join(
            f"select *, {index} as {_TASK} from {self.staging(attempt)}"  # noqa: S608
            for index, attempt in enumerate(staged)
        )
        keys = self._names(self.keys)
        return f"(select distinct on ({keys}) * from ({rows}) r order by {keys}, {_TASK} desc, {ROW} desc)"  # noqa: S608

    def refused(
        self, connection: psycopg.Connection, staged: Sequence[Staged], server: Server
    ) -> dict[int, dict[int, str]]:
        """Return why the table refuses rows of staging, by task and number; none is moved."""
        refused: dict[int, dict[int, str]] = {}

        def attempt(index: int, begin: int, end: int) -> Exception | None:
            try:
                with connection.transaction():
                    for statement in self.moves(staged, (index, begin, end)):
                        run(connection, statement)
            except psycopg.Error as error:
                if not server.is_of_a_row(error):
                    raise
                return error
            return None

        with connection.transaction(force_rollback=True):
            run(connection, "set constraints all immediate")
            for index, of_task in enumerate(staged):
                if bad := bad_rows(of_task.numbered, functools.partial(attempt, index)):
                    refused[of_task.task] = {row: server.error_text(error) for row, error in bad.items()}
        return refused


def layout(table: str, namespace: str | None, columns: StructType, keys: Sequence[str], *, is_numbered: bool) -> Layout:
    """Return the table that rows with these columns would be written to if it had to be created.

    Raises PipelineError that lists the columns of types that the database has no counterpart of.
    """
    schema = arrow_schema(columns)
    unknown = [
        f"`{field.name}` is {column.dataType.simpleString()}"
        for field, column in zip(schema, columns.fields, strict=True)
        if column_type(field.type) is None or column.dataType.typeName() in ("variant", "void")
    ]
    if unknown:
        raise PipelineError(
            f"no column of the database holds {', '.join(unknown)}", field="write", fix="Convert it, or leave it out"
        )
    if taken := [name for name in (ROW, DELETED, _TASK) if name in schema.names]:
        raise PipelineError(f"`{taken[0]}` is a column of staging", field="write", fix="Name it differently")
    return Layout(namespace, table, schema, tuple(keys), is_numbered or bool(keys), {})


def check_existing(
    connection: psycopg.Connection, wanted: Layout, columns: StructType, name: str
) -> dict[str, Limit] | None:
    """Return what columns of the table would change, None if it is missing.

    Raises PipelineError, of the sink `name`, with all reasons not to write to it.
    """
    if not is_there(connection, wanted.name):
        return None
    query = (
        "select attname, format_type(atttypid, atttypmod), attidentity = 'a' or attgenerated <> '',"
        " attnotnull and not atthasdef and attidentity = ''"
        " from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum"
    )
    there = {column: more for column, *more in run(connection, query, [wanted.name])}
    if problems := [
        *_differences(wanted, columns, there),
        *(_index_problems(connection, wanted) if wanted.keys else ()),
    ]:
        fix = "Change rows or table, or write to another table"
        full = ".".join(filter(None, (wanted.namespace, wanted.table)))
        raise PipelineError(f"the rows do not fit {full}: {'; '.join(problems)}", field=name, fix=fix)
    limits = {column: limit_of(there[column][0]) for column in wanted.schema.names}
    return {column: limit for column, limit in limits.items() if limit is not None}


def _differences(wanted: Layout, columns: StructType, there: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return what is wrong with the table's columns: by name their types, and whether they are computed or needed."""
    problems = []
    for field, column in zip(wanted.schema, columns.fields, strict=True):
        name, text = field.name, column.dataType.simpleString()
        if name not in there:
            problems.append(f"`{name}` ({text}) is none of the table's columns")
            continue
        kind, is_computed, _ = there[name]
        if is_computed:
            problems.append(f"`{name}` is computed by the table")
        elif not fits(field.type, kind):
            problems.append(f"`{name}` is {text}, and {kind} in the table")
        elif name in wanted.keys and is_folding(kind):
            problems.append(_folded(name, kind, "text"))
    left = [name for name, (_, _, is_needed) in there.items() if is_needed and name not in wanted.schema.names]
    return [*problems, *(f"the rows have no `{name}`, which must not be null" for name in left)]


def _index_problems(connection: psycopg.Connection, wanted: Layout) -> list[str]:
    """Return what is wrong with the unique indexes: an upsert looks into all that are of exactly the keys."""
    query = (
        "select i.relname, x.indimmediate, a.attname, c.collname from pg_index x"
        " join pg_class i on i.oid = x.indexrelid cross join lateral generate_series(0, x.indnkeyatts - 1) n"
        " join pg_attribute a on a.attrelid = x.indrelid and a.attnum = x.indkey[n]"
        " left join pg_collation c on c.oid in (x.indcollation[n], a.attcollation) and not c.collisdeterministic"
        " where x.indrelid = %s::regclass and x.indisunique and x.indisvalid"
        " and x.indpred is null and x.indexprs is null"
    )
    indexes: dict[str, list[Any]] = {}
    for index, *column in run(connection, query, [wanted.name]):
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
