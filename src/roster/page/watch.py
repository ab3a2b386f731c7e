"""Looks at the groups of a cluster, on threads of their own; what they find is kept, and told to whoever listens.

All groups are looked at every few seconds, and one whose page is open more often. However many listen, the cluster is
asked once.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from roster.client import Admin, ClientError, GroupDescription, live_tasks, runs_tasks
from roster.console.document import Document, GroupDocument, row_of_group
from roster.console.history import GroupHistory
from roster.console.looking import snapshot_of
from roster.console.rebalances import RebalanceTimeline
from roster.console.snapshot import Away, Snapshot
from roster.http.pages import Feed
from roster.metrics.groups import GroupReader, GroupsSeen, GroupState
from roster.metrics.positions import GroupPositions, PositionReader
from roster.metrics.record_times import RecordTimes
from roster.model import TopicPartition
from roster.security import PLAINTEXT, Security

log = logging.getLogger(__name__)

FOCUS_INTERVAL = 2.0
"""Seconds between looks at a group whose page is open."""
_RAREST = 15.0
"""Seconds between two looks that take less, whatever part of its time looking may take."""
_FORGOTTEN_AFTER = 30.0
"""Seconds until a page that no browser has open is forgotten."""
_TIMED = 64
"""Partitions of a group whose next record is read for its age: those with the largest lag."""
_MOST_OPENED = 200
"""Open pages from which on no group is opened that the cluster does not list."""
_TRENDS, _EVENTS = 40, 200
_REQUEST_TIMEOUT_MS = 5_000


class WatchedGroup:
    """What is known of one group, and its page while a browser has it open."""

    def __init__(self, zero: float, lock: threading.RLock, own_events: Sequence[tuple[float, str]] = ()) -> None:
        """own_events: time and text of what a member in this process reports, newest last."""
        self.history, self.timeline = GroupHistory(events=_EVENTS), RebalanceTimeline()
        self.row: Document = {}
        self.feed: Feed | None = None
        self.opened = 0.0
        self._zero, self._lock = zero, lock
        self._own_events, self._own_until = own_events, float("-inf")
        self._document = GroupDocument(zero)
        self._ages: Mapping[TopicPartition, float] = {}
        self._more: Document = {}

    def see(self, look: Snapshot | Away, kind: str = "", positions: GroupPositions | None = None) -> None:
        """Add a look to the history, and tell it."""
        own = [event for event in list(self._own_events) if event[0] > self._own_until]
        self._own_until = own[-1][0] if own else self._own_until
        self.timeline.see(self.history, self.history.see(look, own))
        if not isinstance(look, Away):
            self._ages = {} if positions is None else positions.seconds
        self.row = {"kind": kind or self.row.get("kind", ""), **row_of_group(self.history, self._ages)}
        if self.feed is not None:
            self.feed.publish(self._updated())

    def take(
        self, state: GroupState | None, described: GroupDescription | None, positions: GroupPositions | None
    ) -> None:
        """Add what a look found; what could not be asked stays as it was. state: None if the group does not exist."""
        if state is not None and described is None and self.history.members:
            self.row = {**self.row, "state": state.state, "trouble": "it cannot be described"}
            return
        tasks = live_tasks(described) if described is not None and runs_tasks(described) else ()
        names = {} if described is None else {member.member_id: member for member in described.members}
        self._more = {
            "tasks": [
                {"task": str(task.task), "owner": task.owner, "standbys": list(task.standbys.items())}
                for task in tasks
                if task.stateful or task.owner not in names
            ]
        }
        trouble = "its offsets cannot be read" if positions is None and state is not None else ""
        known = self.history.positions if positions is None and state is not None else {}
        look = snapshot_of(described, known if positions is None else positions.positions, trouble)
        if state is not None and described is None:
            look = replace(look, state=state.state, trouble=f"members of {state.kind} groups are not shown")
        self.see(look, "" if state is None else state.kind, positions)

    def open(self) -> Feed:
        """Return the feed of the group's page."""
        self.opened = time.monotonic()
        if self.feed is None:
            self._document = GroupDocument(self._zero)
            self._updated()
            self.feed = Feed(lambda: self._document.state, self._lock)
        return self.feed

    @property
    def document(self) -> Document:
        """The group's page."""
        with self._lock:
            return self._document.state

    def partition(self, tp: TopicPartition) -> Document:
        """Return the life of a partition."""
        with self._lock:
            return self._document.partition(self.history, tp)

    def _updated(self) -> Document:
        return self._document.update(
            self.history, self.timeline, self._ages, {"kind": self.row.get("kind", ""), **self._more}
        )


class GroupsWatch:
    """Watches groups until closed.

    groups: a name, or the pattern that whole names fit. interval: seconds between two looks. share: of its time that
    looking may take; then looks are rarer, down to one in 15 s. told: what a member of the one group tells of itself,
    and when (`time.monotonic`), newest last.
    """

    def __init__(
        self,
        bootstrap: str,
        groups: re.Pattern[str] | str,
        *,
        client_id: str = "roster-console",
        security: Security = PLAINTEXT,
        interval: float = 5.0,
        share: float = 0.5,
        own_events: Sequence[tuple[float, str]] = (),
    ) -> None:
        self._bootstrap, self._client_id, self._security, self._wanted = bootstrap, client_id, security, groups
        self._share = share
        self._lock, self._stopped = threading.RLock(), threading.Event()
        self._zero = time.time() - time.monotonic()
        only = groups if isinstance(groups, str) else None
        self._groups = {} if only is None else {only: WatchedGroup(self._zero, self._lock, own_events)}
        self._published_rows: dict[str, Document] = {}
        self._head: Document = {"bootstrap": bootstrap, "interval": interval, "only": only, "at": None, "error": ""}
        self.overview = Feed(lambda: self.groups, self._lock)
        """All groups: `head`, `groups` by name, `trends` by name; a change has the groups that differ, and `gone`."""
        runs = [(self._look_at_all, interval)]
        if only is None:
            runs.append((self._look_at_opened, FOCUS_INTERVAL))
        self._threads = [threading.Thread(target=self._run, args=run, name="roster-watch", daemon=True) for run in runs]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(1.0)

    @property
    def groups(self) -> Document:
        """The list of groups."""
        with self._lock:
            known = {name: group for name, group in self._groups.items() if group.row}
            trends = {name: group.history.lag_total.values[-_TRENDS:] for name, group in known.items()}
            return {"head": self._head, "groups": {name: group.row for name, group in known.items()}, "trends": trends}

    def open(self, name: str) -> WatchedGroup | None:
        """Return a group, to be looked at more often while its feed is listened to; None if it is not to be watched."""
        wanted = self._wanted
        if name != wanted if isinstance(wanted, str) else not wanted.fullmatch(name):
            return None
        with self._lock:
            group = self._groups.get(name)
            if group is None:
                if sum(other.feed is not None for other in self._groups.values()) >= _MOST_OPENED:
                    return None
                group = self._groups[name] = WatchedGroup(self._zero, self._lock)
            group.open()
        return group

    def _run(self, look: Callable[[GroupReader], bool], interval: float) -> None:
        with Admin(
            self._bootstrap, client_id=self._client_id, request_timeout_ms=_REQUEST_TIMEOUT_MS, security=self._security
        ) as admin:
            times = RecordTimes(self._bootstrap, self._client_id, self._security)
            reader = GroupReader(admin, PositionReader(admin, times, _TIMED), self._wanted, owned=True)
            is_first = True
            while not self._stopped.is_set():
                began, has_worked = time.monotonic(), False
                try:
                    has_worked = look(reader)
                except Exception:
                    log.exception("a look failed")
                spent = time.monotonic() - began
                # What waits for connections, or for a broker that is down, is not work.
                least = min(spent / self._share - spent, max(_RAREST, spent)) if has_worked and not is_first else 0.0
                self._stopped.wait(max(interval - spent, least))
                is_first = False

    def _look_at_all(self, reader: GroupReader) -> bool:
        try:
            groups, error = reader.read(), ""
        except ClientError as failure:
            log.info("the groups cannot be looked up: %s", failure)
            groups, error = None, str(failure)
        with self._lock:
            now = time.monotonic()
            self._head = {**self._head, "at": round((self._zero + now) * 1000), "error": error}
            if groups is not None:
                self._take(groups)
            for watched in self._groups.values() if groups is None else ():
                if watched.row and not self._has_own_looks(watched):
                    watched.see(Away(now, error))
            before, self._published_rows = (
                self._published_rows,
                {name: group.row for name, group in self._groups.items() if group.row},
            )
            changed = {name: row for name, row in self._published_rows.items() if before.get(name) != row}
            gone = list(before.keys() - self._published_rows.keys())
            self.overview.publish({"head": self._head, "groups": changed, "gone": gone})
        return groups is not None

    def _take(self, groups: GroupsSeen) -> None:
        for name, state in groups.states.items():
            watched = self._groups.setdefault(name, WatchedGroup(self._zero, self._lock))
            if not self._has_own_looks(watched):
                watched.take(state, groups.described.get(name), groups.positions.get(name))
        for name in self._groups.keys() - groups.states.keys():
            if name == self._wanted:
                self._groups[name].take(None, None, None)
            elif not self._has_own_looks(self._groups[name]):
                del self._groups[name]

    def _has_own_looks(self, watched: WatchedGroup) -> bool:
        """Return True for a group that is looked at by itself, while its page is open."""
        return watched.feed is not None and not isinstance(self._wanted, str)

    def _look_at_opened(self, reader: GroupReader) -> bool:
        groups = None
        for name, watched in [(name, group) for name, group in self._groups.copy().items() if group.feed is not None]:
            try:
                groups, error = reader.read(only=name), ""
            except ClientError as failure:
                groups, error = None, str(failure)
            with self._lock:
                if groups is None:
                    watched.see(Away(time.monotonic(), error))
                else:
                    watched.take(groups.states.get(name), groups.described.get(name), groups.positions.get(name))
                if watched.feed and not watched.feed.listeners and time.monotonic() - watched.opened > _FORGOTTEN_AFTER:
                    watched.feed = None
        return groups is not None
