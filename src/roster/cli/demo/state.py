"""The demo's state, changed by messages of its processes and snapshots of the group; no I/O, no clock.

The group is a `roster.console.GroupHistory`, as in `roster groups watch`; the applications and the step under
way come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roster.console import Away, EventKind, GroupHistory, GroupRows, Position, Snapshot, rows_of
from roster.model import TopicPartition

SESSION_TIMEOUT_S = 8.0
"""Seconds after which the broker takes a silent application for dead; 6 s is the least that Kafka allows by default."""
_TOLD_BY_THE_SCRIPT = frozenset(
    {EventKind.COORDINATOR_AWAY, EventKind.COORDINATOR_BACK, EventKind.GONE, EventKind.FOUND, EventKind.EMPTY}
)


@dataclass(slots=True)
class Application:
    """One PySpark application. `status` is starting, ready, running, killed, stopping or stopped."""

    name: str
    status: str = "starting"
    owned: tuple[int, ...] = ()
    rows: int = 0
    batches: int = 0
    generation: int = -1
    killed_at: float | None = None

    @property
    def client_id(self) -> str:
        """Its client id at the broker."""
        return client_id(self.name)

    def session_left(self, now: float) -> float:
        """Seconds until the broker can know of its death, at most."""
        return 0.0 if self.killed_at is None else max(0.0, self.killed_at + SESSION_TIMEOUT_S - now)


def client_id(name: str) -> str:
    """Return the client id of an application."""
    return f"demo-{name}"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, seconds after the start."""

    at: float
    text: str


@dataclass(slots=True)
class DemoState:
    """The whole demo; `now` is seconds since its start."""

    partitions: int
    total: int = 0
    loaded: int = 0
    now: float = 0.0
    broker: str = "starting"
    generation: int = -1
    applications: dict[str, Application] = field(default_factory=dict)
    history: GroupHistory = field(default_factory=lambda: GroupHistory({client_id(name): name for name in "ABC"}))
    rows: GroupRows = field(default_factory=lambda: GroupRows((), ()))
    events: list[Event] = field(default_factory=list)
    waiting: str = ""
    """Condition that the current step waits for."""
    counted: int = 0
    """Records whose results are committed."""
    in_topic: int = 0
    """Records the topic holds."""
    assigned_at: float | None = None
    """When an application was first seen with partitions."""
    shared_since: tuple[frozenset[str], float] = (frozenset(), 0.0)
    """Members that own all partitions between them in a stable group, and the time since."""

    @property
    def share(self) -> float:
        """Counted, of the whole file: 0 to 1."""
        return self.counted / self.total if self.total else 0.0

    @property
    def lag(self) -> int:
        """Records in the topic not counted yet."""
        return self.history.lag

    @property
    def since_assignment(self) -> float:
        """Seconds since an application was first seen with partitions; 0 before."""
        return 0.0 if self.assigned_at is None else self.now - self.assigned_at

    def shared_by(self, names: set[str]) -> bool:
        """Exactly these applications share all partitions, each with some, in a stable group."""
        return self.shared_since[0] == names

    def shared_for(self, names: set[str]) -> float:
        """Seconds for which these have shared without a break."""
        return self.now - self.shared_since[1] if self.shared_by(names) else 0.0

    def happened(self, text: str) -> None:
        """Note an event."""
        self.events.append(Event(self.now, text))

    def hear_group(self, seen: Snapshot | Away) -> None:
        """Take in what the broker said, or that it said nothing."""
        if isinstance(seen, Away):
            if self.broker == "up":
                self.broker = "away"
                self.happened("the broker does not answer")
        elif self.broker != "up":
            self.happened("the broker answers" if self.broker == "starting" else "the broker answers again")
            self.broker = "up"
        # The applications begin at the start of the log, so that nothing committed means offset 0.
        look = replace(seen, at=self.now)
        if isinstance(look, Snapshot):
            look = replace(look, positions={tp: Position(at.committed or 0, at.end) for tp, at in _known(look).items()})
        for event in self.history.see(look):
            if event.kind not in _TOLD_BY_THE_SCRIPT:
                self.happened(event.text)
        self.rows = rows_of(self.history)
        if isinstance(look, Snapshot):
            self._see_owners(look)

    def _see_owners(self, look: Snapshot) -> None:
        owners = self.history.owners
        for app in self.applications.values():
            keys = {key for key, member in self.history.members.items() if member.seen.client_id == app.client_id}
            app.owned = tuple(sorted(tp.partition for tp, key in owners.items() if key in keys))
            if app.owned and app.status in ("starting", "ready"):
                app.status = "running"
            if app.owned and self.assigned_at is None:
                self.assigned_at = self.now
        if positions := look.positions:
            self.counted = sum(position.committed or 0 for position in positions.values())
            self.in_topic = sum(position.end or 0 for position in positions.values())
        whole = look.state == "Stable" and sum(len(app.owned) for app in self.applications.values()) == self.partitions
        sharing = frozenset(app.name for app in self.applications.values() if app.owned) if whole else frozenset()
        if sharing != self.shared_since[0]:
            self.shared_since = (sharing, self.now)

    def hear_application(self, name: str, message: Mapping[str, Any]) -> None:
        """Take in what an application said: that its Spark is up, or what a batch did."""
        app = self.applications[name]
        if "spark" in message:
            if app.status == "starting":
                app.status = "ready"
                self.happened(f"Spark is up in {name}")
            return
        app.rows += message.get("rows", 0)
        app.batches += 1
        app.generation = message.get("generation", app.generation)
        self.generation = max(self.generation, app.generation)

    def hear_loader(self, message: Mapping[str, Any]) -> None:
        """Take in how far the loader is."""
        self.loaded = message.get("acknowledged", self.loaded)

    def figures(self) -> str:
        """Say how far it is, for an error."""
        return f"lag {self.lag}, {self.counted} of {self.total} counted"

    def hint(self) -> str:
        """Conditions waited for, most urgent first."""
        apps = self.applications.values()
        dead = [app for app in apps if app.killed_at is not None and self._has_partitions(app)]
        if self.broker == "starting":
            return "the broker is starting"
        if self.broker == "away":
            return "the broker is away: applications keep their partitions and try again"
        if dead:
            left = dead[0].session_left(self.now)
            return f"the broker waits for the session of {dead[0].name} to end: {left:.0f} s"
        busy = []
        if compiling := [app.name for app in apps if app.status == "running" and not app.batches and self.loaded]:
            busy.append(f"first batch of {_names(compiling)}: compiling")
        if starting := [app.name for app in apps if app.status == "starting"]:
            busy.append(f"Spark is starting in {_names(starting)} (20–30 s, more on a busy machine)")
        return "; ".join(busy) or (f"waiting until {self.waiting}" if self.waiting else "")

    def _has_partitions(self, app: Application) -> bool:
        """Return True if a dead application still owns partitions."""
        keys = set(self.history.owners.values())
        members = (self.history.member_of(key) for key in keys)
        return any(member is not None and member.seen.client_id == app.client_id for member in members)


def _names(names: list[str]) -> str:
    """Join names: "A", "A and B", "A, B and C"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _known(look: Snapshot) -> dict[TopicPartition, Position]:
    return {tp: position for tp, position in look.positions.items() if position.end is not None}
