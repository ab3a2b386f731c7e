"""Records for people (a line each) and for machines (a JSON object each)."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from roster.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_MOST_BINARY = 32
"""Bytes of a binary value that a line shows."""
_ESCAPED_AT_ONCE = 1 << 16
"""Characters: the text of each is an object of its own until they are joined."""


class Record(NamedTuple):
    """A record. `timestamp` is in ms since the epoch, None where the producer gave none."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def place(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)


def records_of(batch: pa.RecordBatch) -> list[Record]:
    """Return the rows of Roster's reader as records."""
    stamps = [at // 1000 for at in batch.column("timestamp").cast("int64").to_pylist()]
    columns = [
        *(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")),
        [at if at >= 0 else None for at in stamps],
        [_TIMESTAMP_TYPES[kind] for kind in batch.column("timestampType").to_pylist()],
        *(batch.column(name).to_pylist() for name in ("key", "value")),
        [[(h["key"], h["value"]) for h in each or ()] for each in batch.column("headers").to_pylist()],
    ]
    return [Record(*row) for row in zip(*columns, strict=True)]


def as_line(record: Record, partition_width: int, offset_width: int) -> str:
    """Partition, offset, time, key, value and headers; binary is hex, control characters are escaped."""
    when = "-" if record.timestamp is None else _iso(record.timestamp)
    place = f"{record.partition:>{partition_width}}  {record.offset:>{offset_width}}  {when}"
    parts = [click.style(place, dim=True), shown(record.key), shown(record.value)]
    if record.headers:
        listed = ", ".join(f"{_escaped(name)}={shown(value)}" for name, value in record.headers)
        parts.append(click.style(f"[{listed}]", dim=True))
    return "  ".join(parts)


def as_json(record: Record) -> str:
    """Return the record as one line of JSON; what is not UTF-8 is in `key_base64` and `value_base64`."""
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": None if record.timestamp is None else record.timestamp_type,
        **_field("key", record.key),
        **_field("value", record.value),
        "headers": [{"name": name, **_field("value", value)} for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False)


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
    if text.isprintable():
        return text
    parts = (text[at : at + _ESCAPED_AT_ONCE] for at in range(0, len(text), _ESCAPED_AT_ONCE))
    return "".join("".join(c if c.isprintable() else ascii(c)[1:-1] for c in part) for part in parts)


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
