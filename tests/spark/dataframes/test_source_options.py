"""Options of Spark's Kafka source and of a query: what a Pipeline gets of them."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime

import pytest

from roster.spark import PipelineError, State
from roster.spark.dataframes.sinks import BatchIds
from roster.spark.dataframes.source_options import differing, in_words_of_options, own_options, source_of

LEAST = {"kafka.bootstrap.servers": "b:9092", "subscribe": "a, b"}


def test_options_have_sparks_names_in_any_case() -> None:
    source = source_of(
        {
            "Kafka.Bootstrap.Servers": "b:9092",
            "SUBSCRIBEPATTERN": "orders-.*",
            "startingOffsets": "earliest",
            "startingTimestamp": "1000",
            "maxOffsetsPerTrigger": "500",
            "failOnDataLoss": "False",
            "includeHeaders": "true",
            "kafka.group.id": "g",
            "kafka.isolation.level": "read_committed",
            "kafka.session.timeout.ms": "9000",
            "kafka.security.protocol": "SSL",
            "roster.idle_after": "5 minutes",
            "Roster.target_batch_ms": "700",
            "roster.assignors": "range, lag",
            "roster.http_security": '{"token": "0123456789abcdef"}',
            "roster.state.standbys": "1",
        }
    )
    assert (source.bootstrap, source.topics, source.group, source.has_headers) == (
        "b:9092",
        "pattern:orders-.*",
        "g",
        True,
    )
    assert source.keywords == {
        "starting_offsets": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "max_offsets_per_batch": 500,
        "fail_on_data_loss": False,
        "include_headers": True,
        "isolation_level": "read_committed",
        "consumer": {"session.timeout.ms": "9000"},
        "security": {"security.protocol": "SSL"},
        "idle_after": "5 minutes",
        "target_batch_ms": 700,
        "assignors": ["range", "lag"],
        "http_security": {"token": "0123456789abcdef"},
        "state": State(standbys=1),
    }


def test_a_new_group_begins_at_the_end_as_a_query_of_spark_does() -> None:
    source = source_of(LEAST)
    assert (source.topics, source.keywords) == (["a", "b"], {"starting_offsets": "latest"})
    assert source_of(LEAST | {"startingOffsets": "Earliest"}).keywords == {"starting_offsets": "earliest"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"kafka.bootstrap.servers": "b:9092"},
            'subscribe: it is not given. For example .option("subscribe", "orders")',
        ),
        ({"subscribe": "a"}, "kafka.bootstrap.servers: it is not given"),
        (LEAST | {"subscribePattern": "a"}, "subscribePattern: subscribe and subscribePattern are both given"),
        (LEAST | {"assign": "{}"}, "assign: partitions come from the group. Use subscribe"),
        (LEAST | {"startingOffsetsByTimestamp": "{}"}, "startingOffsetsByTimestamp: a time for each partition"),
        (LEAST | {"endingOffsets": "latest"}, r"endingOffsets: a stream has no end. Use trigger(availableNow=True)"),
        (LEAST | {"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset: Spark has it elsewhere, too"),
        (LEAST | {"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger: 'many' is not a whole number"),
        (LEAST | {"failOnDataLoss": "no"}, "failOnDataLoss: 'no' is neither true nor false"),
        (LEAST | {"startingTimestamp": "9" * 18}, "startingTimestamp: 9"),
        (LEAST | {"startingOffset": "latest"}, "startingOffset: Spark's Kafka source has no option of this name"),
        (
            LEAST | {"roster.standbys": "1"},
            "roster.standbys: Roster has no option of this name. Did you mean roster.state.standbys?",
        ),
        (LEAST | {"roster.state.standbys": "-1"}, "roster.state.standbys: -1 is not a whole number from 0 to"),
        (LEAST | {"roster.http_security": "token"}, "roster.http_security: 'token' is not a JSON object. For example"),
        (
            {"bootstrap.servers": "b:9092"},
            "bootstrap.servers: Spark's Kafka source has no option of this name (Did",
        ),
        *(
            (LEAST | {name: "x"}, f"{name}: Spark's Kafka source has no option of this name. Did you mean {meant}?")
            for name, meant in {
                "topic": "subscribe",
                "Group.ID": "kafka.group.id",
                "session.timeout.ms": "kafka.session.timeout.ms",
                "startingOffset": "startingOffsets",
            }.items()
        ),
        (LEAST | {"roster.group": "g"}, "roster.group: Roster has no option of this name"),
    ],
)
def test_what_is_wrong_names_the_option_as_it_was_written(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError) as caught:
        source_of(options)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"startingOffsets": '{"a": {"0": 5'},
            """startingOffsets: '{"a": {"0": 5' is not JSON: .*Use earliest, latest, or""",
        ),
        (
            {"startingOffsets": "middle"},
            r'startingOffsets: .middle. is .*or JSON such as {"orders": {"0": 23, "1": -1}}$',
        ),
        ({"maxOffsetsPerTrigger": "-5"}, "maxOffsetsPerTrigger: -5 is not a whole number from 1"),
        ({"minPartitions": "0"}, "minPartitions: 0 is not"),
        ({"kafka.isolation.level": "committed"}, "kafka.isolation.level: 'committed' is not known"),
        ({"kafka.bootstrap.servers": "http://b"}, "kafka.bootstrap.servers: 'http://b' is not host:port. Leave out"),
        ({"subscribe": "a,,b"}, "subscribe: '' is not a topic name. Use .*, with commas between names"),
        ({"kafka.session.timeout": "9000"}, "kafka.session.timeout: .* Did you mean kafka.session.timeout.ms"),
        ({"kafka.session.timeout.ms": "abc"}, "kafka.session.timeout.ms: session.timeout.ms must be a number"),
        ({"kafka.partition.assignment.strategy": "x"}, "kafka.partition.*use the option roster.assignors"),
        ({"kafka.security.protocol": "SASL"}, "kafka.security.protocol: 'SASL' is not one"),
        ({"roster.idle_after": "soon"}, "roster.idle_after: 'soon' is not a duration"),
        ({"roster.http": "here"}, "roster.http: 'here' is not host:port"),
    ],
)
def test_what_a_pipeline_refuses_is_said_in_words_of_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError) as caught:
        source_of(LEAST | options)
    assert re.match(said, str(caught.value))


def test_a_pattern_that_is_none_names_its_option() -> None:
    with pytest.raises(PipelineError) as caught:
        source_of({"kafka.bootstrap.servers": "b:9092", "subscribePattern": "o[*"})
    assert str(caught.value).startswith("subscribePattern: 'o[*' is not a regular expression")


def test_all_that_is_wrong_is_told_at_once_each_with_its_way_out(caplog: pytest.LogCaptureFixture) -> None:
    options = {
        "bootstrap.servers": "b:9092",
        "subscribe": "a,,b",
        "startingOffset": "earliest",
        "startingOffsets": '{"a": {"0": "x"}}',
        "failOnDataLoss": "no",
        "kafka.session.timeout": "9000",
        "roster.idle_after": "soon",
        "roster.state.standbys": "-1",
        "groupIdPrefix": "x",
    }
    with pytest.raises(PipelineError) as caught:
        source_of(options)
    told = str(caught.value).split("; ")
    assert [text.partition(":")[0] for text in told] == [
        *("bootstrap.servers", "startingOffset", "failOnDataLoss", "kafka.bootstrap.servers", "roster.state.standbys"),
        *("subscribe", "kafka.session.timeout", "startingOffsets", "roster.idle_after"),
    ]
    assert told[0].endswith("(Did you mean kafka.bootstrap.servers?)")
    assert told[-2].startswith("startingOffsets: a-0: 'x' is not an offset (Use earliest, latest, or JSON")
    assert not caplog.records


def test_a_source_may_have_what_needs_an_option_of_its_sink() -> None:
    source = source_of(LEAST | {"roster.http_security": '{"token": "0123456789abcdef"}'})
    assert source.keywords["http_security"] == {"token": "0123456789abcdef"}
    assert "http" not in source.keywords


def test_what_a_changed_state_needs_is_said_as_an_option() -> None:
    problem, fix = "'hours' of the group 'g', partition 0: written with a, has b", "migrate={'b': 'a'} if it is 'a'"
    said = str(in_words_of_options(PipelineError(problem, field="store", fix=fix)))
    assert said == f"""store: {problem}. .option("roster.migrate", '{{"hours": {{"b": "a"}}}}') if it is 'a'"""


def test_a_name_that_is_an_option_already_stays() -> None:
    own = PipelineError("it needs roster.idle_after", field="roster.keyed_by", fix="Use the option idle_after")
    said = "roster.keyed_by: it needs roster.idle_after. Use the option roster.idle_after"
    assert str(in_words_of_options(own)) == said


def test_what_has_no_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        source_of(LEAST | {"groupIdPrefix": "x", "kafkaConsumer.pollTimeoutMs": "9"})
    assert [record.getMessage() for record in caplog.records] == [
        "groupIdPrefix has no effect: the group is kafka.group.id, or the query's name",
        "kafkaConsumer.pollTimeoutMs has no effect: Roster has a reader of its own",
    ]


def test_options_of_a_query_that_are_not_rosters_are_left_to_its_sink() -> None:
    assert own_options({"path": "out", "roster.http": "127.0.0.1:1"}) == {"http": "127.0.0.1:1"}


def test_numbers_of_batches_grow_though_the_clock_stands_or_falls_back() -> None:
    clock = iter([5.0, 5.0, 3.0, 3.0, 6.0])
    ids = BatchIds(lambda: next(clock))
    assert [ids.next() for _ in range(5)] == [5000, 5001, 5002, 5003, 6000]


def test_options_in_which_sources_differ_are_told_with_their_values_but_secrets() -> None:
    given = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders", "roster.state.standbys": "1"}
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required username='u' password='hidden';"
    secure = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    more = {"startingOffsets": "earliest", "roster.state.dir": "/x", "kafka.session.timeout.ms": "45000"}
    more |= {f"kafka.{name}": value for name, value in secure.items()}
    others = source_of({**given, "subscribe": "payments"}), source_of({**given, **more})
    assert differing([source_of(given), *others]) == [
        "startingOffsets is latest and earliest",
        "roster.state.dir is not given and /x",
        "kafka.security.protocol is not given and SASL_PLAINTEXT",
        "kafka.sasl.mechanism is not given and PLAIN",
        "kafka.sasl.jaas.config differs",
        "kafka.session.timeout.ms is not given and 45000",
    ]
    pattern = {**given, "subscribePattern": "o.*"}
    del pattern["subscribe"]
    assert differing([source_of(given), source_of(pattern)]) == ["subscribePattern is not given and o.*"]
