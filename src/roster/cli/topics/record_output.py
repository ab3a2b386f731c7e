"""Records for people (a line each) and for machines (a JSON object each)."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    from confluent_kafka import Message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_TYPES = {1: "CreateTime", 2: "LogAppendTime"}
_MOST_BINARY = 32
"""Bytes of a binary value that a line shows."""


def as_line(record: Message, partition_width: int, offset_width: int) -> str:
    """Partition, offset, time, key, value and headers; binary is hex, control characters are escaped."""
    kind, moment = record.timestamp()
    when = _iso(moment) if kind in _TIMESTAMP_TYPES else "-"
    place = f"{record.partition():>{partition_width}}  {record.offset():>{offset_width}}  {when}"
    parts = [click.style(place, dim=True), shown(record.key()), shown(record.value())]
    headers = _headers(record)
    if headers:
        listed = ", ".join(f"{_escaped(name)}={shown(value)}" for name, value in headers)
        parts.append(click.style(f"[{listed}]", dim=True))
    return "  ".join(parts)


def as_json(record: Message) -> str:
    """Return the record as one line of JSON; what is not UTF-8 is in `key_base64` and `value_base64`."""
    kind, moment = record.timestamp()
    named = _TIMESTAMP_TYPES.get(kind)
    document = {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": moment if named else None,
        "timestamp_type": named,
        **_field("key", record.key()),
        **_field("value", record.value()),
        "headers": [{"name": name, **_field("value", value)} for name, value in _headers(record)],
    }
    return json.dumps(document, ensure_ascii=False)


def _headers(record: Message) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", record.headers() or [])


def shown(data: bytes | None) -> str:
    """Bytes as text if they are UTF-8 without NUL, else as hex, at most 32 of them."""
    if data is None:
        return "null"
    if not data:
        return '""'
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return _escaped(text)
    rest = f"… ({len(data)} bytes)" if len(data) > _MOST_BINARY else ""
    return f"0x{data[:_MOST_BINARY].hex()}{rest}"


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _field(name: str, data: bytes | None) -> dict[str, Any]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode("ascii")}


def _iso(moment: int) -> str:
    """Milliseconds since 1970 as ISO 8601; beyond the year 9999 the number itself."""
    try:
        return (_EPOCH + timedelta(milliseconds=moment)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(moment)
