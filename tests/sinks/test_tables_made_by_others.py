"""Random rows into random tables that plain SQL has made: what the sink takes is what plain SQL reads."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sqlalchemy as sa
from pyspark.sql import types as T

from roster.pipeline.batch_sink import Source
from roster.pipeline.errors import RefusedRowsError
from roster.spark import PipelineError, PostgresSink
from tests.examples_tried import examples
from tests.sinks.table_places import T0, opened
from tests.sinks.table_worker import GROUP
from tests.sinks.test_database_sinks import Place, begin, place, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["place"]

Values = list[dict[str, Any]]
ROWS = 50
TABLES = examples(60, quick=8)
AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
LOCAL = AT.replace(tzinfo=None)

TEXTS = [
    "",
    "a",
    "A",
    "ab",
    "ab ",
    "ab  ",
    " ab",
    "abc",
    "abcd",
    "ä",
    "Ä",
    "日本",
    "1",
    "007",
    "1e3",
    "a" * 70,
    "a" * 255,
]
TEXTS += ["a" * 255 + " ", "a" * 764 + " " * 9]
BYTES = [b"", b"a", b"ab", b"ab\0", b"ab ", b"abc", b"abcd", b"\xff" * 256]
TYPES: dict[str, tuple[T.DataType, Callable[[random.Random], Any]]] = {
    "string": (T.StringType(), lambda chance: chance.choice(TEXTS)),
    "binary": (T.BinaryType(), lambda chance: chance.choice(BYTES)),
    "tiny": (T.ByteType(), lambda chance: chance.randrange(-128, 128)),
    "int": (T.IntegerType(), lambda chance: chance.choice([0, 1, -1, 300, 70_000, 2**31 - 1, -(2**31)])),
    "long": (T.LongType(), lambda chance: chance.choice([0, 7, -(2**63), 2**63 - 1, 2**53 + 1])),
    "float": (T.FloatType(), lambda chance: chance.choice([0.0, 0.5, 16777216.0, float(np.float32(0.1)), -(2.0**127)])),
    "double": (T.DoubleType(), lambda chance: chance.choice([0.0, 0.1, 1 / 3, 1e300, 123456789.125, 2.0**60])),
    "decimal": (T.DecimalType(9, 2), lambda chance: Decimal(chance.randrange(-(10**9) + 1, 10**9)).scaleb(-2)),
    "boolean": (T.BooleanType(), lambda chance: chance.random() < 0.5),
    "date": (T.DateType(), lambda chance: date(1969, 12, 1) + timedelta(days=chance.randrange(99_999))),
    "at": (T.TimestampType(), lambda chance: AT + timedelta(microseconds=chance.choice([0, 1, 500, 999_999]))),
    "local": (
        T.TimestampNTZType(),
        lambda chance: AT.replace(tzinfo=None) + timedelta(microseconds=chance.choice([0, 1])),
    ),
}
KEY_TYPES = ["string", "string", "string", "int", "long", "binary", "decimal", "date", "at"]
COLUMNS = {
    "string": [
        *("text", "varchar", "varchar(2)", "varchar(3)", 'text collate "C"', "text collate any_case", "char(3)"),
        *("char(2)", "citext", "name", '"char"', "code", "folded", "bpchar", "colour", "json", "uuid", "bit(3)"),
    ],
    "binary": ["bytea", "bit varying"],
    "int": ["integer", "bigint", "smallint", "numeric", "numeric(9)", "numeric(12, 2)", "real", "serial", "money"],
    "float": ["real", "double precision", "float(10)", "float(30)", "numeric"],
    "decimal": ["numeric", "numeric(9, 2)", "numeric(9, 1)", "numeric(12, -1)", "numeric(7, 2)", "money", "dec5"],
    "boolean": ["boolean", "bit(1)", "integer"],
    "date": ["date", "timestamp", "timestamptz", "text"],
    "at": ["timestamptz", "timestamptz(3)", "timestamptz(0)", "timestamp", "date", "time"],
    "local": ["timestamp", "timestamp(2)", "timestamptz", "interval"],
}
ALIKE = {"tiny": "int", "long": "int", "double": "float"}
"""Types that are tried with the columns of another one."""
MADE = (
    "create extension citext",
    "create domain code as varchar(2)",
    "create domain folded as citext",
    "create domain dec5 as numeric(9, 1)",
    "create type colour as enum ('a', 'ab')",
    "create collation any_case (provider=icu, locale='und-u-ks-level2', deterministic=false)",
)
UNIQUE = [
    *(
        "primary key ({keys})",
        "unique ({keys})",
        "unique ({keys}) deferrable",
        "unique ({keys}) initially deferred",
    ),
    *(
        "",
        "unique nulls not distinct ({keys})",
        "unique ({keys}) include (v0)",
        "exclude using btree ({keys} with =)",
    ),
    *("/unique index on {table} ({keys}) where v0 is null", "/unique index on {table} (({first}::text))"),
    "unique ({keys}); /unique index on {table} (({first}::citext))",
    "/unique index on {table} ({first} collate any_case)",
    "unique ({keys}); /unique index on {table} ({first} collate any_case)",
]
"""Constraints of a table, behind a / statements of their own."""


class Case:
    """A table and rows for it."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(f"postgres {seed}")
        self.table = f"t{seed}"
        self.is_upsert = chance.random() < 0.6
        keys = [chance.choice(KEY_TYPES) for _ in range(chance.choice([1, 1, 2]))]
        values = [chance.choice(list(TYPES)) for _ in range(chance.randrange(1, 4))]
        names = [f"k{number}" for number in range(len(keys))] + [f"v{number}" for number in range(len(values))]
        self.types = dict(zip(names, keys + values, strict=True))
        self.keys = names[: len(keys)]
        self.columns = {name: self._column(chance, of) for name, of in self.types.items()}
        unique = UNIQUE[0] if chance.random() < 0.3 else chance.choice(UNIQUE)
        self.unique = unique if self.is_upsert or chance.random() < 0.3 else ""
        self.rows = [
            {name: None if chance.random() < 0.05 else TYPES[of][1](chance) for name, of in self.types.items()}
            for _ in range(ROWS)
        ]

    def _column(self, chance: random.Random, of: str) -> str:
        kinds = COLUMNS[ALIKE.get(of, of)]
        # Often one that is right, so that several columns fit.
        return kinds[0] if chance.random() < 0.75 else chance.choice(kinds)

    @property
    def schema(self) -> T.StructType:
        return T.StructType([T.StructField(name, TYPES[of][0]) for name, of in self.types.items()])

    def create(self, place: Place, table: str) -> bool:
        """Make the table; False for one that the database does not make."""
        columns = [f"{name} {column}" for name, column in self.columns.items()]
        names = {"table": table, "keys": ", ".join(self.keys), "first": self.keys[0]}
        within, _, index = self.unique.format(**names).partition("/")
        within = within.strip().rstrip(";")
        try:
            place.run(f"create table {table} ({', '.join([*columns, *([within] if within else [])])})")
            if index:
                place.run(f"create {index}")
        except sa.exc.DBAPIError:
            return False
        return True

    def plain(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """The row as plain SQL reads it."""
        return tuple(row[name] for name in self.types)

    def read(self, place: Place, table: str) -> list[tuple[Any, ...]]:
        """All rows, by plain SQL."""
        rows = place.run(f"select {', '.join(self.types)} from {table}")
        return [tuple(map(self._read, self.types, row)) for row in rows]

    def _read(self, name: str, value: Any) -> Any:
        of = self.types[name]
        if of == "float" and value is not None:
            return float(np.float32(value))
        if of == "boolean" and value in (0, 1):
            return bool(value)
        if isinstance(value, Decimal):  # with as many digits as the column has
            cents = value.quantize(Decimal("0.01"))
            exact = cents if of == "decimal" else int(value)
            return exact if exact == value else value
        return value.astimezone(UTC) if getattr(value, "tzinfo", None) else value

    def wanted(self, rows: Values) -> list[tuple[Any, ...]]:
        """What is to be read of rows that were written."""
        plain = [self.plain(row) for row in rows]
        return list({row[: len(self.keys)]: row for row in plain}.values()) if self.is_upsert else plain


def bag(rows: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(map(repr, rows))


def written(sink: PostgresSink, case: Case, start: int, rows: Values) -> Values:
    """Write rows as a pipeline with dead letters does; return those that were not refused."""
    for _ in range(len(rows)):
        try:
            write_rows(sink, case.schema, rows, start)
        except RefusedRowsError as error:
            refused = error.rows[0]
            rows = [row for number, row in enumerate(rows) if number not in refused]
        else:
            return rows
    return rows


def refusal(sink: PostgresSink, case: Case) -> str:
    """Why a run does not begin."""
    try:
        with warnings.catch_warnings(action="ignore"):  # SQLAlchemy's, of indexes of expressions
            begin(sink, **{field.name: field.dataType for field in case.schema.fields})
    except PipelineError as error:
        return str(error)
    finally:
        sink.close()
    return ""


def is_kept(place: Place, case: Case, row: dict[str, Any]) -> bool:
    """Whether a table of its own keeps the row as it is, when plain SQL inserts it."""
    copy = f"{case.table}_copy"
    names = list(case.types)
    values = dict(zip(names, case.plain(row), strict=True))
    statement = sa.text(f"insert into {copy} ({', '.join(names)}) values ({', '.join(f':{name}' for name in names)})")
    with place.engine.connect() as connection:
        connection.exec_driver_sql(f"delete from {copy}")
        try:
            connection.execute(statement, values)
        except sa.exc.DBAPIError:
            return False
    return bag(case.read(place, copy)) == bag([case.plain(row)])


@pytest.mark.timeout(1800)
@pytest.mark.process
@pytest.mark.real
def test_what_plain_sql_reads_of_random_tables_is_what_was_written(place: Place) -> None:
    seen = Counter[str]()
    for statement in MADE:
        place.run(statement)
    for seed in range(TABLES):
        case = Case(seed)
        if not case.create(place, case.table):
            seen["not made"] += 1
            continue
        sink = place.sink(
            case.table, mode="upsert" if case.is_upsert else "append", keys=case.keys if case.is_upsert else ()
        )
        sink.bind(Source("b:1", GROUP, dead_letters=""))
        if problem := refusal(sink, case):
            assert "\n" not in problem
            seen["refused"] += 1
            continue
        opened(sink, T0)
        half = ROWS // 2
        batches = case.rows[:half], case.rows[half:]
        rows = [row for number, each in enumerate(batches) for row in written(sink, case, number, each)]
        sink.close()
        about = f"{case.table} {case.columns} {case.unique} upsert={case.is_upsert}"
        assert bag(case.read(place, case.table)) == bag(case.wanted(rows)), about
        seen["taken"] += 1
        seen["rows"] += len(rows)
        seen["rows refused"] += ROWS - len(rows)
        if not case.unique and case.create(place, f"{case.table}_copy"):
            refused = [row for row in case.rows if not any(row is other for other in rows)]
            assert not [row for row in refused if is_kept(place, case, row)], about
    print(dict(seen))
    assert seen["taken"] >= TABLES // 8, seen
    assert seen["rows"]
