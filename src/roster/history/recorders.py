"""What a recorder asks a cluster for: the ends of the logs each minute, and by polling the groups themselves."""

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pyarrow as pa

from roster._clock import wall_ms
from roster.client import Admin, ClientError
from roster.history.derived import ENDS
from roster.history.folder import ENDS_SCHEMA, POLLED, HistoryFolder
from roster.history.tables import COMMITS, GROUPS, SCHEMA
from roster.model import TopicPartition
from roster.wire.consumer import CLASSIC, CONSUMER, PROTOCOL_TYPE
from roster.wire.consumer.messages import Assignment, by_topic, encode_assignment
from roster.wire.offsets_topic import GroupMetadataValue, encode_value

log = logging.getLogger("roster.history")

MINUTE_MS = 60_000
_SHOWN = ("", CLASSIC, CONSUMER)
_POLLED_SCHEMA = SCHEMA.remove(SCHEMA.get_field_index("day"))
_SEEN = ("Stable", "Empty")
"""States in which a coordinator shows every assignment."""


def record_ends(admin: Admin, folder: HistoryFolder) -> None:
    """Write the ends of all topics at the start of this minute, unless another recorder has."""
    now = wall_ms()
    counts, ids = admin.list_topics(), admin.topic_ids()
    partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
    rows = [
        {**tp._asdict(), "begin": begins[tp], "end": ends[tp], "at": now * 1000, "topic_id": ids.get(tp.topic)}
        for tp in partitions
    ]
    folder.put(ENDS, now - now % MINUTE_MS, pa.Table.from_pylist(rows, ENDS_SCHEMA))


class Poller:
    """Records changes of groups and of their committed offsets, where `__consumer_offsets` may not be read."""

    def __init__(self, admin: Admin, folder: HistoryFolder) -> None:
        self._admin, self._folder = admin, folder
        self._last: dict[object, object] = {}
        self._name = f"-{uuid.uuid4().hex[:8]}"

    def poll(self) -> None:
        """Look at all classic and consumer groups once, and write what has changed since the last look."""
        now = wall_ms()
        rows: list[dict[str, object]] = []
        current: dict[object, object] = {}
        for listed in self._admin.list_groups():
            if listed.group_type in _SHOWN:
                try:
                    rows += self._rows(listed.group_id, current)
                except ClientError as error:
                    log.debug("group %s: %s", listed.group_id, error)
        if rows:
            common = {"at": now * 1000, "log_offset": now}
            table = pa.Table.from_pylist([row | common for row in rows], schema=_POLLED_SCHEMA)
            self._folder.put(POLLED, now, table, self._name)
        self._last |= current

    def _rows(self, group: str, current: dict[object, object]) -> list[dict[str, object]]:
        """Return a row for each thing that is not as it was last; `seen` gets how it is now."""
        rows: list[dict[str, object]] = []
        for tp, committed in self._admin.group_offsets(group, stable=False).items():
            current[group, tp] = committed.offset
            if self._last.get((group, tp)) != committed.offset:
                rows.append({"table": COMMITS, "group": group, **tp._asdict(), **asdict(committed)})
        value = self._group(group)
        if value is not None:
            current[group] = value
            if self._last.get(group) != value:
                rows.append({"table": GROUPS, "group": group, "value": value})
        return rows

    def _group(self, group: str) -> bytes | None:
        """Return the group as in a record of `__consumer_offsets`, without a generation; None during a rebalance."""
        described = self._admin.describe_group(group)
        if described.state not in _SEEN:
            return None
        members = [
            GroupMetadataValue.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.host,
                subscription=member.metadata,
                assignment=encode_assignment(
                    Assignment(
                        assigned_partitions=by_topic(sorted(member.assignment)), user_data=member.user_data or None
                    )
                ),
            )
            for member in sorted(described.members, key=lambda listed: listed.member_id)
        ]
        number = -1 if described.epoch is None else described.epoch
        kind = described.protocol_type or PROTOCOL_TYPE
        return encode_value(
            GroupMetadataValue(protocol_type=kind, generation=number, protocol=described.protocol, members=members)
        )


@contextlib.contextmanager
def regularly(function: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Call a function at once and then every so many seconds, in a thread, until the end of the block.

    A ClientError or OSError is a warning, and the next call comes as usual.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                function()
            except (ClientError, OSError) as error:
                log.warning("%s: %s", name, error)
            stop.wait(seconds)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
