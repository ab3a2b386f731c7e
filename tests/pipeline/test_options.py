"""Options, Java and session: what is wrong is said once, with the field and the fix."""

from __future__ import annotations

import inspect
import re
import typing
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
from roster.pipeline import options as options_module
from roster.pipeline.consumer_settings import CONSUMER_SETTINGS
from roster.pipeline.options import parse_bootstrap, parse_starting_offsets, parse_topics, refuse_foreign_names
from roster.spark import ConsumerSettings, DeltaSink, KafkaSink, ParquetSink, Pipeline, PipelineError, State
from roster.spark.spark_session import check_java, java_program, session
from roster.testing.broker import running_broker

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
        ({"max_batch_ms": 1.5}, "max_batch_ms: 1.5 is not a whole number from 1 to 2147483647"),
        ({"idle_after": 5}, "idle_after: 5 is not a duration: use timedelta(hours=1) or '1 hour'"),
        ({"idle_after": "0 seconds"}, "idle_after: '0 seconds' is not a time. Use '5 minutes'"),
        ({"isolation_level": "serial"}, "isolation_level: 'serial' is not known: use 'read_uncommitted' or 'read_c"),
        (
            {"consumer": {"heartbeat.interval.ms": 45_000}},
            "heartbeat.interval.ms: must be less than session.timeout.ms (45",
        ),
        ({"include_headers": "yes"}, "include_headers: 'yes' is neither True nor False"),
        ({"state": "/var"}, "state: '/var' is not a State. For example State(standbys=1)"),
        ({"state_dir": "/var"}, "state_dir: a pipeline has no option of this name. Use state=State(dir=...)"),
        (
            {"session_timeout_ms": 6_000},
            'no option of this name. Use consumer={"session.timeout.ms": ...}',
        ),
        ({"consumer": {"group.instance.id": "a b"}}, "consumer: group.instance.id: 'a b' must be 1 to 249"),
        ({"assignors": ()}, "assignors: must name at least one of cooperative-sticky, lag"),
        ({"assignors": ("nearest",)}, "assignors: there is no assignor 'nearest'; known are cooperative-sticky, lag"),
        ({"assignors": (LagOptions(max_skew=1.5),)}, "write lag_cooperative_sticky(LagOptions(max_skew=1.5, hyst"),
        ({"assignors": ("range", "range")}, "assignors: names range twice; leave one out"),
        ({"capacity": 0}, "capacity: 0 is not a whole number from 1 to"),
        (
            {"consumer": {"group.id": "x"}},
            "'group.id' is set by the pipeline itself. Leave it out and use the opti",
        ),
        ({"consumer": {"bootstrap.servers": "x"}}, "'bootstrap.servers' is set by the pipeline itself. Leave it"),
        ({"consumer": {"metadata.broker.list": "x"}}, "Leave it out and use the option bootstrap"),
        ({"consumer": {"isolation.level": "x"}}, "Leave it out and use the option isolation_level"),
        ({"consumer": {"enable.auto.commit": True}}, "'enable.auto.commit' is set by the pipeline itself"),
        (
            {"consumer": {"security.protocol": "SASL_SSL"}},
            "'security.protocol' would secure some of the connections only. Use security={'security.protocol'",
        ),
        (
            {"consumer": {"sasl.username": "x"}},
            "consumer: 'sasl.username' would secure some of the connections only",
        ),
        ({"consumer": {"ssl.ca.location": "x"}}, "'ssl.ca.location' would secure some of the connections only"),
        (
            {"consumer": {"check.crcs": "False"}},
            "consumer: 'check.crcs' is set by the pipeline itself. Leave it out",
        ),
        (
            {"consumer": {"fetch.max.bytes": float("nan")}},
            "consumer: fetch.max.bytes must be a number from 1",
        ),
        ({"consumer": {"fetch.max.wait.ms": "soon"}}, "consumer: fetch.max.wait.ms must be a number, not"),
        ({"consumer": {5: 5}}, "consumer: 5 is not a setting here"),
        ({"consumer": {"fetch.error.backoff.ms": 5}}, "is not a setting here. Use some of session.timeout.ms, h"),
        (
            {"consumer": {"session.timeout.ms": float("nan")}},
            "consumer: session.timeout.ms must be a number from 1 to 2147",
        ),
        ({"tasks": float("inf")}, "tasks: inf is not a whole number from 1 to 2147483647"),
        (
            {"consumer": {"max.poll.interval.ms": 2**31}},
            "consumer: max.poll.interval.ms must be a number from 1 to 2147483647, not 2147483648",
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
        ({"checkpointLocation": "x"}, "go into consumer={...}, and read_stream takes Spark's options"),
        ({"topics": "a, b"}, "topics: 'a, b' is not a topic name. Give a list: ['a', 'b']"),
        (
            {"consumer": {"session.timeout.ms": 45}},
            "consumer: session.timeout.ms: 45 milliseconds are less than the heartbeat interval: 45 s are",
        ),
        ({"trigger_intervall_ms": 5}, "no option of this name. Did you mean trigger_interval_ms?"),
        ({"fetch_bytes": 5}, "no option of this name. Settings of Kafka's consumers go into consumer={...}"),
        (
            {"consumer": {"fetch.bytes": 1}},
            "consumer: 'fetch.bytes' is not a setting here. Did you mean fetch.m",
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
    text = {"security.protocol": "plaintext", "session.timeout.ms": "6000", "client.rack": "a"}
    settings = Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"], consumer=text)._options.settings
    assert (settings.session_timeout_ms, settings.rack_id, settings.fetch.rack) == (6_000, "a", "a")
    assert settings.read_timeout_ms == 2 * settings.request_timeout_ms == 60_000


def test_settings_of_the_consumer_are_typed_as_they_are_declared() -> None:
    typed = typing.get_type_hints(ConsumerSettings)
    assert list(typed) == list(CONSUMER_SETTINGS)
    assert {name: kind.__name__ for name, kind in typed.items()} == {
        name: option.kind for name, option in CONSUMER_SETTINGS.items()
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dir": "stores"}, "State.dir: 'stores' is not an absolute path. For example '/var/lib/roster'"),
        ({"standbys": -1}, "State.standbys: -1 is not a whole number from 0 to 2147483647"),
        ({"max_bytes": 10_000}, "State.max_bytes: 10000 is not a whole number from 131072 to"),
        ({"cleanup_delay_ms": 999}, "State.cleanup_delay_ms: 999 is not a whole number from 1000 to"),
        ({"application_server": "0.0.0.0:80"}, "State.application_server: '0.0.0.0:80' is not an address that other"),
        ({"application_server": "h"}, "State.application_server: 'h' is not host:port"),
    ],
)
def test_a_wrong_option_of_state_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)):
        State(**wrong)


def test_every_foreign_name_leads_to_an_option_there_is() -> None:
    known = inspect.signature(Pipeline).parameters
    for fix in options_module._OPTIONS.values():
        assert fix.partition("=")[0] in known
    refuse_foreign_names(known, known)


def test_methods_of_spark_are_answered_with_the_two_functions_that_have_them() -> None:
    pipeline: Any = Pipeline(NO_SPARK, "127.0.0.1:9092", "g", ["t"])
    for name in ("awaitTermination", "withWatermark", "outputMode"):
        with pytest.raises(AttributeError, match=f"a Pipeline has no '{name}'; it is Spark's: read_stream and write_"):
            getattr(pipeline, name)
    with pytest.raises(AttributeError, match=r"a Pipeline has no 'nonsense'$"):
        pipeline.nonsense  # noqa: B018


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


def test_a_kafka_sink_names_a_broker_that_does_not_answer() -> None:
    for topic in ("t", None):
        sink = KafkaSink("127.0.0.1:1", topic)
        with pytest.raises(PipelineError, match=r"^KafkaSink: no broker answered: cannot connect to 127\.0\.0\.1:1"):
            sink.open(NO_SPARK, "g")


def test_a_kafka_sink_with_tls_says_that_the_listener_may_have_none() -> None:
    with running_broker() as broker:
        sink = KafkaSink(broker.bootstrap, "t", security={"security.protocol": "SSL"})
        with pytest.raises(PipelineError) as refused:
            sink.open(NO_SPARK, "g")
    said = str(refused.value)
    assert "is it a listener without TLS? Then security.protocol=SSL is wrong" in said
    assert "within" not in said  # it answered at once


def test_steps_of_a_pipeline_that_has_run_are_refused() -> None:
    made = Pipeline(None, "h:1", "g", "t")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="no sink"):
        made.run()
    for add in (
        lambda: made.map_arrow(lambda batch: batch, "n int"),
        lambda: made.transform(lambda df: df),
        lambda: made.deduplicate("k", within="1 day"),
        lambda: made.repartition("k"),
        lambda: made.join_table("t", "k", "n int"),
    ):
        with pytest.raises(PipelineError, match=r"has begun to run.*Make another Pipeline"):
            add()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ParquetSink("out", mode="upsert"), r"mode: 'upsert' is not possible.*DeltaSink"),
        (
            lambda: Pipeline(None, "h:1", "g", "t").aggregate("k", {"n": "count(*)"}, migrate=lambda table: table),  # type: ignore[arg-type]
            "migrate: a lambda has no name of its own. Define it with def",
        ),
        (
            lambda: Pipeline(None, "h:1", "g", "t").join(
                "u", "k", "n int", within="1 day", migrate={"left": lambda t: t}
            ),  # type: ignore[arg-type]
            "migrate: a lambda",
        ),
        (lambda: Pipeline(None, "h:1", "g", "t", http=8080), r"http: 8080 is not host:port\. Give text"),  # type: ignore[arg-type]
        (lambda: Pipeline(None, "h:1", "g", "t", idle_after="5 min"), r"^idle_after: '5 min' is not a duration"),  # type: ignore[arg-type]
        (lambda: Pipeline(None, "h:1", "g", "t").deduplicate("Column<'window(at, 1 hour)'>", within="1"), "duration"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_in_a_call_is_one_line_with_its_fix(wrong: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        wrong()


def test_an_error_has_one_full_stop_before_its_fix() -> None:
    assert str(PipelineError("keys are (a, null).", field="keys", fix="Leave it out")) == (
        "keys: keys are (a, null). Leave it out"
    )


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
    check_java()
    assert java_program() == str(java)


def test_a_pyspark_that_is_too_old_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.version.__version__", "3.5.3")
    roster.spark._check_pyspark.cache_clear()
    with pytest.raises(PipelineError, match=r"pyspark: PySpark 3\.5\.3 is installed, and Roster needs 4\.0 or newer"):
        roster.spark.__getattr__("Pipeline")
    assert {"Pipeline", "session"} <= set(dir(roster.spark))


def test_spark_connects_client_alone_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pyspark-client` has the package `pyspark`, but neither Java's part nor py4j."""
    installed = roster.spark.find_spec
    monkeypatch.setattr(roster.spark, "find_spec", lambda name: None if name == "py4j" else installed(name))
    roster.spark._check_pyspark.cache_clear()
    with pytest.raises(
        PipelineError, match=r"pyspark: only Spark Connect's client is installed .* pip install 'pyspark"
    ):
        roster.spark.__getattr__("Pipeline")


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_a_session_is_not_started_where_spark_connect_is_asked_for_or_in_use(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The second name is set by PySpark once there is a session of Connect, which it would return."""
    monkeypatch.setenv(name, "sc://127.0.0.1")
    with pytest.raises(PipelineError, match=rf"{name}: it asks for Spark Connect.*Unset it"):
        session("any")


@pytest.mark.spark
def test_a_stopped_or_foreign_session_is_refused(spark: SparkSession) -> None:
    class Remote:
        pass

    for foreign, message in [
        (Remote(), "is not a classic Spark session.*not Spark Connect.*in a container with a session of its own"),
        (_stopped(), "the Spark session is stopped"),
    ]:
        pipeline = Pipeline(foreign, "127.0.0.1:1", "g", ["t"]).foreach_batch(print)  # type: ignore[arg-type]
        with pytest.raises(PipelineError, match=message):
            pipeline.run()


def _stopped() -> Any:
    class Context:
        _jsc = None

    class Session:
        _sc = Context()

    return Session()
