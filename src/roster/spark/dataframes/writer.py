"""`write_stream`: a streaming DataFrame as a query in a consumer group, by the methods of `DataStreamWriter`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from roster.pipeline.batch import Progress
from roster.pipeline.batch_sink import Sink
from roster.pipeline.errors import PipelineError, reason_of
from roster.sinks.delta import DeltaSink
from roster.sinks.kafka import KafkaSink
from roster.sinks.parquet import ParquetSink
from roster.sinks.postgres import PostgresSink
from roster.spark.dataframes.observed import KEPT, ObservedMetrics
from roster.spark.dataframes.plan import FIELD, MARK, Plan, Topics
from roster.spark.dataframes.program import WITH_STATE, program_of
from roster.spark.dataframes.query import StreamQuery
from roster.spark.dataframes.reader import marked_source
from roster.spark.dataframes.sinks import (
    ConsoleSink,
    FormatSink,
    FunctionSink,
    MemorySink,
    RowSink,
    described,
    is_at_least_once,
    takes_results,
)
from roster.spark.dataframes.source_options import (
    Source,
    WithOptions,
    differing,
    in_words_of_options,
    is_own,
    made_of,
    migrations,
    noting,
    of_client,
    own_options,
    raise_all,
    source_of,
)
from roster.spark.pipeline import Pipeline

log = logging.getLogger("roster.pipeline")

_CHECKPOINT = "checkpointlocation"
_IMMEDIATE = ("append", "update")
_FILES = ("parquet", "delta", "csv", "json", "orc", "text", "xml", "avro")


def write_stream(df: DataFrame) -> StreamWriter:
    """Return a writer of a streaming DataFrame, in place of `df.writeStream`.

    >>> query = write_stream(totals).queryName("hours").format("kafka").option("topic", "hours").start()

    The frame comes from `read_stream`, or from Spark's own `readStream.format("kafka")`.
    """
    return StreamWriter(df)


class StreamWriter(WithOptions):
    """Starts a query that is a member of a consumer group; made by `write_stream`."""

    def __init__(self, df: DataFrame) -> None:
        super().__init__()
        self._df = df
        self._format, self._name, self._mode = "", "", "append"
        self._partition_by: tuple[str, ...] = ()
        self._given: Sink | None = None
        self._interval_ms: int | None = None
        self._is_available_now = False

    def queryName(self, queryName: str) -> Self:
        """Set the query's name, which is the consumer group unless the source has `kafka.group.id`."""
        if not isinstance(queryName, str) or not queryName.strip():
            raise PipelineError(f"{queryName!r} is not a name", field="queryName")
        self._name = queryName
        return self

    def outputMode(self, outputMode: str) -> Self:
        """Accept "append" and "update", which are the same without state. Raises PipelineError for "complete"."""
        mode = str(outputMode).lower()
        if mode == "complete":
            raise PipelineError(
                "each application of the group would show its part only",
                field="outputMode",
                fix='Use "update", and a table with one row a key',
            )
        if mode not in _IMMEDIATE:
            raise PipelineError(f"{outputMode!r} is not known", field="outputMode", fix='Use "append" or "update"')
        self._mode = mode
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> Self:
        """Set the time between two batches, or end the query at the log ends (`once`, `availableNow`)."""
        kinds = {"processingTime": processingTime, "once": once, "availableNow": availableNow}
        if continuous is not None or realTime is not None:
            which = "continuous" if continuous is not None else "realTime"
            raise PipelineError("batches only", field=f"trigger({which})", fix='Use processingTime="0 seconds"')
        named = [name for name, value in kinds.items() if value is not None]
        if len(named) != 1 or (named[0] != "processingTime" and kinds[named[0]] is not True):
            raise PipelineError(
                "exactly one kind is needed", field="trigger", fix='For example processingTime="5 seconds"'
            )
        self._is_available_now = processingTime is None
        self._interval_ms = None if processingTime is None else self._milliseconds(processingTime)
        return self

    def partitionBy(self, *cols: str | list[str]) -> Self:
        """Set the columns whose values become folders."""
        self._partition_by = tuple(
            name for column in cols for name in ([column] if isinstance(column, str) else column)
        )
        return self

    def format(self, source: str) -> Self:
        """Set the kind of sink.

        "kafka", "parquet" and "delta" below a local path, and "jdbc" for PostgreSQL are exactly once; "console",
        "memory" and every other format of Spark's batch writer at least once.
        """
        if not isinstance(source, str):
            raise PipelineError(f"{source!r} is not a name", field="format")
        self._format = source
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], object]) -> Self:
        """Call `func(df, batch_id)` with each batch; at least once. The numbers grow, over restarts too."""
        if not callable(func):
            raise PipelineError(f"{func!r} is not callable", field="foreachBatch")
        self._given = FunctionSink(func)
        return self

    def foreach(self, f: Any) -> Self:
        """Call `f`, or its `process`, with each row in the executors; at least once."""
        try:
            self._given = RowSink(f)
        except PySparkException as error:
            raise PipelineError(reason_of(error), field="foreach") from None
        return self

    def sink(self, sink: Sink) -> Self:
        """Write to a sink of Roster, such as `IcebergSink` or `DeltaSink(mode="upsert")`, or of your own."""
        if not isinstance(sink, Sink):
            raise PipelineError(f"{sink!r} is not a Sink", field="sink", fix='Use format("...") for names')
        self._given = sink
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: object,
    ) -> StreamQuery:
        """Join the group in a thread of its own, and return the query.

        Raises PipelineError for what the frame, the options and the sink cannot be, all before a broker is asked. What
        comes later ends the query: `awaitTermination` raises it, and `exception` returns it.
        """
        if path is not None:
            options["path"] = path
        self.options(**options)
        return self._started(None, format=format, outputMode=outputMode, partitionBy=partitionBy, queryName=queryName)

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: object,
    ) -> StreamQuery:
        """Append to a table of Spark's catalog, at least once; else as `start`."""
        self.options(**options)
        named = {"format": format, "outputMode": outputMode, "partitionBy": partitionBy, "queryName": queryName}
        return self._started(tableName, **named)

    def _started(self, table: str | None, **said: object) -> StreamQuery:
        """Call the methods of these names with what was said, None is nothing, and start the query."""
        for name, value in said.items():
            if value is not None:
                getattr(self, name)(value)
        frame = Plan.of(self._df)
        source, topics = self._source(frame)
        try:
            return self._query(frame, source, topics, table)
        except PipelineError as error:
            raise in_words_of_options(error) from error.__cause__

    def _query(self, frame: Plan, source: Source, topics: Topics, table: str | None) -> StreamQuery:
        df, problems = self._df, list[PipelineError]()
        if not (group := source.group or self._name):
            fix = 'Call queryName("..."), or set the source\'s option kafka.group.id'
            problem = "the query has no name, so its consumer group has none"
            problems.append(PipelineError(problem, field="queryName", fix=fix))
        has_state = frame.keeps_state(WITH_STATE)
        recent: deque[Progress] = deque(maxlen=KEPT)
        observed = ObservedMetrics(frame)

        def settle(progress: Progress) -> None:
            observed.settle(progress.batch)
            recent.append(progress)

        def piped(options: Mapping[str, str]) -> Pipeline:
            keywords = {**source.keywords, **own_options(options), "on_progress": settle}
            keywords |= {} if self._interval_ms is None else {"trigger_interval_ms": self._interval_ms}
            if has_state:
                self._check_with_state(keywords, source)
            return Pipeline(df.sparkSession, source.bootstrap, group or "group", source.topics, **keywords)

        with noting(problems):
            pipeline = made_of({name: value for name, value in self._options.items() if is_own(name)}, piped)
        given = {name: value for name, value in self._options.items() if not is_own(name)}
        checkpoint = [name for name in given if name.lower() == _CHECKPOINT]
        given = {name: value for name, value in given.items() if name not in checkpoint}
        sink: Sink | None = None
        with noting(problems):
            sink = made_of(given, lambda options: self._sink(options, table, source.bootstrap, has_state=has_state))
            if isinstance(sink, KafkaSink):
                sink.check(df.schema)
        with noting(problems):
            program = program_of(
                frame,
                self._mode,
                headers=source.has_headers,
                keyed_by=source.keyed_by,
                takes_results=takes_results(sink, df.columns),
                topics=(lambda leaf: topics(leaf) or source.topics) if has_state else topics,
                migrate=migrations(self._options),
            )
        raise_all(problems)
        if checkpoint:
            log.warning(
                "checkpointLocation is not used: the group %r keeps offsets%s, and begins at startingOffsets. To go on "
                "where a query of Spark stopped, give it that query's%s first, by commit_progress%s",
                group,
                *(" and state", " offsets and state", " and seed_state") if has_state else ("", " offsets", ""),
            )
        assert sink is not None
        what = described(sink)
        if is_at_least_once(sink):
            log.info("%s: %s", group, what)
        pipeline._observed = observed
        for step in program.tables:
            log.info("%s: %s", group, step)
        pipeline._take(program.declared)
        if has_state:
            pipeline.describe_state()  # raises for what the operators cannot take
        pipeline.write(sink).start(available_now=self._is_available_now)
        explained = partial(_explained, df, program.steps, what)
        return StreamQuery(pipeline, recent, observed, group, self._name or None, type(sink).__name__, explained)

    def _check_with_state(self, keywords: Mapping[str, Any], source: Source) -> None:
        """Raise PipelineError for what does not go together with state."""
        if isinstance(source.topics, str):
            problem = "tasks with state are those of topics with names"
            raise PipelineError(problem, field="subscribePattern", fix="Use subscribe with the topics' names")
        if source.keyed_by and len(source.topics) > 1:
            problem = "records of several topics have no one place by their key"
            raise PipelineError(problem, field="roster.keyed_by", fix="Leave it out, or subscribe to one topic")
        if "dead_letter_topic" in keywords:
            problem = "records at which Spark fails cannot be told apart"
            raise PipelineError(problem, field="roster.dead_letter_topic", fix="Leave it out")
        if self._mode == "update" and self._given is None and (self._format.lower() or "parquet") in _FILES:
            fix = 'Use outputMode("append") with a watermark, or foreachBatch'
            raise PipelineError("files take no updates of earlier rows", field="outputMode", fix=fix)

    def _source(self, frame: Plan) -> tuple[Source, Topics]:
        """Return what all leaves read, and the topics of each; None if all read the same ones."""
        sources = [_source_of_leaf(options) for options in frame.sources()]
        first = sources[0]
        if all(source == first for source in sources):
            return first, lambda _: None
        if others := differing(sources):
            fix = "Give them the same ones, and topics by subscribe"
            raise PipelineError(
                f"the frame has sources with different options: {'; '.join(others)}", field=FIELD, fix=fix
            )
        topics = list(dict.fromkeys(name for source in sources for name in source.topics))
        return replace(first, topics=topics), lambda leaf: _source_of_leaf(leaf.options).topics

    def _milliseconds(self, interval: str) -> int:
        """Return an interval as Spark reads it."""
        if not isinstance(interval, str):
            fix = 'For example "5 seconds"'
            raise PipelineError(f"{interval!r} is not text", field="trigger(processingTime)", fix=fix)
        try:
            trigger = self._df.sparkSession._jvm.org.apache.spark.sql.streaming.Trigger  # type: ignore[union-attr]
            return int(trigger.ProcessingTime(interval).intervalMs())
        except PySparkException as error:
            raise PipelineError(reason_of(error), field="trigger(processingTime)") from None

    def _sink(self, options: Mapping[str, str], table: str | None, bootstrap: str, *, has_state: bool = False) -> Sink:
        """Return the sink that format, functions and options name."""
        named = {name.lower(): value for name, value in options.items()}
        if self._given is not None:
            if self._partition_by:
                raise PipelineError("a function or a sink has its own", field="partitionBy", fix="Leave it out")
            return self._given
        if table is not None:
            return FormatSink(self._format, None, table, options, self._partition_by)
        kind = self._format.lower()
        if kind == "kafka":
            return _kafka_sink(named, bootstrap, has_state=has_state)
        if kind == "console":
            return _console_sink(named)
        if kind == "memory":
            if not self._name:
                raise PipelineError("the table in memory has the query's name", field="queryName")
            return MemorySink(self._name)
        return self._file_sink(
            kind or "parquet", named.get("path"), {k: v for k, v in options.items() if k.lower() != "path"}
        )

    def _file_sink(self, kind: str, path: str | None, options: Mapping[str, str]) -> Sink:
        """Return Roster's own sink for files and tables below a local path, else Spark's batch writer."""
        if kind in _FILES and path is None:
            raise PipelineError("no path is given", field="start", fix='For example start("out")')
        if path is not None and urlsplit(path).scheme in ("", "file"):
            if kind == "parquet" and not options.keys() - {"compression"}:
                return ParquetSink(path, partition_by=self._partition_by, compression=options.get("compression"))
            if kind == "delta" and not options:
                return DeltaSink(path, partition_by=self._partition_by)
        if kind == "jdbc" and path is None and (sink := _postgres_sink(options)) is not None:
            return sink
        self._check_format(self._format or kind)
        return FormatSink(self._format or kind, path, None, options, self._partition_by)

    def _check_format(self, kind: str) -> None:
        """Raise PipelineError for a format that Spark's batch writer does not know."""
        session: Any = self._df.sparkSession
        sources = session._jvm.org.apache.spark.sql.execution.datasources.DataSource
        try:
            sources.lookupDataSource(kind, session._jsparkSession.sessionState().conf())
        except (PySparkException, Py4JJavaError) as error:
            raise PipelineError(reason_of(error), field="format") from None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            way = ": use partitionBy, or make the table with its clusters first" if name == "clusterBy" else ""
            raise AttributeError(f"a writer of streams has no {name!r}{way}", name=name, obj=self)


def _kafka_sink(options: Mapping[str, str], source: str, *, has_state: bool) -> Sink:
    settings = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    if unknown := sorted(options.keys() - {f"kafka.{name}" for name in settings} - {"topic"}):
        fix = "There are topic, and kafka. with settings of a producer"
        raise PipelineError("Spark's Kafka sink has no option of this name", field=unknown[0], fix=fix)
    bootstrap = settings.pop("bootstrap.servers", None) or source
    # The records of the state are in the source's cluster.
    once = False if has_state and bootstrap != source else None
    return KafkaSink(bootstrap, options.get("topic"), exactly_once=once, **of_client(settings, "options"))


def _console_sink(options: Mapping[str, str]) -> Sink:
    truncate, rows = options.get("truncate", "true").lower(), options.get("numrows", "20")
    if not rows.isdecimal() or not (truncate.isdecimal() or truncate in ("true", "false")):
        raise PipelineError("numRows is a number, truncate true, false or a number", field="format(console)")
    return ConsoleSink(int(rows), truncate=int(truncate) if truncate.isdecimal() else truncate == "true")


def _postgres_sink(options: Mapping[str, str]) -> Sink | None:
    """Return the sink for a JDBC address of PostgreSQL; None for other databases and for options of Spark's writer."""
    named = {name.lower(): value for name, value in options.items()}
    url = named.pop("url", "").removeprefix("jdbc:")
    table = named.pop("dbtable", "")
    named.pop("driver", None)
    if not url.startswith("postgresql://") or named.keys() - {"user", "password"}:
        return None
    return PostgresSink(f"{url}{'&' if '?' in url else '?'}{urlencode(named)}" if named else url, table)


def _source_of_leaf(options: Mapping[str, str]) -> Source:
    if MARK in options:
        return marked_source(options[MARK])
    return source_of({name: value for name, value in options.items() if name not in ("path", "paths")})  # Spark's own


def _explained(df: Any, steps: Sequence[str], sink: str, extended: bool) -> str:
    """Return the parts of a query and where they run."""
    queries = df._jdf.queryExecution()
    plan = queries.analyzed().toString() if extended else df._jdf.schema().treeString()
    numbered = "".join(f"{number}. {step}\n" for number, step in enumerate(steps, 1))
    return f"{numbered}{plan}To {sink}."
