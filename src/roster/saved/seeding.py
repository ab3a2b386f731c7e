"""State begun with tables that never were one, such as totals of a warehouse."""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.pandas.types import from_arrow_schema

from roster.model import TopicPartition
from roster.model.topology import TopologyError, changelog_topic
from roster.pipeline.errors import PipelineError, reason_of
from roster.pipeline.options import as_columns, parse_topics
from roster.pipeline.pipeline_options import StartingOffsets
from roster.pipeline.spark_schemas import column_differences, column_types
from roster.pipeline.tasks.reader import ReaderConfig
from roster.saved.export import Export
from roster.saved.importing import Importer, Plan
from roster.saved.job import Sessions, StateProgress, reader_config, session_of
from roster.saved.moving import KeyedBy
from roster.saved.tasks.importing import LogFiles
from roster.saved.tasks.moving import STRUCT, SeedTask
from roster.security import Security
from roster.state.definition import DAMAGED, STATE_KEY, Definition, Document, Noted
from roster.state.processor.variables import REGISTRY_KEY
from roster.state.saved.folder import Folder, FolderError
from roster.state.saved.manifest import Manifest, SavedStore
from roster.state.saved.parts import SeedPart, seed_parts
from roster.state.saved.plain import ENTRIES
from roster.state.saved.variables import part_of
from roster.state.windows import END, START
from roster.stateful.tasks.placement import Placement, PlacementError, placements, placing_keys


def seed_state(
    spark: Sessions,
    bootstrap: str | Sequence[str],
    group: str,
    definition: Mapping[str, Document],
    table: DataFrame | Mapping[str, DataFrame] | str,
    *,
    topics: str | Sequence[str],
    offsets: StartingOffsets,
    store: str | None = None,
    keyed_by: str | Sequence[str] = (),
    partitioner: str = "murmur2",
    security: Security | Mapping[str, object] | None = None,
    on_progress: Callable[[StateProgress], None] | None = None,
) -> int:
    """Make tables the state of an operator of a new group; return the number of records written.

    A pipeline of this group then goes on from the offsets. It is one transaction: it is whole, or has not happened.

    Args:
        spark: the session, or a function that returns one.
        bootstrap: brokers to ask first.
        group: a group without members, offsets and state.
        definition: what `Pipeline.describe_state` returns, for a pipeline without `repartition`.
        table: rows with the columns of an export of such a store, in any order, but without those that are the
            store's own: `ends` of sessions, `schema` of variables; elements of lists also have `position`. For a join
            or a processor, a table by the name of each part: `left`, `right`, variables, `timers`, `initial`; one
            that is missing has no rows. Or a folder in Parquet, with a folder for each part.
        topics: the input topics of the pipeline.
        offsets: where the group goes on in them, as `starting_offsets` of `Pipeline`.
        store: the name of the store, if there are several; the others begin empty.
        keyed_by: the key columns that the records of the input topics have as key, of integers with a form, as in
            `"n:int64"`; may be left out for a single column of text or bytes.
        partitioner: `murmur2`, as of Kafka's default partitioner, `crc32`, as of librdkafka's, or another one of
            `import_state`'s.
        security: as for `Pipeline`.
        on_progress: called with news, at most once a second.

    Raises:
        PipelineError: a table does not have these columns, a key is null or there twice, or the group is not new.
        ClientError: the cluster does not answer.
    """
    config = reader_config(bootstrap, group, f"{group}-import", security)
    stores, inputs = _described_stores(definition), parse_topics(topics)
    if isinstance(inputs, re.Pattern):
        raise PipelineError("a pattern names no partitions", field="topics", fix="Name the topics")
    name = _chosen_store(stores, store)
    own = stores[name]
    placement = _chosen_placement(own, as_columns(keyed_by), partitioner)
    empty = _empty_export(group, stores, inputs)
    Importer(spark, config, empty, offsets, KeyedBy(), on_progress).check()
    parts = _parts(name, own, _tables(session_of(spark), table, own))
    for part, rows in parts.values():
        _check_rows(part, rows, placement)
    seed = _Seed(name, Noted(own, dict.fromkeys(inputs, 0)), parts, placement)
    return _Seeder(spark, config, empty, offsets, on_progress, seed).run()


class _Seed(NamedTuple):
    """The store, its definition, the columns and rows of each part, and how they are placed."""

    store: str
    definition: Noted
    parts: Mapping[str, tuple[SeedPart, DataFrame]]
    placement: Placement


class _Seeder(Importer):
    """An import whose rows come from tables."""

    def __init__(
        self,
        spark: Sessions,
        config: ReaderConfig,
        empty: Export,
        offsets: StartingOffsets | None,
        on_progress: Callable[[StateProgress], None] | None,
        seed: _Seed,
    ) -> None:
        super().__init__(spark, config, empty, offsets, KeyedBy(), on_progress)
        self._seed = seed

    def planned(self, offsets: Mapping[TopicPartition, int]) -> Plan:
        """Return the partitions of the store, which get the rows."""
        name, noted, parts, placement = self._seed
        store, registry = self.manifest.stores[name], noted.definition.registry
        marks = {STATE_KEY: noted.encode()} | ({REGISTRY_KEY: registry} if registry else {})
        logs: list[LogFiles] = [self.log(store, n, offsets, marks, {}) for n in range(self.counts[store.changelog])]
        keys = placing_keys(noted.definition)
        tasks = {name: SeedTask(name, part.columns, keys, placement, len(logs)) for name, (part, _) in parts.items()}
        chunks = [rows.mapInArrow(tasks[name].__call__, _CHUNK).rdd for name, (_, rows) in parts.items()]
        # A function without a name: workers need not import this module, which loads the client.
        as_chunk: Any = lambda row: (row[0], (row[1], row[2], bytes(row[3])))  # noqa: E731
        return Plan(logs, split=session_of(self._spark).sparkContext.union(chunks).map(as_chunk))


_CHUNK = "log int, part string, number long, rows binary"


def _described_stores(definition: Mapping[str, Document]) -> dict[str, Definition]:
    """Return the definition of each store. Raises PipelineError for one that cannot be begun with a table."""
    stores, behind = dict[str, Definition](), list[str]()
    with contextlib.suppress(*DAMAGED):
        parsed = {name: Definition.from_described(document) for name, document in definition.items()}
        behind = [name for name, store in parsed.items() if store.document["subtopology"]]
        stores = parsed
    if not stores:
        fix = "Use what describe_state of the pipeline returns, which has an operator with state"
        raise PipelineError("it describes no state", field="definition", fix=fix)
    if behind:
        fix = "Repartition in a pipeline of its own, into a topic that another one reads"
        raise PipelineError("a table cannot be the state of a pipeline with repartition", field="definition", fix=fix)
    return stores


def _chosen_store(stores: Mapping[str, object], store: str | None) -> str:
    if store is None and len(stores) == 1:
        return next(iter(stores))
    if store is None or store not in stores:
        problem = "the pipeline has several" if store is None else f"the pipeline has no store {store!r}"
        raise PipelineError(problem, field="store", fix=f"Name one of {', '.join(stores)}")
    return store


def _tables(
    spark: SparkSession, given: DataFrame | Mapping[str, DataFrame] | str, definition: Definition
) -> Mapping[str, DataFrame]:
    """Return the table of each part that is given, by the name that the user gives it."""
    has_parts = definition.sides is not None or definition.has_variables
    if isinstance(given, str):
        try:
            folder = Folder(given)
            names = [name for name in folder.folders() if not name.startswith(("_", "."))]
            places = {name: folder.below(name) for name in names} if has_parts else {ENTRIES: folder}
            return {name: spark.read.parquet(place.uri) for name, place in places.items()}
        except (FolderError, PySparkException) as error:
            raise PipelineError(reason_of(error), field="table", fix="Name a folder with Parquet files") from None
    if has_parts and not isinstance(given, Mapping):
        what = f"the state of {definition.document['operator']} has several parts"
        raise PipelineError(what, field="table", fix="Give a dict of tables, by the name of the part")
    return given if isinstance(given, Mapping) else {ENTRIES: given}


def _parts(
    store: str, definition: Definition, tables: Mapping[str, DataFrame]
) -> dict[str, tuple[SeedPart, DataFrame]]:
    """Return columns and rows of each part. Raises PipelineError that lists all differences of a table's columns."""
    try:
        wanted = seed_parts(definition)
    except DAMAGED as error:
        raise PipelineError(f"{store!r} cannot be read ({error})", field="definition") from None
    parts = {}
    for name, table in tables.items():
        part = part_of(name) if part_of(name) in wanted else name
        if part not in wanted:
            fix = f"Name {', '.join(part.removeprefix('variables/') for part in wanted)}"
            raise PipelineError(f"{store!r} has no part {name!r}", field="table", fix=fix)
        columns = wanted[part].columns
        if differ := column_differences(column_types(table.schema), column_types(from_arrow_schema(columns))):
            where = repr(store) if part == ENTRIES else f"{store!r}, {name!r}"
            raise PipelineError(
                f"its columns are not those of {where}: {differ}", field="table", fix="Select and cast them"
            )
        parts[part] = wanted[part], table.select(*map(_column, columns.names))
    if not parts:
        raise PipelineError("there is no table", field="table", fix="Give one for a part of the store at least")
    return parts


def _column(name: str) -> Column:
    return F.col(f"`{name}`")


def _chosen_placement(definition: Definition, named: Sequence[str], partitioner: str) -> Placement:
    """Return how keys are placed. Raises PipelineError if that is not said."""
    try:
        candidates = placements(placing_keys(definition), named, partitioner)
    except PlacementError as error:
        raise PipelineError(str(error), field="keyed_by") from None
    if len(candidates) != 1:
        raise PipelineError(
            f"the records' key may be {'; '.join(map(str, candidates))}",
            field="keyed_by",
            fix="Name the key columns that the records of the input have as key, of an integer with its form, as in"
            " keyed_by='n:int64'",
        )
    return candidates[0]


_WRONG, _COUNT = "what is wrong", "rows of the key"


def _check_rows(part: SeedPart, rows: DataFrame, placement: Placement) -> None:
    """Raise PipelineError for a row that cannot be placed or lacks a value, and for one whose key is there twice."""
    needed = {name: _column(name) for name in part.present}
    if len(placement.columns) == 1:
        own = placement.columns[0]
        needed[own] = _column(own) if own in part.columns.names else _column(STRUCT)[own]
    problems = ["is there more than once", *(f"has no value of {name}" for name in needed)]
    # Numbers: Spark would sort all rows for the greatest text.
    missing = [F.when(column.isNull(), F.lit(number)) for number, column in enumerate(needed.values(), 1)]
    keys = [_column(name) for name in part.unique]
    counted = rows.groupBy(*keys).agg(
        F.count(F.lit(1)).alias(_COUNT), F.max(F.coalesce(F.lit(None).cast("int"), *missing)).alias(_WRONG)
    )
    twice = [F.when(_column(_COUNT) > 1, F.lit(0))] if keys else []
    _check_none(counted.select(*keys, F.coalesce(_column(_WRONG), *twice).alias(_WRONG)), part.unique, problems)
    if part.gap is not None:
        start, end = _column(START), _column(END)
        following = F.lead(start).over(Window.partitionBy(*keys[1:]).orderBy(start))
        wrong = F.coalesce(F.when(end - start < F.lit(part.gap), F.lit(0)), F.when(following <= end, F.lit(1)))
        sessions = ["has a session that is shorter than its gap", "has a session that the next one would go on with"]
        _check_none(rows.select(*keys, wrong.alias(_WRONG)), part.unique, sessions)


def _check_none(rows: DataFrame, keys: Sequence[str], problems: Sequence[str]) -> None:
    """Raise PipelineError for the first of rows that has the number of a problem."""
    try:
        wrong_rows = rows.where(_column(_WRONG).isNotNull()).limit(1).collect()
    except PySparkException as error:
        raise PipelineError(reason_of(error), field="table") from None
    if wrong_rows:
        key = ", ".join(f"{name} {wrong_rows[0][name]!r}" for name in keys)
        problem = f"{f'the key {key}' if keys else 'a row'} {problems[wrong_rows[0][_WRONG]]}"
        raise PipelineError(problem, field="table", fix="Mend the table")


def _empty_export(group: str, stores: Iterable[str], inputs: Iterable[str]) -> Export:
    """Return an export of the group without rows: its stores, and partition 0 of its input topics."""
    try:
        saved_stores = {name: SavedStore(changelog_topic(group, name), 1, {}) for name in stores}
    except TopologyError as error:
        raise PipelineError(str(error), field="group") from None
    offsets = {TopicPartition(topic, 0): 0 for topic in inputs}
    return Export(Folder("."), Manifest(group, None, "", saved_stores, offsets))
