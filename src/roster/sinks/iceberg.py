"""An Iceberg table, exactly once by positions in the table's own snapshots."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from roster._extras import missing_error
from roster._json import loads
from roster.model import TopicPartition
from roster.model.topics import offsets_by_topic
from roster.pipeline.batch import Batch
from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.spark_types import StructType
from roster.sinks.table import KEYS, CommitLostError, TableSink, WrittenFiles, named
from roster.sinks.tasks.parquet import ParquetWriter, WrittenFile
from roster.sinks.tasks.rules import Rules
from roster.sinks.upsert import DataFile, bounds

if TYPE_CHECKING or find_spec("pyiceberg") is not None:
    from pyiceberg import manifest as iceberg_manifest
    from pyiceberg.catalog import load_catalog
    from pyiceberg.conversions import from_bytes
    from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io import pyarrow as iceberg_arrow
    from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.typedef import Record
else:  # type hints resolve without the extra
    Table = Snapshot = Any

_COMMIT = "roster.commit"
_EPOCH, _EPOCH_TIME = datetime.date(1970, 1, 1), datetime.datetime(1970, 1, 1)  # noqa: DTZ001
_NEWEST_VERSION = 2
"""Of Iceberg's format, that pyiceberg writes."""


class IcebergSink(TableSink[Table]):
    """Writes to the Iceberg table `table`, such as "shop.orders", exactly once.

    `mode` and `keys` are as for `DeltaSink`. An upsert replaces the files that hold its keys
    ([what that costs](../how-to/one-row-a-key.md)); they go when snapshots are expired, which is left to the table's
    owner. The table's property `roster.keys` has the keys.

    `catalog` has a catalog's properties as pyiceberg takes them, for example `{"type": "sql", "uri": "sqlite:////…",
    "warehouse": "s3://bucket/warehouse"}`, with those of the file system (`s3.endpoint`, …); `name`, else "default", is
    the catalog's name, by which a SQL catalog keeps its tables apart. Executors reach the warehouse, the driver the
    catalog too. Namespace and table are created by the first batch, with `partition_by` as identity partitions. Several
    applications of a group, and other writers, may write to the table.

    Each snapshot of this sink has in its summary, as `roster.positions.<group>`, the next offset of every partition of
    the group; the newest such snapshot among the current one's ancestors counts. A commit goes through only if it is
    the first on the snapshot read, and the positions there are where the batch begins. Expiring snapshots must leave
    that one and those after it. Files of batches that failed are removed as far as the driver knows them.

    `compression`, `target_file_bytes` and `row_group_bytes` are as for `DeltaSink`. Needs the extra `iceberg`.
    Raises MissingExtraError without it, and PipelineError for a name without namespace. A run fails with PipelineError
    if catalog or warehouse cannot be reached, rows have other columns than the table, or it has other keys.
    """

    name = "IcebergSink"
    _settings = "catalog"

    def __init__(
        self,
        table: str,
        catalog: Mapping[str, str],
        *,
        mode: str = "append",
        keys: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        compression: str = "zstd",
        target_file_bytes: int | None = None,
        row_group_bytes: int = 64 << 20,
    ) -> None:
        super().__init__(table, mode, keys, partition_by, compression, target_file_bytes, row_group_bytes)
        if find_spec("pyiceberg") is None:
            raise missing_error("IcebergSink", "iceberg", ["pyiceberg"])
        if not all(table.split(".")) or "." not in table:
            raise PipelineError(f"{table!r} has no namespace and name", field="table", fix="For example 'shop.orders'")
        self._properties = dict(catalog)
        self._catalog: Any = None
        self._known: dict[str, list[DataFile]] = {}
        """Data files of the snapshot read last, by the path of their manifest."""

    @override
    def _read(self) -> Table | None:
        try:
            if self._catalog is None:
                self._catalog = load_catalog(self._properties.get("name", "default"), **self._properties)
            table: Table = self._catalog.load_table(self._where)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        return table

    @override
    def _stored(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        positions = _positions(self._current, group)
        return {p: positions[p] for p in partitions if p in positions}

    @override
    def _writer(self, schema: StructType, *, creates: bool) -> tuple[ParquetWriter, Rules | None]:
        self.check(schema)
        columns = arrow_schema(schema)
        table = self._recent()
        if table is None:
            if not creates:
                return ParquetWriter("", columns, self._partition_by), None
            table = self._create(columns)
        if table.format_version > _NEWEST_VERSION:
            problem = f"pyiceberg does not write tables of version {table.format_version}"
            raise PipelineError(problem, field=self.name, fix="Write to a table of version 2, or with foreach_batch")
        self._check_declared(table.properties.get(KEYS))
        names = self._identity_columns(table)
        scheme, netloc, path = _parsed(table.location())
        filesystem = table.io.fs_by_scheme(scheme, netloc)  # type: ignore[attr-defined]
        fields = self._fields(table, columns)
        return self._file_writer(f"{path}/data", fields, names, filesystem), Rules(fields)

    @override
    def _asks(self) -> tuple[object, ...]:
        table = self._current
        return table.format_version, table.schema(), table.spec()

    @override
    def _try_create(self, columns: pa.Schema) -> None:
        self._catalog.create_namespace_if_not_exists(self._where.rpartition(".")[0])
        properties = {TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true"}
        if self._is_upsert:
            properties[KEYS] = json.dumps(self._keys)
        with self._catalog.create_table_transaction(self._where, columns, properties=properties) as transaction:
            if self._partition_by:
                with transaction.update_spec() as spec:
                    for name in self._partition_by:
                        spec.add_identity(name)

    def _identity_columns(self, table: Table) -> tuple[str, ...]:
        """Return the columns that partition the table. Raise PipelineError for what this sink cannot compute."""
        fields = table.spec().fields
        if not all(isinstance(field.transform, IdentityTransform) for field in fields):
            problem = f"{self._where} is partitioned by {', '.join(str(field.transform) for field in fields)}"
            fix = "Only identity partitions are written here; add a column, or write with foreach_batch"
            raise PipelineError(problem, field=self.name, fix=fix)
        names = tuple(table.schema().find_column_name(field.source_id) or "" for field in fields)
        if inner := [name for name in names if name not in {field.name for field in table.schema().fields}]:
            problem = f"{self._where} is partitioned by {inner[0]}, which is not a column of its own"
            raise PipelineError(problem, field=self.name, fix="Partition by a column, or write with foreach_batch")
        if required := [name for name in names if table.schema().find_field(name).required]:
            problem = (
                f"{self._where} is partitioned by {required[0]}, which is required: files here leave it to the metadata"
            )
            raise PipelineError(problem, field=self.name, fix="Make the column optional, or write with foreach_batch")
        self._check_partitioning(names)
        return names

    def _fields(self, table: Table, own: pa.Schema) -> pa.Schema:
        """Return the table's columns with their ids, the rows' first. Raise PipelineError for columns that differ."""
        wanted = {field.name: field for field in table.schema().fields}
        fields = iceberg_arrow.schema_to_pyarrow(table.schema(), include_field_ids=True)
        missing = [name for name in wanted if name not in own.names]
        wrong = [
            name for name in own.names if name not in wanted or _plain(fields.field(name)) != _plain(own.field(name))
        ]
        wrong += [name for name in missing if wanted[name].required or wanted[name].write_default is not None]
        if wrong:
            self._refuse_columns(sorted({*wrong, *missing}))
        return pa.schema([fields.field(name) for name in (*own.names, *missing)])

    @override
    def _file_rows(self, writer: ParquetWriter) -> Callable[[DataFile, Sequence[str]], pa.Table]:
        def read(file: DataFile, names: Sequence[str]) -> pa.Table:
            # By pyiceberg, as a file's columns may have had other names, types or defaults.
            table = self._current
            scan = iceberg_arrow.ArrowScan(table.metadata, table.io, table.schema().select(*names), AlwaysTrue())
            rows = scan.to_table([FileScanTask(file.entry)])
            fields = [writer.schema.field(name) for name in names]
            return pa.table([rows[field.name].cast(field.type) for field in fields], schema=pa.schema(fields))

        return read

    @override
    def _data_files(self, writer: ParquetWriter, keys: Sequence[str]) -> list[DataFile]:
        table = self._current
        snapshot = table.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        known: dict[str, list[DataFile]] = {}
        for manifest in manifests:
            if manifest.content == iceberg_manifest.ManifestContent.DELETES:
                fix = "Rewrite its data files without (rewrite_data_files), and let others write with copy-on-write"
                raise PipelineError(f"{self._where} has delete files", field=self.name, fix=fix)
            path = manifest.manifest_path
            known[path] = self._known[path] if path in self._known else self._entries(table, manifest, writer, keys)
        self._known = known
        return [file for files in known.values() for file in files]

    def _entries(self, table: Table, manifest: Any, writer: ParquetWriter, keys: Sequence[str]) -> list[DataFile]:
        """Return the data files of a manifest, with bounds of their keys from its statistics."""
        entries = [entry.data_file for entry in manifest.fetch_manifest_entry(table.io)]
        names, schema = writer.partition_by, table.schema()
        if names and manifest.partition_spec_id != table.spec().spec_id and entries:
            fix = "Rewrite its data files (rewrite_data_files)"
            raise PipelineError(f"{self._where} has files of an earlier partitioning", field=self.name, fix=fix)
        statistics: dict[str, pa.Array] = {}
        for number, name in enumerate(names):
            statistics[name] = _column([entry.partition[number] for entry in entries], writer.schema.field(name).type)
        for name in keys:
            field, kind = schema.find_field(name), writer.schema.field(name).type
            of_type: Any = field.field_type
            for side, bounds_of in (("min", "lower_bounds"), ("max", "upper_bounds")):
                bounds_read = [(getattr(entry, bounds_of) or {}).get(field.field_id) for entry in entries]
                values = [None if bound is None else from_bytes(of_type, bound) for bound in bounds_read]
                statistics[f"{side}.{name}"] = _column(values, kind)
            nulls = [(entry.null_value_counts or {}).get(field.field_id) for entry in entries]
            statistics[f"null_count.{name}"] = pa.array(nulls, pa.int64())
        ends = bounds(pa.table(statistics), names, keys)
        values_of = (
            zip(*(statistics[name].to_pylist() for name in names), strict=True) if names else [()] * len(entries)
        )
        return [
            DataFile(
                entry.file_path,
                _parsed(entry.file_path)[2],
                entry.record_count,
                entry.file_size_in_bytes,
                *(low, high, values, prefix, entry),
            )
            for entry, (low, high, prefix), values in zip(entries, ends, values_of, strict=True)
        ]

    @override
    def _try_commit(self, token: str, written: WrittenFiles, batch: Batch) -> None:
        table, owner = self._current, batch.owner
        positions = offsets_by_topic({**_positions(table, owner.group), **batch.next_offsets})
        properties = {
            _COMMIT: token,
            "roster.generation": str(owner.generation),
            "roster.member": owner.member_id,
            f"{_POSITIONS}{owner.group}": json.dumps(positions, separators=(",", ":")),
        }
        # Else pyiceberg retries on another snapshot without checking its positions. Only this copy changes.
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        try:
            transaction = _transaction(table)
            update = transaction.update_snapshot(snapshot_properties=properties)
            with _replacing(update) if written.removed else update.fast_append() as snapshot:
                for removed in written.removed:
                    snapshot.delete_data_file(removed.entry)
                for file in written.files:
                    snapshot.append_data_file(_data_file(table, file))
            transaction.commit_transaction()
        except Exception as error:  # on any error the newest snapshot tells whether the commit succeeded
            raise CommitLostError(named(error), is_told=isinstance(error, CommitFailedException)) from error

    @override
    def _has(self, token: str) -> bool:
        return any(_summary(snapshot).get(_COMMIT) == token for snapshot in _ancestors(self._current))

    @override
    def close(self) -> None:
        super().close()
        self._catalog = None


def _transaction(table: Table) -> Any:
    """Return a transaction for one snapshot: it sees none of its changes, as each look would copy all snapshots."""

    class OneSnapshot(Transaction):
        table_metadata = table.metadata

    return OneSnapshot(table)


def _replacing(update: Any) -> Any:
    """Return a snapshot that replaces files, without the manifests of earlier ones in which all files are deleted.

    pyiceberg keeps these for ever, one of each commit, and reads all of them for the next one.
    """
    snapshot = update.overwrite()
    process = snapshot._process_manifests

    def with_files(manifests: Sequence[Any]) -> list[Any]:
        return [
            manifest
            for manifest in process(manifests)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            or manifest.added_files_count != 0
            or manifest.existing_files_count != 0
        ]

    snapshot._process_manifests = with_files
    return snapshot


_POSITIONS = "roster.positions."
"""What the key of a group's positions in a snapshot's summary begins with."""


def _ancestors(table: Table) -> Iterator[Snapshot]:
    """The current snapshot and its kept ancestors."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.parent_snapshot_id or 0)


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _positions(table: Table, group: str) -> dict[TopicPartition, int]:
    key = f"{_POSITIONS}{group}"
    for snapshot in _ancestors(table):
        text = _summary(snapshot).get(key)
        if text is not None:
            try:
                nested = loads(text)
                return {
                    TopicPartition(t, int(n)): int(offset)
                    for t, offsets in nested.items()
                    for n, offset in offsets.items()
                }
            except (ValueError, AttributeError, TypeError) as error:
                name = f"{key} of snapshot {snapshot.snapshot_id}"
                raise PipelineError(f"{name} is damaged: {error!r}", field="table") from None
    return {}


def _parsed(location: str) -> tuple[str, str, str]:
    return iceberg_arrow.PyArrowFileIO.parse_location(location)


def _data_file(table: Table, file: WrittenFile) -> Any:
    """Return the manifest's entry for a file, with statistics from its own metadata."""
    schema = table.schema()
    statistics = iceberg_arrow.data_file_statistics_from_parquet_metadata(
        pq.read_metadata(pa.BufferReader(file.footer)),
        stats_columns=iceberg_arrow.compute_statistics_plan(schema, table.properties),
        parquet_column_mapping=iceberg_arrow.parquet_path_to_id_mapping(schema),
    )
    data_file = iceberg_manifest.DataFile.from_args(
        content=iceberg_manifest.DataFileContent.DATA,
        file_path=f"{table.location()}/data/{file.name}",
        file_format=iceberg_manifest.FileFormat.PARQUET,
        partition=Record(*(_partition_value(value) for value in file.values)),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    data_file.spec_id = table.spec().spec_id
    return data_file


def _column(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Return values as manifests have them, days and microseconds since 1970, with their type."""
    if pa.types.is_date(kind):
        return pa.array([_partition_value(value) for value in values], pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def _partition_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return (value.replace(tzinfo=None) - _EPOCH_TIME) // datetime.timedelta(microseconds=1)
    return (value - _EPOCH).days if isinstance(value, datetime.date) else value


def _plain(column: pa.Field) -> str:
    """Return the type of a column without what it says of nulls and ids."""

    def plain(kind: pa.DataType) -> str:
        if pa.types.is_struct(kind):
            return f"struct<{', '.join(f'{child.name}: {plain(child.type)}' for child in kind)}>"
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return f"list<{plain(kind.value_type)}>"
        if pa.types.is_map(kind):
            return f"map<{plain(kind.key_type)}, {plain(kind.item_type)}>"
        return str(kind).removeprefix("large_")

    return plain(column.type)
