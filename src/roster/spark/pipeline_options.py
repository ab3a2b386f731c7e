"""Options of `Pipeline`: its own, and those of the group member it has."""

from __future__ import annotations

from dataclasses import replace

from roster.client.options import GroupMemberOptions
from roster.member.options import MemberSettings
from roster.member.task_options import TaskOptions
from roster.model.options import INT64_MAX, Option, by_name, declared
from roster.state.store_files import LEAST_ROOM

_TASKS, _MEMBER = declared(TaskOptions), declared(GroupMemberOptions)
_TOPICS = 'names; or a compiled pattern or `"pattern:…"`, which must match whole names'

SMALL_BATCHES = AUTO, DRIVER, TASKS = ("auto", "driver", "tasks")
"""Where small batches are done: in the driver but for functions of `map_arrow`, in the driver, in tasks."""

_OWN = [
    Option(
        "starting_offsets",
        "str, `datetime` or dict",
        'where partitions begin that neither sink nor group knows: `"earliest"`, `"latest"`, a `datetime` with a time '
        "zone, or offsets by partition, as a dict or as Spark's JSON text (-2 earliest, -1 latest)",
        "earliest",
        spark="startingOffsets",
    ),
    Option(
        "max_offsets_per_batch",
        "int",
        "most that a batch reads, shared over partitions by lag; None: all there are",
        1_000_000,
        unit="offsets",
        least=1,
        most=INT64_MAX,
        spark="maxOffsetsPerTrigger",
    ),
    Option(
        "target_batch_ms",
        "int",
        "time near which a batch ends: it reads as many offsets as the rate of earlier ones allows; a third of "
        "`rebalance_timeout_ms` at most",
        10_000,
        unit="ms",
        least=1,
    ),
    Option(
        "min_offsets_per_task",
        "int",
        "least for which a partition's range is split over more tasks",
        1_000,
        unit="offsets",
        least=1,
        most=INT64_MAX,
    ),
    Option(
        "tasks", "int", "tasks of a batch; None: as many as Spark runs at once", None, least=1, spark="minPartitions"
    ),
    Option("include_headers", "bool", "add the column `headers`", False, spark="includeHeaders"),
    Option(
        "isolation_level",
        "str",
        '`"read_uncommitted"`, or `"read_committed"` to leave out records of open and aborted transactions',
        "read_uncommitted",
        kafka="isolation.level",
    ),
    Option(
        "fail_on_data_loss",
        "bool",
        "end with an error where the position is no longer in the log; False: go on at the oldest record there is",
        True,
        spark="failOnDataLoss",
    ),
    Option(
        "poll_interval_ms", "int", "time between looks for new records while there are none", 200, unit="ms", least=1
    ),
    Option(
        "trigger_interval_ms",
        "int",
        "time between the starts of two batches, at least; None: what the sink suggests (`ParquetSink` 10,000), or "
        "750 to 900 so that records are done within a second, which a full batch does not wait for",
        None,
        unit="ms",
        least=0,
        spark="Trigger.ProcessingTime",
    ),
    Option(
        "small_batches",
        "str",
        "where a batch of few records is read, and written by sinks that write inside the tasks: in the driver unless "
        'there is a function of `map_arrow` (`"auto"`), with functions too (`"driver"`), or in `"tasks"` on executors',
        "auto",
    ),
    Option(
        "read_timeout_ms",
        "int",
        "time a task waits for the next record of a range before it fails",
        60_000,
        unit="ms",
        least=1,
        spark="kafkaConsumer.pollTimeoutMs",
    ),
    Option(
        "start_timeout_ms",
        "int",
        "time to reach a broker and the group's coordinator, and a `KafkaSink`'s brokers, at start",
        60_000,
        unit="ms",
        least=1,
    ),
    Option(
        "max_batch_ms",
        "int",
        "time in which some task of a batch must finish; else the batch is cancelled and the partitions go back to the "
        "group until Spark has a slot again",
        300_000,
        unit="ms",
        least=1,
    ),
    Option(
        "dead_letter_topic",
        "str",
        "topic for records that the function of `map_arrow` raises at, and for record batches that cannot be read; "
        "None: they end the run",
        None,
    ),
    Option(
        "state_dir",
        "str",
        "directory on each executor's local disk for the stores of a stateful pipeline; None: `roster-state` in that "
        "of temporary files",
        None,
    ),
    replace(_TASKS["standbys"], help="copies of each task's state in other applications of a stateful group"),
    _TASKS["acceptable_lag"],
    _TASKS["max_warmups"],
    replace(
        _TASKS["host"],
        name="application_server",
        help="`host:port` at which the driver answers queries of a stateful pipeline's state over HTTP, without "
        "authentication; None: it does not",
    ),
    Option(
        "state_cleanup_delay_ms",
        "int",
        "time after which a store on disk is removed that no application on the host has a task for",
        600_000,
        unit="ms",
        least=1_000,
        kafka="state.cleanup.delay.ms",
    ),
    Option(
        "max_state_bytes",
        "int",
        "bytes that the stores of a stateful pipeline may take on each executor's host: beyond, standby copies are "
        "given up, then the run ends with an error; None: no limit",
        None,
        unit="bytes",
        least=LEAST_ROOM,
        most=INT64_MAX,
    ),
]

_GROUP = {
    name: _MEMBER[name]
    for name in ("assignors", *declared(MemberSettings), "client_id")
    if name != "auto_offset_reset"  # follows from starting_offsets
} | {
    "rebalance_timeout_ms": replace(
        _MEMBER["rebalance_timeout_ms"],
        help="time the group waits for this member to finish its batch when partitions move",
    ),
    "client_id": replace(
        _MEMBER["client_id"],
        default=None,
        help=f"{_MEMBER['client_id'].help}; None: the Spark application's name",
    ),
    "rack_id": replace(_MEMBER["rack_id"], help="the rack the driver stands in, for assignors that place by racks"),
    "capacity": replace(
        _MEMBER["capacity"],
        default=None,
        help="plain members that this application counts for where the assignor looks at lag; "
        "None: the tasks Spark runs at once",
    ),
}

PIPELINE_OPTIONS = by_name(
    [
        Option(
            "spark",
            "`SparkSession`",
            "the driver's classic Spark session, from `roster.spark.session` or `SparkSession.builder`",
        ),
        _MEMBER["bootstrap"],
        _MEMBER["group"],
        replace(_MEMBER["topics"], kind="str, list or `re.Pattern`", help=_TOPICS, spark="subscribe"),
        *_OWN,
        *_GROUP.values(),
        _MEMBER["security"],
        Option(
            "reader_options",
            "dict",
            "settings of the reader inside the tasks by their names in Kafka's consumers; those that contradict the "
            "pipeline are refused",
            None,
        ),
        Option("on_progress", "callable", "called with a `Progress` after each batch, in the pipeline's thread", None),
        Option(
            "log",
            "bool or str",
            "False: warnings and errors only; or a level; None: the environment's `ROSTER_LOG`, else True",
            None,
        ),
        Option("membership", "callable", "makes the group member; for tests", None),
    ]
)
"""Options of `Pipeline`, in the order of its signature."""
