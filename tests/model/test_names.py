"""The one rule for topic names: whoever takes a name refuses the same ones."""

from __future__ import annotations

import pytest

from roster.broker.errors import RefusedError
from roster.broker.topics import check_name
from roster.member import ConfigError, MemberConfig
from roster.model.topics import MAX_NAME, is_legal_name
from roster.pipeline.options import parse_topics
from roster.spark import KafkaSink, PipelineError


def member(name):
    MemberConfig(group="g", selection=frozenset({name}))


def instance(name):
    MemberConfig(group="g", selection=frozenset({"t"}), group_instance_id=name)


TAKERS = {
    "member": (member, ConfigError),
    "instance id": (instance, ConfigError),
    "pipeline": (lambda name: parse_topics([name]), PipelineError),
    "sink": (lambda name: KafkaSink("localhost:1", name), PipelineError),
    "broker": (check_name, RefusedError),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * (MAX_NAME + 1), "t\n"])
def test_every_taker_of_a_name_refuses_what_kafka_refuses(taker, name):
    take, refusal = TAKERS[taker]
    assert not is_legal_name(name)
    with pytest.raises(refusal):
        take(name)


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("name", ["a", "...", ".a", "_-.9Z", "x" * MAX_NAME])
def test_every_taker_of_a_name_takes_what_kafka_takes(taker, name):
    assert is_legal_name(name)
    TAKERS[taker][0](name)
