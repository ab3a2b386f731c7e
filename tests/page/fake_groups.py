"""Groups that a test invents, in the place of a cluster, behind the real server and its page."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence

import pytest

from roster.client import GroupDescription, MemberDescription, UnreachableError
from roster.http.access import OPEN, Access
from roster.http.server import HttpServer
from roster.metrics.groups import GroupReader, GroupsSeen, GroupState
from roster.metrics.positions import GroupPositions
from roster.model import Address, GroupPosition, TopicPartition
from roster.page import watch as watch_module
from roster.page.pages import page_answers
from roster.page.watch import GroupsWatch


class FakeGroups:
    """What looks find. `error` is why they fail; `looks` counts them by the group they are about (None: all)."""

    def __init__(self) -> None:
        self.seen = GroupsSeen({}, {}, {})
        self.error, self.broken = "", False
        self.looks: list[str | None] = []
        self._lock = threading.Lock()

    def put(
        self,
        name: str,
        owned: Mapping[str, Sequence[TopicPartition]],
        lags: Mapping[TopicPartition, int | None],
        *,
        state: str = "Stable",
        kind: str = "classic",
    ) -> None:
        """Set a group: partitions by client id, and lags; each partition has committed 1000 records."""
        members = [
            MemberDescription(f"{client}-id", None, client, "/10.0.0.1", list(has)) for client, has in owned.items()
        ]
        at = {tp: GroupPosition(1000, None if lag is None else 1000 + lag, 0) for tp, lag in lags.items()}
        ages = {tp: lag / 10 for tp, lag in lags.items() if lag is not None}
        with self._lock:
            self.seen.states[name] = GroupState(kind, state, len(members))
            self.seen.described[name] = GroupDescription(
                name, state, "consumer", "range", members, "broker-1:9092", kind
            )
            self.seen.positions[name] = GroupPositions(at, ages)

    def remove(self, name: str) -> None:
        with self._lock:
            for each in self.seen:
                each.pop(name)  # type: ignore[attr-defined]

    def read(self, only: str | None = None) -> GroupsSeen:
        """In the place of GroupReader.look."""
        self.looks.append(only)
        if self.broken:
            raise ValueError("what nobody thought of")
        if self.error:
            raise UnreachableError(self.error)
        with self._lock:
            return GroupsSeen(*({k: v for k, v in each.items() if only in (None, k)} for each in self.seen))


@contextlib.contextmanager
def page_of(
    groups: FakeGroups,
    monkeypatch: pytest.MonkeyPatch,
    access: Access = OPEN,
    names: re.Pattern[str] | str = re.compile(".*"),
) -> Iterator[tuple[GroupsWatch, HttpServer]]:
    """Serve the page of these groups."""
    monkeypatch.setattr(watch_module, "FOCUS_INTERVAL", 0.1)
    monkeypatch.setattr(GroupReader, "read", lambda _self, only=None: groups.read(only))
    with contextlib.closing(GroupsWatch("127.0.0.1:1", names, interval=0.1, share=1.0)) as watch:
        pages, streams = page_answers(watch)
        with contextlib.closing(HttpServer(Address("127.0.0.1", 0), pages, access, streams=streams)) as server:
            yield watch, server


def numbered(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
