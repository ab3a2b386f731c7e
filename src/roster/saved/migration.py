"""State made anew by a function on DataFrames: the way of a change that cannot be made in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema

from roster._json import JsonObject
from roster.pipeline.errors import PipelineError, reason_of
from roster.pipeline.spark_schemas import column_differences, column_types
from roster.saved.export import STORES, Export, export
from roster.saved.importing import import_state
from roster.saved.job import Sessions, StateProgress, session_of
from roster.security import Security
from roster.state.definition import DAMAGED, Definition, Document
from roster.state.processor.entries import VALUE_OF
from roster.state.processor.variables import REGISTRY_KEY
from roster.state.saved.folder import Folder, FolderError, Written
from roster.state.saved.manifest import MANIFEST, Manifest, SavedStore
from roster.state.saved.parts import saved
from roster.state.saved.plain import ENTRIES
from roster.state.saved.variables import POSITION
from roster.state.store import StateError

Migration = Callable[[DataFrame, str, str], DataFrame]
"""Makes the new rows of a store's part: rows, store, part."""

PARTITION = "partition"
"""Column of the changelog partition that a row is in."""
_OWN = {PARTITION: "int", POSITION: "bigint"}
_LIST = VALUE_OF["list"]


def migrate_state(
    spark: Sessions,
    bootstrap: str | Sequence[str],
    group: str,
    into: str,
    function: Migration,
    definition: Mapping[str, Document],
    via: str,
    *,
    security: Security | Mapping[str, object] | None = None,
    on_progress: Callable[[StateProgress], None] | None = None,
) -> int:
    """Make the state of a new group from that of a group, which may be running; return the number of records written.

    The group is exported, the function makes the new rows, and these are imported.

    Args:
        spark: the session, or a function that returns one.
        bootstrap: brokers to ask first.
        group: the group.
        into: a group without members, offsets and state.
        function: called as `function(rows, store, part)` for each part of each store. It returns the rows of the new
            release with the columns that its definition gives the part, and `partition`. Rows of a key stay in its
            partition; a list's elements also have `position`, by which they are ordered.
        definition: of the new release, as `Pipeline.describe_state` returns it. Its stores have the earlier names.
        via: an empty folder, as for `export`; the export stays in `export`, what became of it in `migrated`.
        security: as for `Pipeline`.
        on_progress: called with news, at most once a second, by the export and by the import.

    Raises:
        PipelineError: as of `export` and `import_state`; or the rows do not fit the definition.
        ClientError: the cluster does not answer.
    """
    more: JsonObject = {"security": security, "on_progress": on_progress}
    try:
        begun = Folder(via)
        if begun.names():
            raise PipelineError(f"{begun.shown} is not empty", field="via", fix="Name an empty folder")
        target = begun.below("migrated")
    except FolderError as error:
        raise PipelineError(str(error), field="via") from None
    exported = export(spark, bootstrap, group, begun.below("export").place, **more)
    _check_can_migrate(exported.manifest, definition)
    session = session_of(spark)
    stores = {
        name: _migrated_store(session, exported, target, function, name, Definition.from_described(document))
        for name, document in definition.items()
    }
    target.write(MANIFEST, replace(exported.manifest, stores=stores).encode())
    return import_state(spark, bootstrap, into, target.place, **more)


def _check_can_migrate(manifest: Manifest, stores: Iterable[str]) -> None:
    """Raise PipelineError for rows that no store has yet, and for a store that the export does not have."""
    if any(files for _, files in manifest.on_their_way.values()):
        problem = f"{manifest.group!r} has rows on their way between its sub-topologies"
        fix = "Stop what writes its input until it has read all, then migrate"
        raise PipelineError(problem, field="group", fix=fix)
    if unknown := [name for name in stores if name not in manifest.stores]:
        fix = f"The stores of the export are {', '.join(manifest.stores)}; a store keeps its name"
        raise PipelineError(f"there is no store {unknown[0]!r} to make it of", field="definition", fix=fix)


def _migrated_store(
    spark: SparkSession, exported: Export, target: Folder, function: Migration, name: str, definition: Definition
) -> SavedStore:
    before = exported.manifest.stores[name]
    registry = next((marks[REGISTRY_KEY] for marks in before.marks.values() if REGISTRY_KEY in marks), None)
    try:
        schemas = saved(definition, registry).schemas()
    except DAMAGED as error:
        raise PipelineError(f"{name!r}: {error}", field="definition", fix="Use what describe_state() returns") from None
    files: dict[str, tuple[Written, ...]] = {}
    for part, schema in schemas.items():
        if part in before.files:
            own = [PARTITION, POSITION] if _LIST in schema.names else [PARTITION]
            rows = function(_rows(spark, exported, before.files[part], own), name, part)
            where = f"{name!r}, {part}"
            _check_columns(where, rows, schema, own)
            task = _WritePart(target, f"{STORES}/{name}/{part}", schema, definition if part == ENTRIES else None)
            files[part] = _written(where, rows, task, frozenset(before.notes))
    return replace(
        before,
        notes={number: replace(noted, definition=definition, releases=()) for number, noted in before.notes.items()},
        columns={part: {field.name: str(field.type) for field in schemas[part]} for part in files},
        files=files,
    )


def _rows(spark: SparkSession, exported: Export, files: Sequence[Written], own: Sequence[str]) -> DataFrame:
    number = functions.regexp_extract(functions.col("_metadata.file_name"), r"(\d+)\.parquet$", 1).cast("int")
    more = {PARTITION: number, POSITION: functions.col("_metadata.row_index")}
    return exported.rows(spark, files).withColumns({name: more[name] for name in own})


def _check_columns(where: str, rows: DataFrame, schema: pa.Schema, own: Sequence[str]) -> None:
    """Raise PipelineError with all differences between the rows' columns and a part's."""
    if not isinstance(rows, DataFrame):
        raise PipelineError(f"{where}: it returned {type(rows).__name__}", field="function", fix="Return a DataFrame")
    fields = column_types(from_arrow_schema(schema)) | {name: _OWN[name] for name in own}
    if differ := column_differences(column_types(rows.schema), fields):
        fix = f"Return {', '.join(f'{name} {kind}' for name, kind in fields.items())}"
        raise PipelineError(f"{where}: {differ}", field="function", fix=fix)


class _WritePart(NamedTuple):
    """Writes the rows of one partition as a file. definition: of a store with one row for each key."""

    folder: Folder
    name: str
    schema: pa.Schema
    definition: Definition | None

    def __call__(self, numbers: tuple[Any, ...], table: pa.Table) -> pa.Table:
        """Return what was written, or a problem."""
        number = numbers[0].as_py()
        try:
            ordered = table.sort_by(POSITION) if _LIST in self.schema.names else table
            rows = ordered.select(self.schema.names).cast(self.schema)
            self._check(rows)
            result: Any = self.folder.write_table(f"{self.name}/{number}.parquet", [rows], self.schema)._asdict()
        except (StateError, pa.ArrowException, ValueError, LookupError, TypeError) as error:
            result = {"problem": f"partition {number}: {error}"}
        return pa.Table.from_pylist([{"number": number, **result}], _RESULT)

    def _check(self, rows: pa.Table) -> None:
        if self.definition is None or "session" in self.definition.document:
            return
        keys = saved(self.definition).entries({ENTRIES: rows})["key"]
        if len(pc.unique(keys)) < len(keys):
            raise StateError("two rows have the same key")


_RESULT = pa.schema(
    {"number": pa.int32(), "path": pa.string(), "rows": pa.int64(), "bytes": pa.int64(), "sha256": pa.string()}
    | {"problem": pa.string()}
)


def _written(where: str, rows: DataFrame, task: _WritePart, numbers: frozenset[int]) -> tuple[Written, ...]:
    """Write the rows by their partition. Raises PipelineError."""

    def write(numbers: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return task(numbers, table)

    try:
        done = rows.groupBy(PARTITION).applyInArrow(write, from_arrow_schema(_RESULT)).collect()
    except PySparkException as error:
        raise PipelineError(f"{where}: {reason_of(error)}", field="function") from None
    if problem := next((row["problem"] for row in done if row["problem"]), ""):
        raise PipelineError(f"{where}, {problem}", field="function")
    if strange := {row["number"] for row in done} - numbers:
        has = ", ".join(map(str, sorted(numbers)))
        fix = f"Rows keep their `{PARTITION}`; the export has {has}"
        raise PipelineError(f"{where}: there are rows of partition {strange.pop()}", field="function", fix=fix)
    return tuple(Written(*(row[name] for name in Written._fields)) for row in sorted(done))
