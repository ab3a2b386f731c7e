"""Records of a topic, without joining a group or committing anything, and their form for people and for machines."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, NamedTuple

import click

from roster.cli.errors import Failure
from roster.cli.output import utc
from roster.console.text import escaped
from roster.model import TopicPartition, parse_addresses
from roster.model.options import INT64_MAX
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import FetchError, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from roster.cli.options import Target

UNREACHABLE_PATIENCE_S = 10.0
"""How long an error of the connection may last before a read that has an end gives up."""
PATIENCE_S = 60.0
"""Give up if records must exist but none arrive for this long."""
_WAIT_MS = 500
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_MOST_BINARY = 32
"""Bytes of a binary value that a line shows."""


def read_records(
    target: Target, ranges: Mapping[TopicPartition, tuple[int, int | None]], *, is_committed: bool
) -> Iterator[list[Record]]:
    """Yield records of ranges of offsets as they come: in order within a partition, partitions mixed.

    The end of a range is excluded; one without an end is read on for ever. is_committed: leave out records of open and
    aborted transactions.

    Raises Failure if the cluster refused to be read, or could not be reached while records were still to come.
    """
    has_end, reported = any(end is not None for _, end in ranges.values()), ""

    def on_silence(silence: float, problem: str, waiting: list[str]) -> None:
        nonlocal reported
        if has_end and silence > (UNREACHABLE_PATIENCE_S if problem else PATIENCE_S):
            raise Failure(f"nothing could be read for {silence:.0f} s: {problem or f'waiting for {waiting[0]}'}")
        if not has_end and problem and problem != reported:
            reported = problem
            click.echo(f"roster: waiting: {problem}", err=True)

    try:
        for batch in read_ranges(
            parse_addresses(target.bootstrap),
            target.client_id,
            [(*tp, start, INT64_MAX if end is None else end) for tp, (start, end) in ranges.items()],
            Settings(is_committed=is_committed, fail_on_data_loss=False, max_wait_ms=_WAIT_MS),
            headers=True,
            security=target.security,
            on_silence=on_silence,
        ):
            reported = ""
            yield records_of(batch)
    except FetchError as error:
        bad = error.unreadable
        hint = "" if bad is None else f"; to go on behind it: -p {bad.partition} --from {bad.last_offset + 1}"
        raise Failure(f"cannot read: {error}{hint}") from error


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


def records_of(batch: pa.RecordBatch) -> list[Record]:
    """Return the rows of Roster's reader as records."""
    stamps = [timestamp // 1000 for timestamp in batch.column("timestamp").cast("int64").fill_null(-1).to_pylist()]
    columns = [
        *(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")),
        [timestamp if timestamp >= 0 else None for timestamp in stamps],
        [_TIMESTAMP_TYPES[kind] for kind in batch.column("timestampType").to_pylist()],
        *(batch.column(name).to_pylist() for name in ("key", "value")),
        [[(h["key"], h["value"]) for h in headers or ()] for headers in batch.column("headers").to_pylist()],
    ]
    return [Record(*row) for row in zip(*columns, strict=True)]


def as_line(record: Record, partition_width: int, offset_width: int) -> str:
    """Partition, offset, time, key, value and headers; binary is hex, control characters are escaped."""
    when = "-" if record.timestamp is None else utc(record.timestamp)
    place = f"{record.partition:>{partition_width}}  {record.offset:>{offset_width}}  {when}"
    parts = [click.style(place, dim=True), shown(record.key), shown(record.value)]
    if record.headers:
        listed = ", ".join(f"{escaped(name)}={shown(value)}" for name, value in record.headers)
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
        return escaped(text)
    rest = f"… ({len(data)} bytes)" if len(data) > _MOST_BINARY else ""
    return f"0x{data[:_MOST_BINARY].hex()}{rest}"


def _field(name: str, data: bytes | None) -> dict[str, object]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode("ascii")}
