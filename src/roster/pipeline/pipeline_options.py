"""Options of `Pipeline`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from roster.client.options import Bootstrap, Group, Security
from roster.member.options import DEFAULT_ASSIGNORS, Assignors
from roster.model.options import INT64_MAX, Option
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
    starting_offsets: Annotated[
        StartingOffsets,
        Option(
            kind="str, `datetime` or dict",
            help='where partitions begin that neither sink nor group knows: `"earliest"`, `"latest"`, a `datetime` '
            "with a time zone, or offsets by partition, as a dict or as Spark's JSON text (-2 earliest, -1 latest)",
            spark="startingOffsets",
        ),
    ] = "earliest"
    max_offsets_per_batch: Annotated[
        int,
        Option(
            help="most that a batch reads, shared over partitions by lag",
            unit="offsets",
            least=1,
            most=INT64_MAX,
            spark="maxOffsetsPerTrigger",
        ),
    ] = 1_000_000
    target_batch_ms: Annotated[
        int,
        Option(
            help="time near which a batch ends: it reads as many offsets as earlier ones tell, more if most of its "
            "time does not depend on them; a third of `max.poll.interval.ms` at most",
            unit="ms",
            least=1,
        ),
    ] = 10_000
    trigger_interval_ms: Annotated[
        int | None,
        Option(
            help="time between the starts of two batches, at least; 0: none; None: the sink's own (`ParquetSink` "
            "10,000), or 100 to 900 so that batches take a tenth of a core and records are done within a second; full "
            "batches do not wait then",
            unit="ms",
            least=0,
            spark="Trigger.ProcessingTime",
        ),
    ] = None
    max_batch_ms: Annotated[
        int,
        Option(
            help="time in which some task of a batch must finish; else the batch is cancelled and the partitions go "
            "back to the group until Spark has a slot again",
            unit="ms",
            least=1,
        ),
    ] = 300_000
    tasks: Annotated[
        int | None, Option(help="tasks of a batch; None: as many as Spark runs at once", least=1, spark="minPartitions")
    ] = None
    include_headers: Annotated[bool, Option(help="add the column `headers`", spark="includeHeaders")] = False
    isolation_level: Annotated[
        str,
        Option(
            help='`"read_uncommitted"`, or `"read_committed"` to leave out records of open and aborted transactions',
            choices=("read_uncommitted", "read_committed"),
            kafka="isolation.level",
        ),
    ] = "read_uncommitted"
    fail_on_data_loss: Annotated[
        bool,
        Option(
            help="end with an error where the position is no longer in the log; False: go on at the oldest record "
            "there is",
            spark="failOnDataLoss",
        ),
    ] = True
    start_timeout_ms: Annotated[
        int,
        Option(
            help="time to reach a broker and the group's coordinator, and a `KafkaSink`'s brokers, at start",
            unit="ms",
            least=1,
        ),
    ] = 60_000
    dead_letter_topic: Annotated[
        str | None,
        Option(
            help="topic for records at which the function of `map_arrow` or an operator fails, and for record batches "
            "that cannot be read, with headers that name source and error as in Kafka Connect; at least once, with "
            "state exactly once; None: they end the run"
        ),
    ] = None
    idle_after: Annotated[
        Duration | None,
        Option(
            kind="str or `timedelta`",
            help="time without records after which a partition's windows, sessions, first rows, joins and timers of "
            "event time go by the stream time of others, or "
            "[by the clock](../state/windows.md#partitions-without-records); None: never",
        ),
    ] = None
    assignors: Assignors = DEFAULT_ASSIGNORS
    capacity: Annotated[
        int | None,
        Option(
            help="plain members that this application counts for where the assignor looks at lag, or places "
            "tasks with state; None: the tasks Spark runs at once",
            least=1,
        ),
    ] = None
    paused: Annotated[
        bool,
        Option(
            help="keep the state up to date and write no results until "
            "[`roster groups switch`](../state/blue-and-green.md) has this group write; without effect from then on"
        ),
    ] = False
    state: Annotated[
        State | None, Option(kind="[`State`](#state)", help="where stores are, and how many copies; None: `State()`")
    ] = None
    consumer: Annotated[
        ConsumerSettings | None,
        Option(
            kind="dict",
            help="[settings](#settings-of-the-consumer) of the member and of the reader inside the tasks, by their "
            'names in Kafka\'s consumer, as in `{"session.timeout.ms": 10_000}`',
        ),
    ] = None
    security: Security = None
    http: Annotated[
        str | None,
        Option(
            help="`host:port` at which the driver answers `/metrics`, `/health`, `/ready` and queries of state over "
            "HTTP; None: at `State.application_server`, if there is one"
        ),
    ] = None
    http_security: Annotated[
        Mapping[str, object] | None,
        Option(
            kind="dict",
            help="[settings](#access-over-http) of TLS, client certificates and a token for HTTP, by name; all "
            "applications of the group have the same",
        ),
    ] = field(default=None, repr=False)
    on_progress: Annotated[
        Callable[[Progress], object] | None,
        Option(kind="callable", help="called with a `Progress` after each batch, in the pipeline's thread"),
    ] = None
    log: Annotated[
        bool | str | None,
        Option(
            kind="bool or str",
            help="False: warnings and errors only; or a level; None: the environment's `ROSTER_LOG`, else True",
        ),
    ] = None
