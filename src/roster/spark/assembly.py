"""The parts of a run, put together from a pipeline's options and what it declares."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from roster.client import Admin, UnknownTopicError, UnreachableError
from roster.model import parse_addresses
from roster.model.topology import Subtopology, TopologyError, repartition_topic
from roster.records.native import WRITE, compiled
from roster.records.produce import KafkaWriter
from roster.spark.arrow_function import ArrowFunction, arrow_schema, as_struct
from roster.spark.dead_letters import DEAD_LETTER_SECONDS
from roster.spark.errors import PipelineError
from roster.spark.execution import SparkRunner
from roster.spark.operations import Declared, Repartitioned
from roster.spark.options import Options
from roster.spark.reader import ReaderConfig
from roster.spark.reader_options import parse_reader_options
from roster.spark.sinks.base import Sink
from roster.spark.sinks.parquet import ParquetSink
from roster.spark.sinks.table import TableSink
from roster.spark.small_batches import SmallBatches
from roster.spark.state.between import FIELD as REPARTITION
from roster.spark.state.between import Between
from roster.spark.state.declare import Stateful
from roster.spark.state.followed import followed
from roster.spark.state.other_stream import columns_of
from roster.spark.state.runner import StatefulRunner, check_operator, check_options
from roster.spark.state.sink import StateSink, check_sink
from roster.spark.state.table_sink import TableStateSink
from roster.spark.steps import chained
from roster.spark.table_join import JoiningRunner, Rows, TableJoin, TableJoining, Tables
from roster.state.store import NoState
from roster.state.stream_join import StreamJoin

log = logging.getLogger("roster.pipeline")


def assembled(spark: SparkSession, options: Options, declared: Declared, sink: Sink) -> tuple[SparkRunner, Sink]:
    """Return the runner of a run, and its sink, which is open.

    Raises PipelineError for options and operators that do not go together, ClientError, and what the sink raises.
    """
    own, options = options, with_sources(options, declared)
    steps = declared.before if declared.input is None else declared.input.steps
    _check_dead_letters(options, has_function=bool(steps))
    config = _reader_config(options)
    function, columns = chained(steps, as_struct(config.schema))
    between, table = None, None
    if declared.input is not None:
        between, columns = _between(own, declared, declared.input, columns)
    if declared.join is not None:
        table = _joined(declared.join, function, columns, declared)
        columns = table.columns
    stateful = declared.stateful
    if stateful is None:
        return _stateless(spark, options, config, (function, columns, table), declared, sink), sink
    check_options(
        options,
        has_transform=declared.transform is not None,
        sources=1 + (stateful.other is not None),
        repartitions=between is not None,
    )
    rows, other = arrow_schema(columns), None
    if stateful.other is not None and isinstance(stateful.operator, StreamJoin):
        join, other = stateful.other.resolved(stateful.operator, columns, as_struct(config.schema))
        stateful, rows = replace(stateful, operator=join), columns_of(other)
    check_operator(stateful.operator, rows)
    stateful = replace(stateful, operator=followed(stateful.operator, rows, declared.after))
    joining = None
    if table is not None and declared.join is not None:
        joining = TableJoining(table, Tables.open(own, declared.join))
    state_sink = _state_sink(options, stateful, rows, sink, between)
    state_sink.open(spark, options.group)
    return StatefulRunner(
        spark, config, function, rows, stateful, state_sink, options.state_dir, joining, other
    ), state_sink


def _between(
    options: Options, declared: Declared, repartitioned: Repartitioned, columns: StructType
) -> tuple[Between, StructType]:
    """Return how rows of these columns come to tasks by their new key, and the columns of what is done with them then.

    `options` have the topics that the pipeline is given. Raises PipelineError.
    """
    if declared.stateful is None:
        raise PipelineError(
            "nothing behind it has state, so no row needs to move",
            field=REPARTITION,
            fix="Leave it out; to write records with another key, make a column `key` in map_arrow for a KafkaSink",
        )
    check_options(options, has_transform=False, repartitions=True)
    topics: tuple[str, ...] = options.topics  # type: ignore[assignment] # checked in the line before
    by = repartitioned.by
    try:
        topic = repartition_topic(options.group, by.name)
    except TopologyError as error:
        raise PipelineError(str(error), field="name") from None
    then, arrived = chained(declared.before, columns)
    before = Subtopology(0, topics)
    return Between(before, topic, by.keys, arrow_schema(columns), then, by.partitions), arrived


def _state_sink(
    options: Options, stateful: Stateful, rows: pa.Schema, sink: Sink, between: Between | None
) -> StateSink:
    """Return the sink of a stateful pipeline whose operator gets these columns. Raises PipelineError."""
    late_topic = None if stateful.late is None else stateful.late.topic
    topics: tuple[str, ...] = options.topics  # type: ignore[assignment] # what is no tuple is refused before
    of = Subtopology(0, topics, (stateful.store,))
    if between is not None:
        joined = () if stateful.other is None else (stateful.other.topic,)
        of = Subtopology(1, (between.topic, *joined), (stateful.store,))
    has_timers: bool = getattr(stateful.operator, "has_timers", False)
    if not isinstance(sink, (ParquetSink, TableSink)):
        return StateSink(check_sink(sink), options, of, late_topic, between, has_timers=has_timers)
    if has_timers:
        log.info("results go to a table, so timers of processing time wait for their partition's next records")
    empty = stateful.operator(rows.empty_table(), NoState())
    if empty.retracts:
        what = "sessions take earlier results back"
        raise PipelineError(what, field="write", fix="Use KafkaSink, or results='final'")
    return TableStateSink(sink, from_arrow_schema(empty.results.schema), options, of, late_topic, between)


def with_sources(options: Options, declared: Declared) -> Options:
    """Return the options with the topics that operators read beside the pipeline's own. Raises PipelineError."""
    other = declared.stateful.other if declared.stateful is not None else None
    if other is None or not isinstance(options.topics, tuple):
        return options
    if other.topic in options.topics:
        raise PipelineError(f"{other.topic!r} is read already", field="join", fix="Name another topic")
    return replace(options, topics=(*options.topics, other.topic))


def _joined(join: TableJoin, function: ArrowFunction | None, columns: StructType, declared: Declared) -> Rows:
    """Return the way of rows of these columns through the join with a table. Raises PipelineError."""
    lookup, columns = join.resolved(columns)
    then, columns = chained(declared.joined, columns)
    return Rows(function, lookup, then, columns, declared.transform)


def _stateless(
    spark: SparkSession,
    options: Options,
    config: ReaderConfig,
    way: tuple[ArrowFunction | None, StructType, Rows | None],
    declared: Declared,
    sink: Sink,
) -> SparkRunner:
    """Return the runner of a pipeline without a stateful operator, and open the sink."""
    function, columns, table = way
    if table is None or declared.join is None:
        sink.open(spark, options.group)
        small = SmallBatches.of(options.small_batches, config, declared.before)
        return SparkRunner(spark, config, function, columns, declared.transform, small)
    tables = Tables.open(options, declared.join)
    sink.whole_partitions = True  # a store has one writer
    sink.open(spark, options.group)
    return JoiningRunner(spark, config, table, tables)


def _reader_config(options: Options) -> ReaderConfig:
    return ReaderConfig(
        bootstrap=options.bootstrap,
        group=options.group,
        isolation_level=options.isolation_level,
        fail_on_data_loss=options.fail_on_data_loss,
        read_timeout_ms=options.read_timeout_ms,
        include_headers=options.include_headers,
        options=parse_reader_options(options.reader_options),
        security=options.security,
        dead_letters=_dead_letter_writer(options),
        compiled=compiled(),
    )


def _dead_letter_writer(options: Options) -> KafkaWriter | None:
    if options.dead_letter_topic is None:
        return None
    return KafkaWriter(
        tuple(parse_addresses(options.bootstrap)),
        options.dead_letter_topic,
        client_id=options.client_id or "",
        keep_timestamps=True,
        timeout=DEAD_LETTER_SECONDS,
        security=options.security,
        compiled=compiled(WRITE),
    )


def _check_dead_letters(options: Options, *, has_function: bool) -> None:
    if options.dead_letter_topic is None:
        return
    if not has_function:
        raise PipelineError(
            "only the function of map_arrow can send records there", field="dead_letter_topic", fix="Use map_arrow"
        )
    admin = Admin(options.bootstrap, request_timeout_ms=options.start_timeout_ms, security=options.security)
    with admin, contextlib.suppress(UnreachableError):  # the member tries for longer
        try:
            admin.describe_topic(options.dead_letter_topic)
        except UnknownTopicError:
            raise PipelineError(
                f"there is no topic {options.dead_letter_topic!r}",
                field="dead_letter_topic",
                fix=f"Create it, for example with `roster topics create {options.dead_letter_topic}`",
            ) from None
