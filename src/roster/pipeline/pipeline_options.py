"""Options of `Pipeline`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from roster.client.options import Bootstrap, Group, Security
from roster.member.options import DEFAULT_ASSIGNORS, Assignors
from roster.model.options import INT64_MAX, Option, option
from roster.pipeline.batch import Progress
from roster.pipeline.consumer_settings import ConsumerSettings
from roster.pipeline.spark_types import SparkSession
from roster.pipeline.state_options import State
from roster.state.durations import Duration

StartingOffsets: TypeAlias = str | datetime | Mapping[Any, Any]
"""`"earliest"`, `"latest"`, a moment (the first record at or after it), or a map by partition, written
`{TopicPartition: offset}` or as Spark does `{"topic": {0: 23, 1: "latest"}}` with -2 and -1 for earliest and latest,
also as JSON text; partitions left out of a map start at earliest."""


@dataclass(frozen=True)
class PipelineOptions:
    """The arguments of `Pipeline`, unchecked."""

    spark: Annotated[
        SparkSession,
        Option(
            kind="`SparkSession`",
            help="the driver's classic Spark session, from `roster.spark.session` or `SparkSession.builder`",
        ),
    ] = field(repr=False)
    bootstrap: Bootstrap
    group: Group
    topics: Annotated[
        str | Sequence[str] | re.Pattern[str],
        Option(
            kind="str, list or `re.Pattern`",
            help='names; or a compiled pattern or `"pattern:…"`, which must match whole names',
            spark="subscribe",
        ),
    ]
    _: KW_ONLY
    starting_offsets: StartingOffsets = option(
        "earliest",
        'where partitions begin that neither sink nor group knows: `"earliest"`, `"latest"`, a `datetime` '
        "with a time zone, or offsets by partition, as a dict or as Spark's JSON text (-2 earliest, -1 latest)",
        kind="str, `datetime` or dict",
        spark="startingOffsets",
    )
    max_offsets_per_batch: int = option(
        1_000_000,
        "most that a batch reads, shared over partitions by lag",
        unit="offsets",
        least=1,
        most=INT64_MAX,
        spark="maxOffsetsPerTrigger",
    )
    target_batch_ms: int = option(
        10_000,
        "time near which a batch ends: it reads as many offsets as earlier ones tell, more if most of its "
        "time does not depend on them; a third of `max.poll.interval.ms` at most",
        unit="ms",
        least=1,
    )
    trigger_interval_ms: int | None = option(
        None,
        "time between the starts of two batches, at least; 0: none; None: the sink's own (`ParquetSink` "
        "10,000), or 100 to 900 so that batches take a tenth of a core and records are done within a second; full "
        "batches do not wait then",
        unit="ms",
        least=0,
        spark="Trigger.ProcessingTime",
    )
    max_batch_ms: int = option(
        300_000,
        "time in which some task of a batch must finish; else the batch is cancelled and the partitions go "
        "back to the group until Spark has a slot again",
        unit="ms",
        least=1,
    )
    tasks: int | None = option(
        None, "tasks of a batch; None: as many as Spark runs at once", least=1, spark="minPartitions"
    )
    include_headers: bool = option(False, "add the column `headers`", spark="includeHeaders")
    isolation_level: str = option(
        "read_uncommitted",
        '`"read_uncommitted"`, or `"read_committed"` to leave out records of open and aborted transactions',
        choices=("read_uncommitted", "read_committed"),
        kafka="isolation.level",
    )
    fail_on_data_loss: bool = option(
        True,
        "end with an error where the position is no longer in the log; False: go on at the oldest record there is",
        spark="failOnDataLoss",
    )
    start_timeout_ms: int = option(
        60_000,
        "time to reach a broker and the group's coordinator, and a `KafkaSink`'s brokers, at start",
        unit="ms",
        least=1,
    )
    dead_letter_topic: str | None = option(
        None,
        "topic for records at which the function of `map_arrow` or an operator fails, and for record batches "
        "that cannot be read, with headers that name source and error as in Kafka Connect; at least once, with "
        "state exactly once; None: they end the run",
    )
    idle_after: Duration | None = option(
        None,
        "time without records after which a partition's windows, sessions, first rows, joins and timers of "
        "event time go by the stream time of others, or "
        "[by the clock](../state/windows.md#partitions-without-records); None: never",
        kind="str or `timedelta`",
    )
    assignors: Assignors = DEFAULT_ASSIGNORS
    capacity: int | None = option(
        None,
        "plain members that this application counts for where the assignor looks at lag, or places "
        "tasks with state; None: the tasks Spark runs at once",
        least=1,
    )
    paused: bool = option(
        False,
        "keep the state up to date and write no results until "
        "[`roster groups switch`](../state/blue-and-green.md) has this group write; without effect from then on",
    )
    state: State | None = option(
        None, "where stores are, and how many copies; None: `State()`", kind="[`State`](#state)"
    )
    consumer: ConsumerSettings | None = option(
        None,
        "[settings](#settings-of-the-consumer) of the member and of the reader inside the tasks, by their "
        'names in Kafka\'s consumer, as in `{"session.timeout.ms": 10_000}`',
        kind="dict",
    )
    security: Security = None
    http: str | None = option(
        None,
        "`host:port` at which the driver answers `/metrics`, `/health`, `/ready` and queries of state over "
        "HTTP; None: at `State.application_server`, if there is one",
    )
    http_security: Annotated[
        Mapping[str, object] | None,
        Option(
            kind="dict",
            help="[settings](#access-over-http) of TLS, client certificates and a token for HTTP, by name; all "
            "applications of the group have the same",
        ),
    ] = field(default=None, repr=False)
    on_progress: Callable[[Progress], object] | None = option(
        None, "called with a `Progress` after each batch, in the pipeline's thread", kind="callable"
    )
    log: bool | str | None = option(
        None,
        "False: warnings and errors only; or a level; None: the environment's `ROSTER_LOG`, else True",
        kind="bool or str",
    )
