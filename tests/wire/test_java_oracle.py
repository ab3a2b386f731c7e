"""Byte for byte and value by value against Kafka's own Java classes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.wire import API_VERSIONS, encode, request_class, response_class
from roster.wire.compression import Compression
from roster.wire.consumer.messages import Assignment, Subscription
from roster.wire.consumer_groups import VALUES
from roster.wire.messages import TxnOffsetCommitRequest
from roster.wire.offsets_topic import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from roster.wire.records import Record, build_batch, read_batch, read_header, verify_crc
from tests.examples_tried import examples
from tests.real.realparts import jvm

pytestmark = pytest.mark.real

NEWEST = "4.4.0"
"""The release whose messages these are: it has the versions of all before."""
MESSAGES = "org.apache.kafka.common.message."
RECORDS = "org.apache.kafka.coordinator.group.generated."
JAVA = {
    cls: f"{MESSAGES}{cls.__name__}Data" for key in API_VERSIONS for cls in (request_class(key), response_class(key))
}
JAVA |= {cls: f"{MESSAGES}ConsumerProtocol{cls.__name__}" for cls in (Subscription, Assignment)}
JAVA |= {
    cls: RECORDS + cls.__name__
    for cls in (
        OffsetCommitKey,
        OffsetCommitValue,
        GroupMetadataKey,
        GroupMetadataValue,
        *filter(None, VALUES.values()),
    )
}


@pytest.fixture(scope="module")
def java(tmp_path_factory):
    """Ask Kafka's class of that name to read bytes; it returns what it writes and its values."""
    program = Path(__file__).parent / "java" / "WireOracle.java"
    log = tmp_path_factory.mktemp("java-oracle") / "stderr.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROSTER_KAFKA_VERSION", NEWEST)
        with jvm.oracle(program, jvm.jars(), log) as ask:
            yield ask


RENAMED = {"generation_id": "generationIdOrMemberEpoch"}
"""Of TxnOffsetCommit; other requests have the generation of a classic group only."""


def named(cls, name):
    return (RENAMED if cls is TxnOffsetCommitRequest else {}).get(name) or camel(name)


def camel(name):
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def assert_same_values(ours, theirs, version):
    expected = set()
    for name, field in ours.__table__.fields:
        value = getattr(ours, name)
        if version in field.versions and not (version in field.tagged and value == getattr(type(ours)(), name)):
            expected.add(named(type(ours), name))
            assert_same(value, theirs[named(type(ours), name)], field, version, name)
    assert set(theirs) == expected


def assert_same(ours, theirs, field, version, name):
    if ours is None:
        assert theirs is None, name
    elif field.kind == "struct":
        assert_same_values(ours, theirs, version)
    elif field.kind == "array":
        assert len(ours) == len(theirs), name
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other, field.element, version, name)
    elif field.kind == "uuid":
        assert base64.urlsafe_b64encode(ours).decode().rstrip("=") == theirs, name
    elif field.kind == "bytes":
        assert base64.b64encode(ours).decode() == theirs, name
    elif field.kind != "records":  # Java leaves their contents out
        assert ours == theirs, name


@pytest.mark.parametrize("cls", JAVA, ids=lambda cls: cls.__name__)
@settings(max_examples=examples(40))
@given(st.data())
def test_java_reads_the_same_values_and_writes_the_same_bytes(messages_of, java, cls, data):
    version = data.draw(st.sampled_from(list(cls.__table__.versions)))
    message = data.draw(messages_of(cls, version))
    encoded = encode(message, version)
    written, values = java(JAVA[cls], version, encoded)
    assert_same_values(message, values, version)
    assert written == encoded


def text(data):
    return None if data is None else data.hex()


@pytest.mark.parametrize("compression", Compression, ids=lambda kind: kind.name)
@pytest.mark.parametrize("size", [0, 10, 200_000])
def test_java_reads_our_batches_and_we_read_javas(java, compression, size):
    values = [None, b"", bytes(size), bytes(n * n % 251 for n in range(size))]
    written = [Record(70 + n, 1_000 + n, b"key", value, (("h", b"x"),)) for n, value in enumerate(values)]
    theirs, read = java("records", 0, build_batch(written, base_offset=70, compression=compression))
    assert read == [[r.offset, r.timestamp, text(r.key), text(r.value)] for r in written]
    assert verify_crc(theirs)
    assert read_header(theirs).compression is compression
    assert read_batch(theirs) == written
