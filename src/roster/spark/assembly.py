"""Assembles the parts of a run from a pipeline's options and declarations."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from roster.client import Admin, GroupMember, UnknownTopicError
from roster.model import parse_addresses
from roster.model.topology import Subtopology, TopologyError, repartition_topic, repeated
from roster.pipeline.batch_sink import BatchSink, Source
from roster.pipeline.driver.members import group_member
from roster.pipeline.driver.runner_protocol import BetweenBatches
from roster.pipeline.driver.switching import Switching, Unswitched
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options
from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.dead_letters import DEAD_LETTER_SECONDS
from roster.pipeline.tasks.reader import ReaderConfig
from roster.records.native import WRITE, compiled
from roster.records.produce import KafkaWriter
from roster.saved.grown_input import GrownInput
from roster.sinks.kafka import KafkaSink
from roster.sinks.parquet import ParquetSink
from roster.sinks.positions import PositionedSink
from roster.sinks.storage import runs_in_one_process
from roster.sinks.tasks.encoded_values import AS_JSON, OwnRecords
from roster.spark.declarations import Declared, DeclaredOperator, DeclaredSubtopology
from roster.spark.framed_batches import FramedRunner
from roster.spark.jobs.preferred_locations import Cluster
from roster.spark.jobs.runner import ReadBatches, SparkRunner
from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.joined_batches import TableJoins, only_source
from roster.spark.queries.pages import Served, served_stores
from roster.spark.stateful_batches import StatefulBatches
from roster.spark.stateful_operators import check_assignors, check_operator, check_options, with_steps, with_types
from roster.spark.steps import BySpark, chained
from roster.state.definition import Definition
from roster.state.event_time import microseconds
from roster.state.store import NoState
from roster.state.stream_join import StreamJoin
from roster.stateful.store_cleaner import StoreCleaner, clean_host
from roster.stateful.stores import Stores, admin_of
from roster.stateful.table_sink import TableStateSink
from roster.stateful.tasks.host_stores import check_state_dir
from roster.stateful.tasks.operator_steps import check_keys
from roster.stateful.tasks.outgoing import ROWS
from roster.stateful.tasks.repartition import FIELD as REPARTITION
from roster.stateful.tasks.repartition import RepartitionTopic
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan, columns_of
from roster.stateful.tasks.table_join import Rows
from roster.stateful.tasks.task import JoinTask
from roster.wire.compression import Compression

log = logging.getLogger("roster.pipeline")


@dataclass(frozen=True)
class Assembly:
    """The parts of one run; its sink is open.

    options: include the topics that operators read. membership: makes the group member. served: the stores open to
    queries. opened: what the end of the run closes. refusal: what a run that only reads what is left ends with.
    """

    options: Options
    runner: SparkRunner
    sink: BatchSink
    opened: contextlib.ExitStack
    membership: Callable[[Options], GroupMember] = group_member
    served: Sequence[Served] = ()
    between_batches: BetweenBatches = field(default_factory=BetweenBatches)
    switching: Switching | None = None
    refusal: PipelineError | None = None

    def close(self) -> None:
        """Close what was opened, in the opposite order."""
        self.opened.close()


def assembled(spark: SparkSession, options: Options, declared: Declared, sink: BatchSink) -> Assembly:
    """Return the parts of a run, and open the sink.

    Raises PipelineError if options and operators contradict each other, ClientError, and the sink's errors.
    """
    own, options = options, _with_sources(options, declared)
    _check_dead_letters(options)
    config = _reader_config(options)
    function, columns = chained(declared.first.before, as_struct(config.schema))
    _check_repartitioned(declared)
    jobs = SparkJobs(spark, options.group)
    if not declared.operators and len(declared.subtopologies) == 1:
        return _stateless(jobs, options, config, function, columns, declared, sink)
    check_options(own, has_transform=declared.transform is not None)
    plans = subtopology_plans(own, declared, columns, as_struct(config.schema))
    _check_state_dir(spark, own)
    return _stateful(jobs, options, config, function, plans, sink, declared)


def state_definitions(options: Options, declared: Declared) -> dict[str, Definition]:
    """Return the definition of each store. Raises PipelineError if options and operators contradict each other."""
    config = _reader_config(_with_sources(options, declared))
    _check_repartitioned(declared)
    _, columns = chained(declared.first.before, as_struct(config.schema))
    plans = subtopology_plans(options, declared, columns, as_struct(config.schema)) if declared.operators else ()
    return {name: definition for plan in plans for name, definition in plan.definitions.items()}


def _stateful(
    jobs: SparkJobs,
    options: Options,
    config: ReaderConfig,
    function: ArrowFunction | None,
    plans: Sequence[SubtopologyPlan],
    sink: BatchSink,
    declared: Declared,
) -> Assembly:
    """Return the parts of a pipeline with stores, and open the sink."""
    frames = declared.frames
    _check_idle(options, plans, sink)
    can_switch = _can_switch(options, plans)
    own, output, encoding = KafkaSink(options.bootstrap, security=options.security), None, AS_JSON
    if frames is not None and frames.last is not None:
        kafka = frames.kafka_sink(sink, own)
    elif isinstance(sink, (ParquetSink, PositionedSink)):
        _prepare_table(plans, sink)
        kafka = own
    else:
        sink = kafka = _as_kafka_sink(sink)
        output, encoding = kafka.topic, OwnRecords()
        if not declared.has_own_results:
            encoding = kafka.result_encoding(plans[-1].columns, plans[-1].result_keys)
    with contextlib.ExitStack() as opened:
        for target in dict.fromkeys([sink, kafka]):
            target.open(jobs.spark, options.group, options.start_timeout_ms)
            opened.callback(target.close)
        stores = Stores.open(options, plans, GrownInput(jobs.spark, config), kafka, output, encoding)
        opened.callback(stores.close)
        switching = Switching(options.group, stores.admin, paused=options.paused) if can_switch else None
        if frames is not None and frames.last is not None:
            sink = frames.state_sink(sink, kafka, stores, switching)
        elif sink is not kafka:
            sink = TableStateSink(sink, from_arrow_schema(plans[-1].columns), kafka, stores, switching)
        replayed = sink.replayed if isinstance(sink, TableStateSink) else frozenset
        if stores.refusal is not None:
            options = replace(options, starting_offsets="earliest")  # of partitions that are new
        joins, cluster, cleaner = _tables_and_cleaning(jobs, stores, opened)
        parts = jobs, cluster, config, function, stores, joins, cleaner
        batches = StatefulBatches(*parts, replayed, switching or Unswitched())
        if frames is None:
            runner = SparkRunner(jobs, batches, as_struct(ROWS), small=options.tuning.small_batch_offsets)
        else:
            runner = FramedRunner(jobs, batches, frames)
        opened.callback(runner.close)
        sink = sink.bind(_source(options, "a result of operators comes of many records"))
        return Assembly(
            options,
            runner,
            sink,
            opened.pop_all(),
            stores.member,
            served_stores(jobs, cluster, stores),
            stores,
            switching,
            stores.refusal,
        )


def _tables_and_cleaning(
    jobs: SparkJobs, stores: Stores, opened: contextlib.ExitStack
) -> tuple[list[TableJoins], Cluster | None, StoreCleaner]:
    """Return the table joins beside these stores, which `opened` closes, where tasks run, and what cleans the stores.

    Raises PipelineError and ClientError.
    """
    joins: list[TableJoins] = []
    for plan in stores.plans:
        if plan.tables:
            joins.append(TableJoins.open(stores.options, plan.tables, plan.own_sources, plan.subtopology.number))
            opened.callback(joins[-1].close)
    places = [*stores.topology.places, *(place for join in joins for place in join.places)]
    cluster = None if jobs.is_local else Cluster(jobs.context)
    state = stores.options.state
    cleaner = StoreCleaner(
        stores.copies,
        state.cleanup_delay_ms / 1000,
        state.max_bytes,
        lambda wanted: jobs.on_each_host(partial(clean_host, places, wanted)),
        is_local=jobs.is_local,
    )
    return joins, cluster, cleaner


def _can_switch(options: Options, plans: Sequence[SubtopologyPlan]) -> bool:
    """Return True if the pipeline can be switched. Raise PipelineError if it cannot, and is to begin paused."""
    problem = ""
    if len(plans) > 1:
        problem = "rows on their way between two sub-topologies have no offset that both groups know"
    elif any(node.has_timers for node in plans[0].nodes):
        problem = "timers of processing time fire at other moments in each group"
    elif options.idle_after is not None:
        problem = "the stream time of a partition without records goes on at other moments in each group (idle_after)"
    if problem and options.paused:
        raise PipelineError(
            f"such a pipeline cannot be paused: {problem}", field="paused", fix="Stop one group and start the other"
        )
    return not problem


def _check_idle(options: Options, plans: Sequence[SubtopologyPlan], sink: BatchSink) -> None:
    """Raise PipelineError if nothing goes by `idle_after`, or if results that do need a position."""
    if options.idle_after is None:
        return
    if not any(plan.closes for plan in plans):
        problem = "there are no windows, sessions, first rows, joins of two topics and timers of event time"
        raise PipelineError(problem, field="idle_after", fix="Leave it out")
    if plans[-1].closes and isinstance(sink, (ParquetSink, PositionedSink)):
        problem = "results in a table have no position for a batch without records"
        raise PipelineError(problem, field="idle_after", fix="Leave it out, or write to a topic and from there on")


def _stateless(
    jobs: SparkJobs,
    options: Options,
    config: ReaderConfig,
    function: ArrowFunction | None,
    columns: StructType,
    declared: Declared,
    sink: BatchSink,
) -> Assembly:
    """Return the parts of a pipeline without a stateful operator, and open the sink."""
    _check_idle(options, (), sink)
    first = declared.first
    tables, joined = _joined(first, columns)
    if declared.transform is None:
        sink.check(joined)
    with contextlib.ExitStack() as opened:
        work, between, membership = ReadBatches(jobs, config, function), BetweenBatches(), group_member
        if tables:
            check_assignors(options)
            _check_state_dir(jobs.spark, options)
            subtopology = Subtopology(0, only_source(options.topics))
            stores = Stores.open(
                options, [SubtopologyPlan(subtopology, (), tables=tables)], GrownInput(jobs.spark, config)
            )
            opened.callback(stores.close)
            joins, cluster, cleaner = _tables_and_cleaning(jobs, stores, opened)
            parts = jobs, cluster, config, function, stores, joins, cleaner
            work = StatefulBatches(*parts, frozenset, Unswitched(), JoinTask)
            between, membership = stores, stores.member
        sink.open(jobs.spark, options.group, options.start_timeout_ms)
        opened.callback(sink.close)
        admin = opened.enter_context(admin_of(options))
        switching = Switching(options.group, admin, paused=options.paused, keeps_state=False)
        why = "the rows of a transform have no record of their own" if declared.transform else ""
        sink = sink.bind(_source(options, "the rows are joined with a table" if tables else why))
        runner = SparkRunner(jobs, work, joined, declared.transform, options.tuning.small_batch_offsets)
        opened.callback(runner.close)
        return Assembly(options, runner, sink, opened.pop_all(), membership, (), between, switching)


def _check_state_dir(spark: SparkSession, options: Options) -> None:
    """Raise PipelineError if executors in this process cannot keep stores; remote ones report it in the warm-up."""
    if runs_in_one_process(spark):
        check_state_dir(options.state.dir, lambda work: [work()])


def _check_repartitioned(declared: Declared) -> None:
    """Raise PipelineError if nothing uses the key of the last repartitioning."""
    last = declared.last
    if last.by is not None and last.by.keys and not last.operators and not last.tables:
        raise PipelineError(
            "nothing behind it has state or joins a table, so no row needs to move",
            field=REPARTITION,
            fix="Leave it out; to write records with another key, make a column `key` in map_arrow for a KafkaSink",
        )


def subtopology_plans(
    options: Options, declared: Declared, columns: StructType, records: StructType
) -> tuple[SubtopologyPlan, ...]:
    """Return the sub-topologies of a stateful pipeline.

    `options` name its input topics. columns: of rows after the first steps. records: columns of the input records.
    Raises PipelineError for operators that do not fit.
    """
    plans, leaving, behind = list[SubtopologyPlan](), list[tuple[int, RepartitionTopic]](), list(declared.operators)
    for number, plan in enumerate(declared.subtopologies):
        nodes: list[OperatorNode] = []
        arriving = _arriving([topic for reader, topic in leaving if reader == number])
        sources: tuple[str, ...] = options.topics if arriving is None else (arriving.topic,)  # type: ignore[assignment] # patterns were refused earlier
        tables, columns = _joined(plan, plan.given or columns)
        for operator in plan.operators:
            behind.pop(0)
            node, columns = _node(operator, columns, records, behind)
            names = tuple(tuple(_name_of(source, plans) for source in side) for side in operator.stateful.sides)
            nodes.append(replace(node, sides=names))
        others = [node.other.topic for node in nodes if node.other is not None]
        subtopology = Subtopology(number, (*sources, *others), [node.store for node in nodes])
        sinks, made = list[RepartitionTopic](), columns
        for reader in (plan.into or (number + 1,)) if plan is not declared.last else ():
            following = declared.subtopologies[reader]
            sink, columns = _repartition(options.group, subtopology, following, following.given or made)
            if plan.operators and (by_spark := _by_spark(plan.operators[-1])) is not None:
                delay = None if by_spark.delay is None else microseconds(by_spark.delay)
                sink = replace(sink, is_framed=True, delay=delay)
            sinks.append(sink)
            leaving.append((reader, sink))
        parts = subtopology, tuple(nodes), arriving, next(iter(sinks), None), tables
        branch_sinks = tuple(sinks) if plan.branches and plan.into else ()
        plans.append(SubtopologyPlan(*parts, branches=plan.branches, branch_sinks=branch_sinks))
    _check_names(columns)
    if not declared.has_own_results:
        check_keys(plans[-1].result_keys, columns.names)
    return tuple(plans)


def _arriving(topics: Sequence[RepartitionTopic]) -> RepartitionTopic | None:
    """Return the topic that a sub-topology reads, as each of those that write it has it; None for the input."""
    writers = tuple({topic.before.number: topic.before for topic in topics}.values())
    return replace(topics[0], others=writers[1:]) if topics else None


def _name_of(source: str | int, plans: Sequence[SubtopologyPlan]) -> str:
    """Return the name of sources: their own, or that of a sub-topology's tasks."""
    return source if isinstance(source, str) else min(plans[source].own_sources)


def _node(
    declared: DeclaredOperator, columns: StructType, records: StructType, behind: Sequence[DeclaredOperator]
) -> tuple[OperatorNode, StructType]:
    """Return an operator's node for rows with these columns, and its result columns. Raises PipelineError.

    behind: the operators that get its results, one after the other.
    """
    _check_names(columns)
    stateful, other = declared.stateful, None
    operator, rows = with_types(stateful, columns), arrow_schema(columns)
    if stateful.other is not None and isinstance(operator, StreamJoin):
        operator, other = stateful.other.resolved(operator, columns, records)
        rows = columns_of(other)
    check_operator(operator, rows)
    operator = with_steps(operator, rows, declared.after, store=stateful.store)
    results = operator(rows.empty_table(), NoState()).results.schema
    _check_names(results)
    order = None
    if stateful.is_by_key:
        # By key, rows of later keys would be late; behind a repartition, where batches cut, also further on.
        times = (getattr(operator.stateful.operator, "time_column", None) for operator in behind)
        sortable = {field.name for field in results if not pa.types.is_nested(field.type)}
        order = next((time for time in times if time in sortable), None)
    parts = operator, rows, stateful.store, stateful.late, other, order, stateful.migrate
    by_spark = _by_spark(declared)
    return OperatorNode(*parts), from_arrow_schema(results) if by_spark is None else by_spark.columns


def _by_spark(declared: DeclaredOperator) -> BySpark | None:
    """Return what Spark makes of an operator's results, None if they go on as they are."""
    return next((step for step in declared.after if isinstance(step, BySpark)), None)


def _check_names(columns: StructType | pa.Schema) -> None:
    """Raise PipelineError for two columns of one name: operators and records find columns by name."""
    if twice := repeated(columns.names):
        raise PipelineError(f"there are two columns {twice[0]!r}", field="map_arrow", fix="Give each a name of its own")


def _repartition(
    group: str, before: Subtopology, plan: DeclaredSubtopology, columns: StructType
) -> tuple[RepartitionTopic, StructType]:
    """Return the repartition topic for rows with these columns, and their columns after the first steps behind it.

    Raises PipelineError.
    """
    assert plan.by is not None  # all but the first have it
    _check_names(columns)
    try:
        topic = repartition_topic(group, plan.by.name)
    except TopologyError as error:
        raise PipelineError(str(error), field="name") from None
    then, arrived = chained(plan.before, columns)
    return RepartitionTopic(before, topic, plan.by.keys, arrow_schema(columns), then, plan.by.partitions), arrived


def _prepare_table(plans: Sequence[SubtopologyPlan], sink: ParquetSink | PositionedSink) -> None:
    """Tell the sink whose results it gets. Raise PipelineError if they cannot go to a table."""
    last = plans[-1]
    if any(node.has_timers for node in last.nodes):
        log.info("results go to a table, so timers of processing time wait for their partition's next records")
    retracts = any(node.operator(node.columns.empty_table(), NoState()).retracts for node in last.nodes)
    if isinstance(sink, PositionedSink):
        sink.with_results_of(last.result_keys, retracts=retracts)
    elif retracts:
        raise PipelineError(
            "sessions take earlier results back",
            field="write",
            fix="Use KafkaSink, DeltaSink(…, mode='upsert') or results='final'",
        )
    sink.check(from_arrow_schema(last.columns))


def _as_kafka_sink(sink: BatchSink) -> KafkaSink:
    """Return the sink. Raise PipelineError if a stateful pipeline cannot write to it."""
    if not isinstance(sink, KafkaSink) or sink.topic is None or sink.is_exactly_once is False:
        raise PipelineError(
            "a stateful pipeline writes results and state in one Kafka transaction",
            field="write",
            fix="Use KafkaSink(bootstrap, topic) without exactly_once=False, ParquetSink, DeltaSink or IcebergSink",
        )
    if sink.keeps_timestamps:
        raise PipelineError(
            "a result of a stateful pipeline comes from many records, and has none of their times",
            field="keep_timestamps",
            fix="Leave it out: results have the time of writing",
        )
    return sink


def _with_sources(options: Options, declared: Declared) -> Options:
    """Return the options with the topics that operators read added. Raises PipelineError."""
    if not declared.others or not isinstance(options.topics, tuple):
        return options
    read = [*options.topics, *declared.others]
    if twice := repeated(read):
        raise PipelineError(f"{twice[0]!r} is read already", field="join", fix="Name another topic")
    return replace(options, topics=tuple(read))


def _joined(plan: DeclaredSubtopology, columns: StructType) -> tuple[tuple[Rows, ...], StructType]:
    """Return the table joins of a sub-topology, and the columns of joined rows. Raises PipelineError."""
    tables: list[Rows] = []
    for table in plan.tables:
        lookup, columns = table.join.resolved(columns)
        then, columns = chained(table.after, columns)
        tables.append(Rows(table.join.topic, lookup, then, arrow_schema(columns)))
    return tuple(tables), columns


def _source(options: Options, unknown: str) -> Source:
    """Return the source of a sink; `unknown` says why the record of a row is not known, "" if it is."""
    settings = options.settings
    return Source(
        bootstrap=options.bootstrap,
        group=options.group,
        group_instance_id=settings.group_instance_id,
        client_id=settings.client_id or "roster",
        request_timeout_ms=settings.request_timeout_ms,
        security=options.security,
        dead_letters=None if options.dead_letter_topic is None else unknown,
    )


def _reader_config(options: Options) -> ReaderConfig:
    return ReaderConfig(
        bootstrap=options.bootstrap,
        group=options.group,
        isolation_level=options.isolation_level,
        fail_on_data_loss=options.fail_on_data_loss,
        include_headers=options.include_headers,
        client_id=options.settings.client_id or "",
        fetch=options.settings.fetch,
        read_timeout_ms=options.settings.read_timeout_ms,
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
        client_id=options.settings.client_id or "",
        compression=Compression.ZSTD,  # so that a dead letter is no larger than its compressed original
        keep_timestamps=True,
        timeout=DEAD_LETTER_SECONDS,
        security=options.security,
        compiled=compiled(WRITE),
    )


def _check_dead_letters(options: Options) -> None:
    if options.dead_letter_topic is None:
        return
    admin = Admin(options.bootstrap, request_timeout_ms=options.start_timeout_ms, security=options.security)
    with admin:
        try:
            admin.describe_topic(options.dead_letter_topic)
        except UnknownTopicError:
            raise PipelineError(
                f"there is no topic {options.dead_letter_topic!r}",
                field="dead_letter_topic",
                fix=f"Create it, for example with `roster topics create {options.dead_letter_topic}`",
            ) from None
