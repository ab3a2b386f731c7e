"""State begun with a table that never was one, such as totals of a warehouse."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.pandas.types import from_arrow_schema

from roster.model import TopicPartition
from roster.model.topology import TopologyError, changelog_topic
from roster.security import Security
from roster.spark.errors import PipelineError, reason_of
from roster.spark.options import as_columns, parse_topics
from roster.spark.pipeline_options import StartingOffsets
from roster.spark.state.saved.columns import column_differences, column_types
from roster.spark.state.saved.export import Export
from roster.spark.state.saved.importing import Importer, Plan
from roster.spark.state.saved.job import StateProgress, reader_config
from roster.spark.state.saved.moving import KeyedBy
from roster.spark.state.tasks.importing import LogFiles
from roster.spark.state.tasks.moving import placing_keys
from roster.spark.state.tasks.placement import Placement, PlacementError, placements
from roster.spark.state.tasks.seeding import SeedTask
from roster.state.definition import DAMAGED, STATE_KEY, Definition, Noted
from roster.state.saved.folder import Folder
from roster.state.saved.manifest import Manifest, SavedStore
from roster.state.saved.parts import saved
from roster.state.saved.plain import ENTRIES, SavedAggregates, SavedFirstRows


def seed_state(
    spark: SparkSession,
    bootstrap: str | Sequence[str],
    group: str,
    definition: Mapping[str, Any],
    table: DataFrame,
    *,
    topics: str | Sequence[str],
    offsets: StartingOffsets,
    store: str | None = None,
    keyed_by: str | Sequence[str] = (),
    partitioner: str = "murmur2",
    security: Security | Mapping[str, object] | None = None,
    on_progress: Callable[[StateProgress], None] | None = None,
) -> int:
    """Make a table the state of an aggregate or a deduplication of a new group; return the number of records written.

    A pipeline of this group then goes on from the offsets. It is one transaction: it is whole, or has not happened.

    Args:
        spark: the session.
        bootstrap: brokers to ask first.
        group: a group without members, offsets and state.
        definition: what `Pipeline.describe_state` returns, for a pipeline without `repartition`.
        table: a row for each key, with the columns of an export of such a store, in any order.
        topics: the input topics of the pipeline.
        offsets: where the group goes on in them, as `starting_offsets` of `Pipeline`.
        store: the name of the store, if there are several; the others begin empty.
        keyed_by: the key columns that the records of the input topics have as key, of integers with a form, as in
            `"n:int64"`; may be left out for a single column of text or bytes.
        partitioner: `murmur2`, as of Kafka's default partitioner, or `crc32`, as of librdkafka's.
        security: as for `Pipeline`.
        on_progress: called with news, at most once a second.

    Raises:
        PipelineError: the table does not have these columns, a key is null or there twice, or the group is not new.
        ClientError: the cluster does not answer.

    """
    config = reader_config(bootstrap, group, f"{group}-import", security)
    stores, inputs = _stores(definition), parse_topics(topics)
    if isinstance(inputs, re.Pattern):
        raise PipelineError("a pattern names no partitions", field="topics", fix="Name the topics")
    name = _named(stores, store)
    noted, columns = _columns(name, stores[name], inputs)
    _check_columns(name, columns, table)
    placement = _placement(noted.definition, as_columns(keyed_by), partitioner)
    rows = table.select(*(F.col(f"`{each}`") for each in columns.names))
    _check_keys(rows, noted.definition.keys.names, placement)
    seeder = _Seeder(spark, config, _empty(group, stores, inputs), offsets, KeyedBy(), on_progress)
    seeder.table = name, noted, rows, placement
    return seeder.run()


class _Seeder(Importer):
    """An import whose rows come from a table: of which store, its definition, the rows, and how they are placed."""

    table: tuple[str, Noted, DataFrame, Placement]

    def planned(self, offsets: Mapping[TopicPartition, int]) -> Plan:
        """Return the partitions of the table's store, which get its rows."""
        name, noted, rows, placement = self.table
        store, marks = self.manifest.stores[name], {STATE_KEY: noted.encode()}
        logs: list[LogFiles] = [self.log(store, n, offsets, marks, {}) for n in range(self.counts[store.changelog])]
        task = SeedTask(noted.encode(), placement, len(logs))
        return Plan(logs, split=rows.mapInArrow(task, "log int, part long, entries binary").rdd.map(as_chunk))


def as_chunk(row: Any) -> tuple[int, tuple[int, bytes]]:
    """Return a row of `SeedTask` as a task of an import takes it."""
    return row[0], (row[1], bytes(row[2]))


def _stores(definition: Mapping[str, Any]) -> dict[str, Definition]:
    """Return the definition of each store. Raises PipelineError for one that cannot be begun with a table."""
    try:
        stores = {name: Definition(dict(document)) for name, document in definition.items()}
        behind = [name for name, each in stores.items() if each.document["subtopology"]]
    except DAMAGED:
        fix = "Use what describe_state of the pipeline returns"
        raise PipelineError("it describes no state", field="definition", fix=fix) from None
    if not stores:
        raise PipelineError("it describes no state", field="definition", fix="Give the pipeline an operator with state")
    if behind:
        raise PipelineError(
            "a table cannot be the state of a pipeline with repartition",
            field="definition",
            fix="Repartition in a pipeline of its own, into a topic that another one reads",
        )
    return stores


def _named(stores: Mapping[str, Any], store: str | None) -> str:
    if store is None and len(stores) == 1:
        return next(iter(stores))
    if store is None or store not in stores:
        problem = "the pipeline has several" if store is None else f"the pipeline has no store {store!r}"
        raise PipelineError(problem, field="store", fix=f"Name one of {', '.join(stores)}")
    return store


def _columns(name: str, definition: Definition, topics: Iterable[str]) -> tuple[Noted, pa.Schema]:
    """Return a store's definition and the columns of its rows. Raises PipelineError for a store of another kind."""
    try:
        noted = Noted(definition, dict.fromkeys(topics, 0))
        reader = None if noted.definition.has_variables else saved(noted.definition)
    except DAMAGED as error:
        raise PipelineError(f"{name!r} cannot be read ({error})", field="definition") from None
    if not isinstance(reader, (SavedAggregates, SavedFirstRows)):
        raise PipelineError(
            f"{name!r} is of {noted.definition.document.get('operator')}",
            field="store",
            fix="A table can be the state of aggregate, without sessions, and of deduplicate",
        )
    return noted, reader.schemas()[ENTRIES]


def _check_columns(name: str, columns: pa.Schema, table: DataFrame) -> None:
    """Raise PipelineError that lists all differences between a table's columns and those of the store."""
    if differ := column_differences(column_types(table.schema), column_types(from_arrow_schema(columns))):
        raise PipelineError(
            f"its columns are not those of {name!r}: {differ}", field="table", fix="Select and cast them"
        )


def _placement(definition: Definition, named: Sequence[str], partitioner: str) -> Placement:
    """Return how keys are placed. Raises PipelineError if that is not said."""
    try:
        found = placements(placing_keys(definition), named, partitioner)
    except PlacementError as error:
        raise PipelineError(str(error), field="keyed_by") from None
    if len(found) != 1:
        raise PipelineError(
            f"the records' key may be {'; '.join(map(str, found))}",
            field="keyed_by",
            fix="Name the key columns that the records of the input have as key, of an integer with its form, as in"
            " keyed_by='n:int64'",
        )
    return found[0]


def _check_keys(rows: DataFrame, keys: Sequence[str], placement: Placement) -> None:
    """Raise PipelineError for a key that is there twice, or for one without a record key."""
    columns = [F.col(f"`{name}`") for name in keys]
    count = "rows of the key"
    wrong = F.col(f"`{count}`") > 1
    if len(placement.columns) == 1:
        wrong |= F.col(f"`{placement.columns[0]}`").isNull()
    try:
        found = rows.groupBy(*columns).agg(F.count(F.lit(1)).alias(count)).where(wrong).limit(1).collect()
    except PySparkException as error:
        raise PipelineError(reason_of(error), field="table") from None
    if found:
        key = ", ".join(f"{name} {found[0][name]!r}" for name in keys)
        problem = "has no value to be placed by" if found[0][count] == 1 else f"is there {found[0][count]} times"
        raise PipelineError(f"the key {key} {problem}", field="table", fix="Give it one row for each key")


def _empty(group: str, stores: Iterable[str], inputs: Iterable[str]) -> Export:
    """Return an export of the group without rows: its stores, and partition 0 of its input topics."""
    try:
        saved_stores = {name: SavedStore(changelog_topic(group, name), 1, {}) for name in stores}
    except TopologyError as error:
        raise PipelineError(str(error), field="group") from None
    offsets = {TopicPartition(topic, 0): 0 for topic in inputs}
    return Export(Folder("."), Manifest(group, None, "", saved_stores, offsets))
