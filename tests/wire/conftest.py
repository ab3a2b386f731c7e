"""Messages made from their tables: random ones for Hypothesis, and one filled to the last field."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import strategies as st

from roster.wire.codec.fields import FIXED

_TEXT = st.text(st.characters(codec="utf-8"), max_size=4) | st.integers(100, 300).map("x".__mul__)
_BYTES = st.binary(max_size=5) | st.integers(100, 300).map(b"x".__mul__)
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


@cache
def _messages_of(cls, version, *, small=False):
    present = {
        name: _values(field, version, small) for name, field in cls.__table__.fields if version in field.versions
    }
    return st.builds(cls, **present)


def _values(field, version, small):
    match field.kind:
        case "bool":
            values = st.booleans()
        case "uuid":
            values = st.binary(min_size=16, max_size=16)
        case "string":
            values = _TEXT
        case "bytes" | "records":
            values = _BYTES
        case "struct":
            values = _messages_of(field.struct, version, small=small)
        case "array":
            values = st.lists(_values(field.element, version, small), max_size=3)
        case _ if small:
            values = st.integers(0, 50)
        case kind:
            bits = _BITS[kind]
            values = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.none() | values if version in field.nullable else values


def _filled(cls, version, *, nested=2):
    """Every field present and off its default, every list with two elements, or `nested` ones inside another list."""
    return _filled_struct(cls, version, 2, nested)


def _filled_struct(cls, version, elements, nested):
    present = [(name, field) for name, field in cls.__table__.fields if version in field.versions]
    return cls(**{name: _filling(field, version, elements, nested) for name, field in present})


def _filling(field, version, elements, nested):
    match field.kind:
        case "bool":
            return not field.default
        case "uuid":
            return bytes(range(1, 17))
        case "string":
            return "text"
        case "bytes" | "records":
            return b"bytes"
        case "struct":
            return _filled_struct(field.struct, version, elements, nested)
        case "array":
            return [_filling(field.element, version, nested, nested) for _ in range(elements)]
        case kind:
            assert kind in FIXED
            return 7


@pytest.fixture(scope="session")
def messages_of():
    """The strategy of a class and version: fields of that version take any value, others stay at their default.

    `small` keeps whole numbers within 0..50, for a peer that takes some for error codes, others for times.
    """
    return _messages_of


@pytest.fixture(scope="session")
def filled():
    return _filled
