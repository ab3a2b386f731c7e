"""A thread that asks the broker about the demo's group and topic again and again, and puts the answers in the inbox."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from roster.cli.demo.scene import BrokerAway, GroupSeen
from roster.client import Admin, ClientError, UnknownGroupError
from roster.model import TopicPartition

if TYPE_CHECKING:
    import queue
    from types import TracebackType

EVERY_S = 0.5
_TIMEOUT_MS = 3_000


class Watch:
    """Watches while it is entered."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int, inbox: queue.Queue[Any]) -> None:
        self._bootstrap, self._group, self._inbox = bootstrap, group, inbox
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2 * _TIMEOUT_MS / 1000)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with Admin(self._bootstrap, client_id="roster-demo", request_timeout_ms=_TIMEOUT_MS) as admin:
                    while not self._stop.is_set():
                        self._inbox.put(self._look(admin))
                        self._stop.wait(EVERY_S)
            except ClientError:
                self._inbox.put(BrokerAway())
                self._stop.wait(EVERY_S)

    def _look(self, admin: Admin) -> GroupSeen:
        # Offsets first: records that come in between only make the lag look larger, never zero too early.
        committed = {tp.partition: at.offset for tp, at in admin.group_offsets(self._group).items()}
        ends = {tp.partition: end for tp, end in admin.end_offsets(self._partitions).items()}
        try:
            group = admin.describe_group(self._group)
        except UnknownGroupError:
            return GroupSeen("-", {}, committed, ends)
        owned = {
            member.client_id: tuple(sorted(partition.partition for partition in member.assignment))
            for member in group.members
        }
        return GroupSeen(group.state, owned, committed, ends)
