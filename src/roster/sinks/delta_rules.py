"""What a Delta table asks of its writers: asked before the first batch, and obeyed or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from roster._json import JsonObject
from roster.pipeline.errors import PipelineError
from roster.sinks.tasks.rules import Rules, delta_log, delta_problem

if TYPE_CHECKING:
    from deltalake import DeltaTable
else:  # type hints resolve without the extra
    DeltaTable = Any

_NAME = "DeltaSink"
_CONSTRAINT = "delta.constraints."
_INVARIANT, _GENERATED = "delta.invariants", "delta.generationExpression"
_COMPUTED = (_GENERATED, "CURRENT_DEFAULT", "delta.identity.start")
_SPARK_TEXT = "__CHAR_VARCHAR_TYPE_STRING"
"""What Spark keeps the declared type of a column of char(n) or varchar(n) in."""
_MAPPING = "delta.columnMapping.mode"
_FEATURES_READER, _FEATURES_WRITER = 3, 7
"""Versions of the protocol from which on features are listed."""
_CHECKING = {
    "minReaderVersion": _FEATURES_READER,
    "minWriterVersion": _FEATURES_WRITER,
    "readerFeatures": ["timestampNtz"],
    "writerFeatures": ["timestampNtz", "invariants", "checkConstraints", "generatedColumns"],
}
"""The protocol of a table whose rules deltalake checks."""


def asks(table: DeltaTable) -> tuple[object, ...]:
    """Return what must not change between the look at a table and a commit to it."""
    metadata = table.metadata()
    configuration = {
        name: value
        for name, value in metadata.configuration.items()
        if name.startswith(_CONSTRAINT) or name in (_MAPPING, "delta.appendOnly", "delta.enableChangeDataFeed")
    }
    return table.protocol(), table.schema().to_json(), metadata.partition_columns, configuration


def has_mapping(table: DeltaTable) -> bool:
    """Return True if the files have other names for the columns."""
    return table.metadata().configuration.get(_MAPPING, "none").lower() != "none"


def check_writable(table: DeltaTable, *, is_upsert: bool) -> None:
    """Raise PipelineError if the table asks something of its writers that is not done here."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    if has_mapping(table):
        raise _refused(f"the table has column mapping ({_MAPPING} {configuration[_MAPPING]})")
    entry: JsonObject = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.min_reader_version >= _FEATURES_READER:
        entry["readerFeatures"] = protocol.reader_features or []
    if protocol.min_writer_version >= _FEATURES_WRITER:
        entry["writerFeatures"] = protocol.writer_features or []
    if problem := delta_problem(delta_log(_fields(table), entry, configuration), None):
        raise _refused(f"deltalake cannot write to the table: {problem}")
    if is_upsert:
        for name, what in (("delta.appendOnly", "is appended to only"), ("delta.enableChangeDataFeed", "has a feed")):
            if configuration.get(name, "").lower() == "true":
                raise PipelineError(f"the table {what} ({name})", field="mode", fix="Set it to false, or append")


def missing_columns(table: DeltaTable, given: pa.Schema) -> list[pa.Field]:
    """Return the table's columns that rows with these columns leave null; other differences are PipelineErrors."""
    from deltalake import Schema

    wanted = {field["name"]: field for field in _fields(table)}
    types = {name: _plain_type(field) for name, field in wanted.items()}
    own_types = {
        field["name"]: _plain_type(field) for field in json.loads(Schema.from_arrow(given).to_json())["fields"]
    }
    missing = [name for name in wanted if name not in own_types]
    wrong = [name for name in {*types, *own_types} if name in own_types and types.get(name) != own_types[name]]
    wrong += [name for name in missing if not wanted[name]["nullable"] or name in table.metadata().partition_columns]
    if wrong:
        problem = f"the rows and the table differ in {', '.join(sorted({*wrong, *missing}))}"
        raise PipelineError(problem, field=_NAME, fix="Give the rows the table's columns, or write to another table")
    for name in missing:
        if computed := [marker for marker in _COMPUTED if marker in wanted[name]["metadata"]]:
            problem = f"the table's column `{name}` is computed by its writers ({computed[0]})"
            raise PipelineError(problem, field=_NAME, fix="Give the rows this column, or write to another table")
    columns = pa.schema(table.schema().to_arrow())
    return [columns.field(name) for name in missing]


def rules_of(table: DeltaTable, names: Sequence[str], partition_by: Sequence[str]) -> Rules:
    """Return what the table asks of rows whose columns come in this order. Raises PipelineError if that is unknown."""
    fields = {field["name"]: field for field in _fields(table)}
    checks = {name: text for name, text in table.metadata().configuration.items() if name.startswith(_CONSTRAINT)}
    expressions = {name.removeprefix(_CONSTRAINT): text for name, text in checks.items()}
    lengths: dict[str, tuple[int, int]] = {}
    for name, field in fields.items():
        metadata = field["metadata"]
        if text := metadata.get(_SPARK_TEXT):
            lengths[name] = _lengths(name, text)
        if _INVARIANT in metadata:
            expressions[f"invariant of {name}"] = json.loads(metadata[_INVARIANT])["expression"]["expression"]
        if _GENERATED in metadata:
            expressions[f"generated {name}"] = metadata[_GENERATED]
    columns = pa.schema([pa.schema(table.schema().to_arrow()).field(name) for name in names])
    texts = tuple(name for name in partition_by if pa.types.is_string(columns.field(name).type))
    if not expressions:
        return Rules(columns, lengths, texts)
    shown = "; ".join(f"{name}: {text}" for name, text in expressions.items())
    log = delta_log([_nullable(fields[name]) for name in names], _CHECKING, checks)
    problem = delta_problem(log, pa.schema([field.with_nullable(True) for field in columns]).empty_table())
    if any("/" in re.sub(r"'[^']*'|`[^`]*`", "", text) for text in expressions.values()):
        problem = "deltalake divides whole numbers otherwise than Spark"
    if problem:
        raise _refused(f"the table's rules ({shown}) cannot be checked: {problem}")
    return Rules(columns, lengths, texts, log, shown)


def _refused(problem: str) -> PipelineError:
    return PipelineError(problem, field=_NAME, fix="Write to a table without, or with foreach_batch")


def _fields(table: DeltaTable) -> list[JsonObject]:
    fields: list[JsonObject] = json.loads(table.schema().to_json())["fields"]
    return fields


def _nullable(field: Any) -> Any:
    """Return a field, or a type, of a schema's JSON with nulls allowed everywhere."""
    if isinstance(field, list):
        return [_nullable(item) for item in field]
    if not isinstance(field, dict):
        return field
    flags = ("nullable", "containsNull", "valueContainsNull")
    return {name: True if name in flags else _nullable(part) for name, part in field.items()}


def _plain_type(field: JsonObject) -> Any:
    """Return the type of a field without what it says of nulls, and without metadata."""

    def plain(kind: Any) -> Any:
        if isinstance(kind, list):
            return [plain(item) for item in kind]
        if not isinstance(kind, dict):
            return kind
        return {name: plain(part) for name, part in kind.items() if name != "metadata"}

    return plain(_nullable(field["type"]))


def _lengths(name: str, declared: str) -> tuple[int, int]:
    """Return the least and the most characters of a column that Spark knows as char(n) or varchar(n)."""
    match = re.fullmatch(r"(var)?char\((\d+)\)", declared)
    if match is None:
        raise _refused(f"column `{name}` is {declared}, whose texts have a length")
    return 0 if match[1] else int(match[2]), int(match[2])
