"""Options, Java and session: what is wrong is said once, with the field and the fix."""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

import roster.spark
from roster.assignors import LagOptions, lag_sticky
from roster.model import TopicPartition
from roster.spark import DeltaSink, KafkaSink, ParquetSink, Pipeline, PipelineError, foreign_names
from roster.spark.foreign_names import refuse_foreign_names
from roster.spark.options import parse_bootstrap, parse_starting_offsets, parse_topics
from roster.spark.pipeline_options import PIPELINE_OPTIONS
from roster.spark.spark_session import check_java

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NO_SPARK: Any = None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bootstrap": "localhost"}, "bootstrap: 'localhost' is not host:port. Add the port, as in"),
        ({"bootstrap": "h:99999"}, "bootstrap: 'h:99999' is not host:port"),
        ({"bootstrap": []}, "bootstrap: no address given"),
        ({"bootstrap": "PLAINTEXT://h:9092"}, "'PLAINTEXT://h:9092' is not host:port. Leave out PLAINTEXT://"),
        ({"bootstrap": 9092}, "bootstrap: 9092 is not host:port. Give text, as in '127"),
        ({"bootstrap": "9092"}, "bootstrap: '9092' is not host:port. Give host and port, as in 127.0.0.1:9092"),
        ({"group": 5}, "group: 5 is not a name. Pass group='my-group'"),
        ({"topics": None}, "topics: None is not a topic name"),
        ({"group": ""}, "group: must not be empty: give the name"),
        ({"topics": []}, "topics: no topic named"),
        ({"topics": ["a b"]}, "topics: 'a b' is not a topic name"),
        ({"topics": "pattern:("}, "topics: 'pattern:(' is not a regular expression"),
        ({"starting_offsets": "newest"}, "starting_offsets: 'newest' is not understood. Use 'earliest'"),
        ({"starting_offsets": {"t": 5}}, "starting_offsets: 't': 5 is not understood"),
        ({"starting_offsets": {"t": {"x": 5}}}, "starting_offsets: t: 'x' is not a partition number"),
        ({"starting_offsets": {"t": {0: -3}}}, "starting_offsets: t-0: -3 is not an offset"),
        ({"starting_offsets": datetime(2026, 1, 1)}, "starting_offsets: 2026-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
        ({"max_offsets_per_batch": 0}, "max_offsets_per_batch: 0 is not a whole number from 1 to 9223372036854775807"),
        ({"poll_interval_ms": 1.5}, "poll_interval_ms: 1.5 is not a whole number from 1 to 2147483647"),
        ({"isolation_level": "serial"}, "isolation_level: 'serial' is not known. Use 'read_uncommitted'"),
        ({"heartbeat_interval_ms": 45_000}, "heartbeat_interval_ms: must be less than session_timeout_ms (45000)"),
        ({"group_instance_id": "a b"}, "group_instance_id: 'a b' must be 1 to 249"),
        ({"assignors": ()}, "assignors: must name at least one of cooperative-sticky, lag"),
        ({"assignors": ("nearest",)}, "assignors: there is no assignor 'nearest'; known are cooperative-sticky, lag"),
        ({"assignors": (LagOptions(max_skew=1.5),)}, "write lag_cooperative_sticky(LagOptions(max_skew=1.5, hyst"),
        ({"assignors": ("range", "range")}, "assignors: names range twice; leave one out"),
        ({"capacity": 0}, "capacity: 0 is not a whole number from 1 to"),
        (
            {"reader_options": {"group.id": "x"}},
            "'group.id' is set by the pipeline itself. Leave it out and use the opti",
        ),
        ({"reader_options": {"bootstrap.servers": "x"}}, "'bootstrap.servers' is set by the pipeline itself. Leave it"),
        ({"reader_options": {"metadata.broker.list": "x"}}, "Leave it out and use the option bootstrap"),
        ({"reader_options": {"isolation.level": "x"}}, "Leave it out and use the option isolation_level"),
        ({"reader_options": {"enable.auto.commit": True}}, "'enable.auto.commit' is set by the pipeline itself"),
        (
            {"reader_options": {"security.protocol": "SASL_SSL"}},
            "'security.protocol' would secure some of the connections only. Use security={'security.protocol'",
        ),
        (
            {"reader_options": {"sasl.username": "x"}},
            "reader_options: 'sasl.username' would secure some of the connections only",
        ),
        ({"reader_options": {"ssl.ca.location": "x"}}, "'ssl.ca.location' would secure some of the connections only"),
        (
            {"reader_options": {"check.crcs": "False"}},
            "reader_options: check.crcs must be true: damaged records would count as read, not 'False'",
        ),
        (
            {"reader_options": {"fetch.max.bytes": float("nan")}},
            "reader_options: fetch.max.bytes must be a number from 1",
        ),
        ({"reader_options": {"fetch.max.wait.ms": "soon"}}, "reader_options: fetch.max.wait.ms must be a number, not"),
        ({"reader_options": {5: 5}}, "reader_options: 5 is no setting here"),
        ({"reader_options": {"fetch.error.backoff.ms": 5}}, "is no setting here. Use some of client.id, client.rack"),
        ({"session_timeout_ms": float("nan")}, "session_timeout_ms: nan is not a whole number from 1 to 2147483647"),
        ({"tasks": float("inf")}, "tasks: inf is not a whole number from 1 to 2147483647"),
        (
            {"rebalance_timeout_ms": 2**31},
            "rebalance_timeout_ms: 2147483648 is not a whole number from 1 to 2147483647",
        ),
        ({"max_offsets_per_batch": 10**5000}, "max_offsets_per_batch: a number of thousands of digits is not a whole"),
        ({"starting_offsets": {"t": {0: 2**63}}}, "starting_offsets: t-0: 9223372036854775808 is not an offset"),
        ({"starting_offsets": {"t": {0: float("inf")}}}, "starting_offsets: t-0: inf is not an offset"),
        ({"starting_offsets": {"t": {2**31: 0}}}, "starting_offsets: t: 2147483648 is not a partition number"),
        ({"starting_offsets": {"t": {"²": 0}}}, "starting_offsets: t: '²' is not a partition number"),
        ({"starting_offsets": '{"t": {"0": 1}'}, """starting_offsets: '{"t": {"0": 1}' is not JSON: """),
        ({"starting_offsets": '{"t": 5}'}, "starting_offsets: 't': 5 is not understood"),
        (
            {"maxOffsetsPerTrigger": 5},
            "maxOffsetsPerTrigger: a pipeline has no option of this name. Use max_offsets_per_b",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets: a pipeline has no option of this name. Use starting_offsets"),
        ({"kafka.group.id": "g"}, "kafka.group.id: a pipeline has no option of this name. Use group"),
        (
            {"auto_offset_reset": "latest"},
            "auto_offset_reset: a pipeline has no option of this name. Use starting_offsets",
        ),
        ({"minOffsetsPerTrigger": 5}, "Leave it out: trigger_interval_ms spaces batches out"),
        ({"endingOffsets": "latest"}, "Leave it out: run(available_now=True) ends with what is there"),
        ({"topics": "a, b"}, "topics: 'a, b' is not a topic name. Give a list: ['a', 'b']"),
        (
            {"session_timeout_ms": 45},
            "session_timeout_ms: 45 milliseconds are less than the heartbeat interval: 45 s are",
        ),
        ({"trigger_intervall_ms": 5}, "no option of this name. Did you mean trigger_interval_ms?"),
        ({"fetch_bytes": 5}, "no option of this name. Settings of the tasks' reader go into reader_options"),
        (
            {"reader_options": {"fetch.bytes": 1}},
            "reader_options: 'fetch.bytes' is no setting here. Did you mean fetch.m",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_a_wrong_option_is_named_with_its_fix(wrong: dict[str, Any], message: str) -> None:
    options = {"bootstrap": "127.0.0.1:9092", "group": "g", "topics": ["t"], **wrong}
    with pytest.raises(PipelineError, match=re.escape(message)):
        Pipeline(NO_SPARK, **options)


def test_the_forms_options_may_take() -> None:
    assert parse_bootstrap(["a:1", "b:2, c:3,"]) == "a:1,b:2,c:3"
    assert parse_bootstrap(" [::1]:9092 ") == "[::1]:9092"
    assert parse_topics("flights") == ("flights",)
    assert parse_topics(["a", "b", "a"]) == ("a", "b")
    assert parse_topics("pattern:fl.*") == re.compile("fl.*")
    assert parse_starting_offsets(datetime(2026, 1, 1, tzinfo=UTC)) == 1_767_225_600_000
    expected = {TopicPartition("t", 0): 7, TopicPartition("t", 1): -1}
    assert parse_starting_offsets({"t": {"0": 7, 1: "latest"}}) == expected
    assert parse_starting_offsets(expected) == expected
    assert parse_starting_offsets('{"t": {"0": 7, "1": -1}}') == expected, "as Spark takes it"
    assert parse_starting_offsets(datetime(1960, 1, 1, tzinfo=UTC)) == 0, "not Kafka's -1, the end"
    plain = {"security.protocol": "plaintext", "check.crcs": True}
    assert Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"], reader_options=plain)._options.reader_options == plain


def test_every_foreign_name_leads_to_an_option_there_is() -> None:
    known = inspect.signature(Pipeline).parameters
    for fix in foreign_names._OPTIONS.values():
        assert fix.partition("=")[0] in known
    refuse_foreign_names(known, known)


@pytest.mark.parametrize("method", ["run", "start"])
@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"trigger": {"availableNow": True}}, "Use available_now=True, or trigger_interval_ms of Pipeline"),
        ({"availableNow": True}, "Use available_now=True"),
        ({"outputMode": "complete"}, "Use results= of aggregate"),
        ({"max_offsets_per_batch": 5}, "It is an option of Pipeline"),
        ({"nonsense": 5}, "Use available_now"),
    ],
)
def test_arguments_of_sparks_start_are_answered_with_rosters(method: str, given: dict[str, Any], fix: str) -> None:
    pipeline = Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"])
    with pytest.raises(PipelineError) as error:
        getattr(pipeline, method)(**given)
    assert str(error.value) == f"{next(iter(given))}: a run has no argument of this name. {fix}"


def test_methods_of_sparks_streams_are_answered_with_rosters() -> None:
    pipeline: Any = Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"])
    with pytest.raises(AttributeError, match=r"a Pipeline has no 'awaitTermination'; use wait\(\)$"):
        pipeline.awaitTermination()
    with pytest.raises(AttributeError, match="a Pipeline has no 'withWatermark'; use aggregate"):
        pipeline.withWatermark("at", "1 minute")
    with pytest.raises(AttributeError, match=r"a Pipeline has no 'nonsense'$"):
        pipeline.nonsense  # noqa: B018
    for own in foreign_names._METHODS.values():
        name = own.partition("(")[0]
        known = hasattr(Pipeline, name) or name in PIPELINE_OPTIONS or " of " in name or name == "the arguments"
        assert known, own


def test_a_subclass_has_options_of_its_own() -> None:
    class Counted(Pipeline):
        def __init__(self, group: str, *, counted: bool, **options: Any) -> None:
            super().__init__(NO_SPARK, "127.0.0.1:9092", group, ["t"], **options)
            self.counted = counted

    assert list(inspect.signature(Counted).parameters) == ["group", "counted", "options"]
    assert Counted("g", counted=True, tasks=3)._options.tasks == 3
    with pytest.raises(PipelineError, match="startingOffsets: a pipeline has no option of this name"):
        Counted("g", counted=True, startingOffsets="latest")


def test_a_sink_that_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="path: no path given"):
        ParquetSink("")
    with pytest.raises(
        PipelineError, match=r"bootstrap: 'localhost' is not host:port\. Add the port, as in localhost:9092"
    ):
        KafkaSink("localhost", "t")
    with pytest.raises(PipelineError, match="topic: 'a b' is not a topic name"):
        KafkaSink("127.0.0.1:1", "a b")
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(PipelineError, match=r"path: .*file cannot be used: .* Name a writable folder"):
        ParquetSink(blocked).open(None, "g")
    with pytest.raises(PipelineError, match=r"table: .*/file is a file\. Name a folder"):
        DeltaSink(blocked)
    with pytest.raises(PipelineError, match=r"path: s3a:// cannot .* Use DeltaSink or IcebergSink for object stores"):
        ParquetSink("s3a://bucket/out").open(None, "g")
    for sink in (ParquetSink("out", partition_by="day"), DeltaSink("out", partition_by=["day"])):
        with pytest.raises(PipelineError, match=r"partition_by: the rows have no column `day` \(they have n\)"):
            sink.check(StructType([StructField("n", LongType())]))
    pipeline = Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"])
    with pytest.raises(PipelineError, match="write: 5 is not a Sink"):
        pipeline.write(5)  # type: ignore[arg-type]


HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "value",
            IntegerType(),
            "column `value` is int, and must be string or binary. Cast it, for example with cast(",
        ),
        ("value", HEADER, "column `value` is struct<key:string,value:binary>, and must be string or binary. Cast it, "),
        (
            "key",
            LongType(),
            "column `key` is bigint, and must be string or binary. Cast it, for example with cast(key ",
        ),
        ("topic", BinaryType(), "column `topic` is binary, and must be string. Cast it"),
        (
            "partition",
            LongType(),
            "column `partition` is bigint, and must be int. Cast it, for example with cast(parti",
        ),
        ("headers", ArrayType(StringType()), "column `headers` is array<string>, and must be array<struct<key:string,"),
        ("values", StringType(), "the rows have no column `value` (they have values). Name the column to be written"),
    ],
)
def test_rows_that_the_kafka_sink_cannot_write_are_refused_by_their_schema(name: str, kind: Any, message: str) -> None:
    columns = {"value": StringType(), name: kind} if name != "values" else {name: kind}
    with pytest.raises(PipelineError, match=re.escape(message)):
        KafkaSink("h:1", "t").check(StructType([StructField(*column) for column in columns.items()]))


def test_rows_that_the_kafka_sink_can_write_pass() -> None:
    for key in (StringType(), BinaryType(), NullType()):
        kinds = {
            "key": key,
            "value": key,
            "partition": IntegerType(),
            "headers": ArrayType(HEADER),
            "other": LongType(),
        }
        KafkaSink("h:1", "t").check(StructType([StructField(*column) for column in kinds.items()]))


def test_a_kafka_sink_names_a_broker_that_does_not_answer_in_the_time_for_a_start() -> None:
    for topic in ("t", None):
        sink = KafkaSink("127.0.0.1:1", topic)
        sink.start_timeout_ms = 100
        with pytest.raises(
            PipelineError, match=r"KafkaSink: no answer from 127\.0\.0\.1:1 within 0\.1 s: no broker answered"
        ):
            sink.open(NO_SPARK, "g")


@pytest.mark.parametrize("method", ["transform", "foreach_batch", "map_arrow"])
def test_what_is_not_a_function_is_refused_at_once(method: str) -> None:
    pipeline: Any = Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"])
    with pytest.raises(PipelineError, match=f"{method}: None is not a function"):
        getattr(pipeline, method)(*((None, "n long") if method == "map_arrow" else (None,)))


def test_one_assignor_may_be_named_without_a_list() -> None:
    tuned = lag_sticky(LagOptions(max_skew=0.5))
    for one in ("range", tuned):
        assert Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"], assignors=one)._options.assignors == (one,)


@pytest.mark.process
def test_a_missing_or_old_java_is_named_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match=r"neither JAVA_HOME nor `java` on the PATH\. Install Java 17 or newer"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(PipelineError, match=r"JAVA_HOME: .*nowhere has no bin/java\. Unset it or point it at"):
        check_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for version, major in [("11.0.2", 11), ("1.8.0_392", 8)]:
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
        java.chmod(0o755)
        with pytest.raises(PipelineError, match=rf"is Java {major}, Spark needs 17"):
            check_java()
    java.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(PipelineError, match="does not start"):
        check_java()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21\" 2023-09-19' >&2\n")
    assert check_java() == str(java)


def test_a_pyspark_that_is_too_old_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.version.__version__", "3.5.3")
    roster.spark._check_pyspark.cache_clear()
    with pytest.raises(PipelineError, match=r"pyspark: PySpark 3\.5\.3 is installed, and Roster needs 4\.0 or newer"):
        roster.spark.__getattr__("Pipeline")
    assert {"Pipeline", "session"} <= set(dir(roster.spark))


@pytest.mark.spark
def test_a_stopped_or_foreign_session_is_refused(spark: SparkSession) -> None:
    class Remote:
        pass

    for session, message in [
        (Remote(), "is not a classic Spark session"),
        (_stopped(), "the Spark session is stopped"),
    ]:
        pipeline = Pipeline(session, "127.0.0.1:1", "g", ["t"]).foreach_batch(print)  # type: ignore[arg-type]
        with pytest.raises(PipelineError, match=message):
            pipeline.run()


def _stopped() -> Any:
    class Context:
        _jsc = None

    class Session:
        _sc = Context()

    return Session()
