"""Messages through the codec: construction, round trips in every version, and refusals that name the field."""

from __future__ import annotations

import pytest

from roster.wire import API_VERSIONS, WireError, decode, encode, request_class, response_class
from roster.wire.messages import JoinGroupRequest

CLASSES = [cls for key in API_VERSIONS for cls in (request_class(key), response_class(key))]
VERSIONED = [pytest.param(cls, v, id=f"{cls.__name__}-{v}") for cls in CLASSES for v in cls.__table__.versions]


@pytest.mark.parametrize(("cls", "version"), VERSIONED)
def test_the_default_message_survives_every_version(cls, version):
    assert decode(cls, version, encode(cls(), version)) == cls()


def test_a_field_absent_from_the_version_must_be_at_its_default():
    message = JoinGroupRequest(group_instance_id="i")
    assert decode(JoinGroupRequest, 5, encode(message, 5)) == message
    with pytest.raises(WireError, match="group_instance_id"):
        encode(message, 4)
