"""The methods by which a `Pipeline` declares functions and stateful operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from roster.pipeline.errors import PipelineError
from roster.pipeline.options import as_columns
from roster.pipeline.tasks.steps import BatchFunction
from roster.schemas import Registry
from roster.spark.aggregate_columns import Aggregates
from roster.spark.declarations import Declared
from roster.spark.stateful_operators import (
    OtherStream,
    Repartition,
    Stateful,
    TableJoin,
    aggregation,
    check_extra,
    deduplication,
    late_rows,
    stream_join,
)
from roster.spark.steps import AvroParsed, Filtered, Mapped, Parsed, Step
from roster.state.definition import Migrate
from roster.state.durations import Duration
from roster.state.windows import SessionWindow, Window
from roster.stateful.tasks.subtopology import LateRows

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class Operations:
    """The functions and stateful operators of a pipeline, from source to sink."""

    def __init__(self, spark: SparkSession, topics: Sequence[str] = ()) -> None:
        """Declare nothing: rows go to the sink as they are read. topics: those read, if they have names."""
        self._spark, self._topics = spark, tuple(topics)
        self._declared = Declared()

    def map_arrow(
        self,
        function: BatchFunction,
        schema: str | StructType,
    ) -> Self:
        """Apply `function` to each record batch inside the reading task; several are applied in the order given.

        This is the fastest place for Python code, as no row crosses between Python and the JVM. `function` returns a
        record batch with the columns of `schema` (Spark DDL or a StructType), or an iterator of them. It is pickled to
        the tasks with every batch, so it must not refer to the session, open files or other state of the driver.

        After a stateful operator it gets the operator's results, in the task that makes them; an error there always
        ends the run.

        Raises PipelineError if `function` is not callable. An error of the function ends the run with FunctionError,
        which names topic, partition and offset of the record; with `dead_letter_topic` the record goes there, and the
        run continues.
        """
        check_callable(function, "map_arrow")
        return self._step(Mapped(function, schema))

    def json_columns(
        self,
        schema: str | StructType,
        *,
        column: str = "value",
        mode: str = "PERMISSIVE",
        keep: Sequence[str] = (),
    ) -> Self:
        """Parse JSON objects into columns inside the reading task, by Arrow: no Python runs for a row that fits.

        Values have the meaning of Spark's `from_json`: a field that is missing, null or of another type is null; if the
        value is not a JSON object, all fields are. Unlike in Spark, times without a zone are UTC, and text behind the
        object is an error with FAILFAST; docs/reference/columns.md has what else differs.

        Args:
            schema: the fields as Spark DDL or a StructType; also structs and arrays, no maps, no binary.
            column: where the objects are, as text or bytes.
            mode: "PERMISSIVE" for nulls in place of values that do not fit, "FAILFAST" for an error, as of a
                `map_arrow` function: with `dead_letter_topic` the record goes there, and the run continues.
            keep: columns that stay beside the fields of the schema, such as "key" and "timestamp".

        Raises:
            PipelineError: `mode` is neither of these; at the start, `schema` is invalid, or columns are missing.

        """
        return self._step(Parsed(schema, column, mode, as_columns(keep, "keep")))

    def avro_columns(
        self,
        registry: Registry | None = None,
        columns: str | StructType | None = None,
        *,
        schema: str | None = None,
        subject: str | None = None,
        column: str = "value",
        mode: str = "PERMISSIVE",
        keep: Sequence[str] = (),
    ) -> Self:
        """Read Avro values into columns inside the reading task, each by the schema of its writer, by a compiled loop.

        The driver asks the registry: tasks get the schemas, and a batch with a new one is done again with it. Values
        are resolved to the reader's schema by Avro's rules; columns have the types of Spark's `from_avro`. A null value
        is a row of nulls. Schemas that contain themselves are refused, as in Spark.

        Args:
            registry: with the writers' schemas by id, which is in the value behind a zero byte, or with
                `include_headers` in the header `__value_schema_id`.
            columns: what is read, as Spark DDL or a StructType: fields that a writer lacks are null, others are
                skipped. Aliases in the latest schema, or the writer's, are names, too. None: all fields of the reader's
                schema.
            schema: the reader's schema as text; None: the latest of the subject. Without a registry it is the schema of
                all values too, which have no frame.
            subject: None: the topic's name with `-value`, or `-key` for that column.
            column: where the values are.
            mode: "PERMISSIVE" for a row of nulls in place of a value that cannot be read, "FAILFAST" for an error: with
                `dead_letter_topic` the record goes there, and the run continues.
            keep: columns that stay beside the fields of the schema, such as "key" and "timestamp".

        Raises:
            PipelineError: an argument is wrong; at the start, a schema is invalid, or columns are missing, or the
                registry refuses.

        """
        subject = subject or self._subject(column)
        return self._step(AvroParsed(registry, columns, schema, subject, column, mode, as_columns(keep, "keep")))

    def _subject(self, column: str) -> str | None:
        """Return the name of the schemas of the only topic's values or keys; None for several."""
        return f"{self._topics[0]}-{column}" if len(self._topics) == 1 and column in ("key", "value") else None

    def filter(self, condition: pc.Expression) -> Self:
        """Leave out rows for which an expression of Arrow, such as `pc.field("delay") > 15`, is false or null.

        It works on columns inside the task, before or after a stateful operator, in the order of calls.

        Raises PipelineError if it is not an expression; at the start, if it does not fit the columns.
        """
        return self._step(Filtered(condition))

    def _step(self, step: Step) -> Self:
        """Append a step: for records as they are read, or for the results of the last stateful operator."""
        self._declared.check_open()
        self._declared.last.steps.append(step)
        return self

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Self:
        """Apply `function` to each batch's DataFrame; several are applied in the order given.

        It is also applied to a DataFrame without rows before the pipeline joins the group, to check and warm up.

        Raises PipelineError if `function` is not callable. The run ends with PipelineError if it does not return a
        DataFrame or uses what needs a stream, such as `withWatermark`.
        """
        check_callable(function, "transform")
        self._declared.check_open()
        before = self._declared.transform
        self._declared.transform = function if before is None else lambda df: function(before(df))
        return self

    def repartition(self, key: str | Sequence[str], *, name: str | None = None, partitions: int | None = None) -> Self:
        """Send each row to the task that owns its key, so that the next operators and tables may use another key.

        Another sub-topology begins here: tasks `0_<partition>` write rows, or an operator's results, to the topic
        `<group>-<name>-repartition`, and tasks `1_<partition>` read it and have the state of the operators after it.
        The topic is made at the first start, and its records are deleted once they are processed.

        Rows of a key keep the order of their input partition, but rows of several partitions interleave in any order,
        so a window needs a `grace` for that. Rows whose key is null are one group, as in Spark.

        Args:
            key: one column or several: integers, text, bytes, booleans, dates, times.
            name: of the topic, with the group in front; None: "by-" and the columns.
            partitions: how many the topic has, and so tasks with state; None: as many as the input, at the first start.

        Raises:
            PipelineError: nothing between an earlier `repartition` and this one uses the earlier key, the aggregate
                before has sessions that send updates, or an argument is wrong. The run fails with it for columns that
                do not fit or are nested, if no stateful operator or table follows, and for a topic that is missing
                though the group has committed offsets, or has other partitions or settings.

        """
        self._declared.check_open()
        self._declared.add_subtopology(Repartition.by(key, name, partitions))
        return self

    def aggregate(
        self,
        keys: str | Sequence[str],
        aggregates: Aggregates | Column,
        *more: Column,
        window: Window | SessionWindow | None = None,
        results: str = "updates",
        late_topic: str | None = None,
        migrate: Migrate = None,
        store: str = "aggregates",
    ) -> Self:
        """Keep aggregates of each key over all records, and send each batch's changed ones to the sink.

        Columns are those of Kafka records, of `json_columns`, `avro_columns` or `map_arrow`. **A key's records must be
        in one partition of the topic**, as with a producer that uses it as the record's key: each partition has a state
        of its own.

        The sink is a `KafkaSink` in the same cluster, or a `ParquetSink`, `DeltaSink`, `IcebergSink` or `PostgresSink`,
        which get rows. Results are running updates, one for each key of a batch. State, results and offsets are one
        transaction; docs/reference/state.md has the form of records, and the changelog topic.

        Args:
            keys: one column or several: integers, text, bytes, booleans, dates, times.
            aggregates: by the result's name, as SQL text or of PySpark's functions, as in {"flights": "count(*)",
                "revenue": F.sum(F.col("price") * F.col("amount"))}; or columns with aliases, in a list or as in Spark's
                `agg`. The reference of state has the functions and the expressions that they take.
            more: further columns with aliases.
            window: one state for each window of event time, in columns `window_start` and `window_end`; None: one for
                all time. A partition's time is the largest seen in it; rows for a closed window are left out, and
                `Progress.late` counts them. With `Window.session`, an update that makes a session begin earlier sends
                a record with a null value for the key of the earlier result, or deletes its row in a table.
            results: "updates" with each batch, or with a window "final": one result of each window, once it is closed.
            late_topic: a topic of the same cluster for rows that are late, as JSON objects with their columns and keyed
                by the key columns, in the batch's transaction; None: they are counted only.
            migrate: how results come from those of an earlier release: {result: the earlier result, None: it begins
                anew}. Only changes that could mean several things need it; others are made without. Or a function that
                returns the pyarrow.Table of all rows of a store with this release's columns, given the earlier ones.
            store: the store's name, part of that of its changelog.

        Raises:
            PipelineError: an argument is wrong, or the operator before sends running updates, which only functions of
                your own may take. The run fails with it for missing columns, more than one topic, another sink, and a
                changelog that is missing or does not fit.

        """
        if late_topic is not None and window is None:
            raise PipelineError("no row is late without a window", field="late_topic", fix="Leave it out")
        all_aggregates: Any = [aggregates, *more] if more or isinstance(aggregates, Column) else aggregates
        stateful = aggregation(keys, all_aggregates, window, results, store, migrate)
        self._declare("aggregate", stateful, late_rows(late_topic, keys))
        return self

    def deduplicate(
        self,
        keys: str | Sequence[str],
        *,
        within: Duration,
        column: str = "timestamp",
        late_topic: str | None = None,
        store: str = "keys",
    ) -> Self:
        """Send the first row of each key to the sink, and leave out rows that repeat it within a time.

        A key's rows must be in one partition of the topic. Sink, results, state and errors are as for `aggregate`; a
        result has all columns of its row.

        Args:
            keys: one column or several that identify a row.
            within: how long a key is remembered, in the time of its partition: the largest `column` seen in it. Older
                rows are left out too, and `Progress.late` counts them.
            column: timestamps.
            late_topic: a topic for rows that are late, as for `aggregate`.
            store: the store's name, part of that of its changelog.

        """
        self._declare("deduplicate", deduplication(keys, within, column, store), late_rows(late_topic, keys))
        return self

    def transform_with_state(
        self,
        processor: StatefulProcessor,
        key: str | Sequence[str],
        output_schema: str | StructType,
        *,
        time_mode: str = "None",
        in_pandas: bool = False,
        event_time: str | None = None,
        delay: Duration = timedelta(),
        initial_state: DataFrame | pa.Table | None = None,
        store: str = "processor",
        migrate: Migrate = None,
    ) -> Self:
        """Call a `StatefulProcessor`, as written for PySpark's `transformWithState`, for each key of each batch.

        A key's rows must be in one partition of the topic. Sink, state and errors are as for `aggregate`; a result has
        the columns of `output_schema`, and is a record whose key is the grouping key if these are among them. An error
        of the processor ends the run with FunctionError, which names key and batch.

        Args:
            processor: it is pickled; each task of a batch calls `init` and `close` of a copy of its own.
            key: the grouping key, one column or several: integers, text, bytes, booleans, dates, times.
            output_schema: schema of the rows that it returns, as Spark DDL or a StructType.
            time_mode: "None", "ProcessingTime" or "EventTime", as in PySpark.
            in_pandas: whether it is written for `transformWithStateInPandas`: rows are pandas DataFrames.
            event_time: column of timestamps from which the watermark of each partition comes, as in `withWatermark`.
            delay: how far the watermark is behind the largest time.
            initial_state: rows with the key's columns; `handleInitialState` gets a key's before its first input rows.
            store: the store's name, part of that of its changelog.
            migrate: {variable: function} for values with an earlier schema; see the page on changes.

        """
        from roster.spark.processor import declare  # noqa: PLC0415 - brings pandas

        stateful = declare.processing(
            self._spark,
            processor,
            as_columns(key),
            output_schema,
            time_mode=time_mode,
            in_pandas=in_pandas,
            event_time=event_time,
            delay=delay,
            initial_state=initial_state,
            store=store,
            migrate=migrate,
        )
        self._declare("transform_with_state", stateful)
        return self

    def apply_in_pandas_with_state(
        self,
        function: Callable[..., Any],
        key: str | Sequence[str],
        output_schema: str | StructType,
        state_schema: str | StructType,
        *,
        timeout: str = "NoTimeout",
        event_time: str | None = None,
        delay: Duration = timedelta(),
        store: str = "groups",
        migrate: Migrate = None,
    ) -> Self:
        """Call a function written for PySpark's `applyInPandasWithState` for each key of each batch.

        `function(key, pandas_frames, state)` gets a `GroupState`, and returns an iterator of pandas DataFrames.
        Everything else is as for `transform_with_state`.

        Args:
            function: it is pickled to the tasks.
            key: the grouping key, one column or several.
            output_schema: schema of the DataFrames that it returns.
            state_schema: schema of the state's value.
            timeout: "NoTimeout", "ProcessingTimeTimeout" or "EventTimeTimeout", as in PySpark.
            event_time: column of timestamps from which the watermark of each partition comes, as in `withWatermark`.
            delay: how far the watermark is behind the largest time.
            store: the store's name, part of that of its changelog.
            migrate: {"state": function}, as for `transform_with_state`.

        """
        from roster.spark.processor import declare  # noqa: PLC0415 - brings pandas

        stateful = declare.group_state(
            self._spark,
            function,
            as_columns(key),
            output_schema,
            state_schema,
            timeout=timeout,
            event_time=event_time,
            delay=delay,
            store=store,
            migrate=migrate,
        )
        self._declare("apply_in_pandas_with_state", stateful)
        return self

    def join_table(self, topic: str, on: str, schema: str | StructType, *, how: str = "inner") -> Self:
        """Join rows with a compacted topic by key, inside the task, and append its columns.

        Each task keeps the table's partition of its own number in `State(dir=...)`, and catches up with the topic's end
        (committed records only) before each batch. The topic must have as many partitions as the source, both must be
        partitioned by this key in the same way, and its values are JSON objects, null for a deleted key. A retried
        batch may see a later table. Any sink and `transform` may follow, or stateful operators and `repartition`.

        Args:
            topic: the table, in the same cluster.
            on: the column with the table's keys; numbers are compared as text.
            schema: fields of the values as Spark DDL or a StructType, as for `json_columns`; names must be new.
            how: "inner" leaves out rows without an entry, "left" gives them nulls.

        Raises:
            PipelineError: a stateful operator comes between it and the `repartition` before, the pipeline joins this
                topic already, or `how` is wrong. The run fails with it for columns that do not fit, and topics that are
                missing or have not equally many partitions.

        """
        check_extra("join_table")
        self._declared.check_open()
        self._declared.add_table(TableJoin(topic, on, schema, how))
        return self

    def join(
        self,
        topic: str,
        keys: str | Sequence[str],
        schema: str | StructType,
        *,
        within: Duration,
        how: str = "inner",
        column: str = "timestamp",
        other_column: str = "timestamp",
        grace: Duration | None = None,
        late_topic: str | None = None,
        store: str = "join",
        migrate: Migrate = None,
    ) -> Self:
        """Join the rows with those of another topic that have the same keys at nearly the same time.

        A result has the columns of the row and the fields of the other one; either may come first. Both topics must
        have the same number of partitions, and **a key's records the same partition number in both**. The group reads
        both. Sink, results, state and errors are as for `aggregate`.

        Rows are kept until the other topic's time has passed theirs by `within` and `grace`, so a partition without new
        records holds back the rows of the other topic, unless there is `idle_after`. A null key pairs with nothing.

        Args:
            topic: the other topic, in the same cluster; its values are JSON objects.
            keys: one column or several, of the same names and types on both sides.
            schema: fields of the other topic's values as Spark DDL or a StructType, as for `json_columns`.
            within: how far the times of two rows that pair may be apart, either way.
            how: "inner"; "left" to also send rows without a partner, with nulls, once none can arrive any more; "full"
                to send those of the other topic too; "semi" for rows with a partner alone, once, without its fields.
            column: timestamps of the rows.
            other_column: timestamps of the other topic: a field, or "timestamp" of the record.
            grace: how far a row may be behind the largest time of its topic's partition; older rows are left out, and
                `Progress.late` counts them. None: as far as `within`.
            late_topic: a topic for rows of both sides that are late, as for `aggregate`.
            store: the store's name, part of that of its changelog.
            migrate: {side: function} for rows that an earlier release kept; see the page on changes.

        Raises:
            PipelineError: an argument is wrong, or the operator before sends running updates. The run fails with it for
                columns that do not fit, and topics that are missing or have not equally many partitions.

        """
        other = OtherStream(topic, schema)
        stateful = stream_join(other, keys, (column, other_column), within, grace, how, store, migrate)
        self._declare("join", stateful, late_rows(late_topic, keys))
        return self

    def _take(self, declared: Declared) -> Self:
        """Take what a streaming DataFrame declares, in place of everything else."""
        self._declared.check_open()
        self._declared = declared
        return self

    def _declare(self, method: str, stateful: Stateful, late: LateRows | None = None) -> None:
        self._declared.check_open()
        self._declared.add_operator(method, replace(stateful, late=late))


def check_callable(function: object, field: str) -> None:
    """Raise PipelineError unless it is a function."""
    if not callable(function):
        raise PipelineError(f"{function!r} is not a function", field=field, fix="Pass a function or a lambda")
