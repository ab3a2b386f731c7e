"""What a table asks of its rows beyond their types: rows that break it are found by the tasks and not written."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster._errors import one_line
from roster._json import JsonObject
from roster.pipeline.tasks.writer import TaskOutput, conformed
from roster.sinks.tasks.parquet import ParquetWriter
from roster.sinks.tasks.partitions import NULL, folder
from roster.sinks.tasks.sql_values import final_error
from roster.sinks.tasks.upsert import UpdateWriter, is_retracted
from roster.state.bad_rows import bad_rows

_LONGEST_NAME = 255
"""Bytes of a folder's name in a file system."""
_LONGEST_ERROR = 300
_BROKEN = "Invalid data found"
"""What deltalake says of rows that break a rule."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rules:
    """Rules of a table.

    columns: all columns of the table as its files get them, the rows' columns first; where one, or a value inside it,
    is not nullable it must not be null. lengths: the least and the most characters of columns of text. folders: columns
    of text whose values name folders, in which "" counts as null. log: the first entry of a Delta log, of a table with
    the rules that deltalake checks; log_rules: these as text.
    """

    columns: pa.Schema
    lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    log: str = ""
    log_rules: str = ""

    def are_met_by_all(self, given: pa.Schema) -> bool:
        """Return True if rows of these columns can break none."""
        is_open = self.columns.names == given.names and all(map(_takes_null, self.columns))
        return is_open and not (self.lengths or self.folders or self.log)


class Checked(NamedTuple):
    """What one attempt of a task has written."""

    result: Any
    refused: Mapping[int, str]
    """Why rows are not there, by their number in the task."""


@dataclass(frozen=True)
class CheckedWriter:
    """Has `writer` write rows that keep the rules; `given` are the columns of the rows, others are null.

    sets_aside: False if the first row that is refused ends the batch.
    """

    writer: ParquetWriter | UpdateWriter
    rules: Rules
    given: pa.Schema
    sets_aside: bool = False

    def open(self) -> CheckedOutput:
        """Start the output of one attempt of a task."""
        return CheckedOutput(self, self.writer.open())


class CheckedOutput:
    """Rows of one attempt of a task."""

    def __init__(self, writer: CheckedWriter, output: TaskOutput) -> None:
        self._writer, self._output = writer, output
        self._numbered = 0
        self._refused: dict[int, str] = {}
        self.abort = output.abort

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the rows that keep the rules."""
        if not rows.num_rows or (self._refused and not self._writer.sets_aside):
            return
        first, self._numbered = self._numbered, self._numbered + rows.num_rows
        columns, metadata = self._writer.rules.columns, rows.schema.metadata
        plain = conformed(rows.replace_schema_metadata(None), self._writer.given)
        missing = [pa.nulls(rows.num_rows, column.type) for column in list(columns)[len(plain.columns) :]]
        full = pa.table([*plain.columns, *missing], columns.names)
        if not is_retracted(rows):
            problems = self._problems(full)
            self._refused |= {first + row: problem for row, problem in sorted(problems.items())}
            if problems:
                full = full.filter(pa.array(~np.isin(np.arange(len(full)), list(problems))))
        if len(full):
            target = self._writer.writer.schema.with_metadata(metadata)
            arrays = [_typed(full[column.name].combine_chunks(), column.type) for column in target]
            self._output.write(pa.RecordBatch.from_arrays(arrays, schema=target))

    def close(self) -> Checked:
        """Write buffered rows; return which were written and which were refused."""
        return Checked(self._output.close(), self._refused)

    def _problems(self, rows: pa.Table) -> dict[int, str]:
        """Return why rows are refused, by their number."""
        rules, problems = self._writer.rules, dict[int, str]()
        for column in rules.columns:
            name, values = column.name, rows[column.name].combine_chunks()
            if name in rules.folders:
                values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
                rows = rows.set_column(rows.schema.get_field_index(name), name, values)
                for row in np.flatnonzero(pc.fill_null(_no_folder(name, values), False)):
                    problems[int(row)] = f"`{name}` names no folder that readers find: {values[row].as_py()[:50]!r}"
            for row in np.flatnonzero(lacks(values, column)):
                problems[int(row)] = f"`{name}` is null, or has a null in it, where the table has none"
            if name in rules.lengths:
                (least, most), lengths = rules.lengths[name], pc.utf8_length(values)
                is_wrong = pc.or_(pc.less(lengths, least), pc.greater(lengths, most))
                for row in np.flatnonzero(pc.fill_null(is_wrong, False)):
                    wanted = f"{most}" if least == most else f"at most {most}"
                    problems[int(row)] = f"`{name}` has {lengths[row]} characters; the table has {wanted}"
        if rules.log:
            numbers = np.setdiff1d(np.arange(len(rows)), list(problems))
            left = rows.take(numbers)
            broken = bad_rows(len(left), lambda begin, end: self._broken(left.slice(begin, end - begin)))
            problems |= {int(numbers[row]): str(error) for row, error in broken.items()}
        return problems

    def _broken(self, rows: pa.Table) -> Exception | None:
        """Return why one of the rows breaks a rule that deltalake checks."""
        rules = self._writer.rules
        problem = delta_problem(rules.log, rows)
        if not problem or _BROKEN in problem:
            return ValueError(f"it breaks a rule of the table: {rules.log_rules}") if problem else None
        if (is_general := delta_problem(rules.log, rows.slice(0, 0))) is not None:
            raise final_error(f"deltalake cannot check the table's rules {rules.log_rules}: {is_general}")
        return ValueError(f"a rule of the table ({rules.log_rules}) has no answer: {problem}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _takes_null(column: pa.Field) -> bool:
    """Return True if a column, and all values inside it, may be null."""
    kind = column.type
    inner = [kind.value_field] if _is_list(kind) else []
    inner += list(kind) if pa.types.is_struct(kind) else [kind.item_field] if pa.types.is_map(kind) else []
    return bool(column.nullable) and all(map(_takes_null, inner))


def lacks(values: pa.Array, column: pa.Field) -> Mask:
    """Return True for each row that has a null where `column` is not nullable, itself or inside."""
    is_there: Mask = values.is_valid().to_numpy(zero_copy_only=False)
    is_bad = np.zeros(len(values), np.bool_) if column.nullable else ~is_there
    kind = column.type
    if pa.types.is_struct(kind):
        for child in kind:
            is_bad |= is_there & lacks(values.field(child.name), child)
    elif _is_list(kind) or pa.types.is_map(kind):
        is_map = pa.types.is_map(kind)
        inner = lacks(values.items, kind.item_field) if is_map else lacks(values.values, kind.value_field)
        if is_map:
            inner |= lacks(values.keys, kind.key_field)
        before = np.concatenate([[0], np.cumsum(inner)])
        ends = values.offsets.to_numpy()
        is_bad |= is_there & (before[ends[1:]] > before[ends[:-1]])
    return is_bad


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values with a type that says otherwise where there are nulls; a cast refuses these below a null, too."""
    if values.type.equals(kind):
        return values
    values = values.take(pa.array(np.arange(len(values))))  # a slice would bring the values of other rows
    is_null = values.is_null()
    if pa.types.is_struct(kind):
        children = [_typed(values.field(child.name), child.type) for child in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=is_null)
    if _is_list(kind):
        list_type = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        offsets = values.offsets.cast(pa.int32() if pa.types.is_list(kind) else pa.int64())
        return list_type.from_arrays(offsets, _typed(values.values, kind.value_type), kind, mask=is_null)
    if pa.types.is_map(kind):
        keys, items = _typed(values.keys, kind.key_type), _typed(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, kind, mask=is_null)
    return values.cast(kind)


def _no_folder(name: str, values: pa.Array) -> pa.Array:
    """Return True for each text that a file system takes for no folder's name, or readers for null."""
    encoded = values.dictionary_encode()
    is_bad = [
        value is not None and (value == NULL or len(folder([name], [value]).encode()) > _LONGEST_NAME)
        for value in encoded.dictionary.to_pylist()
    ]
    return pc.take(pa.array(is_bad, pa.bool_()), encoded.indices)


def delta_log(fields: object, protocol: JsonObject, configuration: Mapping[str, str]) -> str:
    """Return the first entry of the log of a Delta table with these fields."""
    metadata = {
        "id": "00000000-0000-0000-0000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": dict(configuration),
        "createdTime": 0,
    }
    return json.dumps({"protocol": protocol}) + "\n" + json.dumps({"metaData": metadata}) + "\n"


def delta_problem(log: str, rows: pa.Table | None) -> str | None:
    """Return why deltalake does not append rows to an empty table with this log; None: not even look at rows."""
    from deltalake import DeltaTable, write_deltalake

    with tempfile.TemporaryDirectory(prefix="roster-delta-") as path:
        entry = Path(path, "_delta_log", f"{0:020}.json")
        entry.parent.mkdir()
        entry.write_text(log, encoding="utf-8")
        try:
            if rows is None:
                table = DeltaTable(path)
                table.create_write_transaction([], "append", table.schema(), [])
            else:
                write_deltalake(path, rows, mode="append")
        except Exception as error:
            return re.sub(r"^(Generic (DeltaTable )?error: |External error: )+", "", one_line(error, _LONGEST_ERROR))
    return None
