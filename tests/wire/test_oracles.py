"""Byte for byte against two other implementations of the protocol, kafka-python and kio.

Each reads what we wrote and writes it again; kafka-python's values are compared by name as well.
"""

from __future__ import annotations

import importlib
import io
from pathlib import Path

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import kio.schema.index
import kio.serial
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from roster.wire import API_VERSIONS, encode, request_class, response_class
from roster.wire.consumer.messages import Assignment, Subscription
from roster.wire.frames import encode_request
from roster.wire.messages import ApiVersionsRequest, ApiVersionsResponse, HeartbeatRequest
from tests.examples_tried import examples

MODULES = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)
PEER = {name: value for module in MODULES for name, value in vars(module).items()}
CLASSES = [cls for key in API_VERSIONS for cls in (request_class(key), response_class(key))]
EACH = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
NOT_IN_KAFKA_PYTHON = {"ConsumerGroupDescribeRequest", "ConsumerGroupDescribeResponse"}
IN_BOTH = [cls for cls in CLASSES if cls.__name__ not in NOT_IN_KAFKA_PYTHON]


def same_values(ours, theirs, version):
    for name, field in ours.__table__.fields:
        if version in field.versions and not name.endswith("authorized_operations"):  # theirs are sets of bits
            assert_same(getattr(ours, name), getattr(theirs, name), field, version, name)


def assert_same(ours, theirs, field, version, name):
    if field.kind == "uuid":
        assert ours == (bytes(16) if theirs is None else theirs.bytes), name
    elif ours is None or theirs is None:
        assert ours is theirs, name
    elif field.kind == "struct":
        same_values(ours, theirs, version)
    elif field.kind == "array":
        assert len(ours) == len(theirs), name
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other, field.element, version, name)
    else:
        assert ours == theirs, name


@pytest.mark.parametrize("cls", IN_BOTH, ids=lambda cls: cls.__name__)
@settings(max_examples=examples(25, quick=3))
@given(st.data())
def test_kafka_python_reads_the_same_values_and_writes_the_same_bytes(messages_of, cls, data):
    version = data.draw(st.sampled_from([v for v in cls.__table__.versions if v <= PEER[cls.__name__].max_version]))
    message = data.draw(messages_of(cls, version))
    if cls is ApiVersionsResponse:
        message.error_code = 0  # with an error, kafka-python takes any version for v0
    encoded = encode(message, version)
    theirs = PEER[cls.__name__].decode(encoded, version=version)
    same_values(message, theirs, version)
    theirs._header = None  # decoding leaves it unset, encoding asks for it
    assert bytes(theirs.encode(version=version)) == encoded


@pytest.mark.parametrize(
    ("cls", "peer"), [(Subscription, ConsumerProtocolSubscription), (Assignment, ConsumerProtocolAssignment)]
)
@given(st.data())
def test_the_consumer_protocol_is_kafka_pythons(messages_of, cls, peer, data):
    version = data.draw(st.integers(0, 3))
    message = data.draw(messages_of(cls, version))
    encoded = version.to_bytes(2, "big") + encode(message, version)
    theirs = peer.decode(encoded)
    same_values(message, theirs, version)
    assert bytes(theirs.encode(version=version)) == encoded


@given(st.data())
def test_request_frames_are_kafka_pythons(messages_of, data):
    cls = data.draw(st.sampled_from([HeartbeatRequest, ApiVersionsRequest]))
    version = data.draw(st.sampled_from([v for v in cls.__table__.versions if v <= PEER[cls.__name__].max_version]))
    message = data.draw(messages_of(cls, version))
    correlation_id, client_id = data.draw(st.integers(0, 2**31 - 1)), data.draw(st.text("abc"))
    values = {name: getattr(message, name) for name, field in cls.__table__.fields if version in field.versions}
    theirs = PEER[cls.__name__](version=version, **values)
    theirs.with_header(correlation_id, client_id)
    ours = encode_request(message, version, correlation_id, client_id)
    assert ours == bytes(theirs.encode(header=True, framed=True))


def kio_module(cls, version):
    """The name of the module with kio's class, or None for a version it has not got."""
    kind = "request" if cls.__name__.endswith("Request") else "response"
    folder = Path(kio.schema.__path__[0]) / kio.schema.index.api_key_map[cls.__table__.key]
    name = f"kio.schema.{folder.name}.v{version}.{kind}"
    return name if (folder / f"v{version}" / f"{kind}.py").exists() else None


@EACH
@settings(max_examples=examples(25, quick=3))
@given(st.data())
def test_kio_reads_all_and_writes_the_same_bytes(messages_of, cls, data):
    version = data.draw(st.sampled_from([v for v in cls.__table__.versions if kio_module(cls, v)]))
    message = data.draw(messages_of(cls, version, small=True))
    encoded = encode(message, version)
    entity = getattr(importlib.import_module(kio_module(cls, version)), cls.__name__)
    theirs, size = kio.serial.entity_reader(entity)(encoded, 0)
    assert size == len(encoded)
    again = io.BytesIO()
    kio.serial.entity_writer(entity)(again, theirs)
    assert again.getvalue() == encoded
