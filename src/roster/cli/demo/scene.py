"""What the demo knows at one moment, and how it changes with what it hears; no I/O, no clock of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

SPEED_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """What the broker says about the group; partitions are numbers of the demo's one topic."""

    state: str
    owned: dict[str, tuple[int, ...]]
    """By client id."""
    committed: dict[int, int]
    ends: dict[int, int]


@dataclass(frozen=True, slots=True)
class BrokerAway:
    """The broker did not answer."""


@dataclass(slots=True)
class Application:
    """One PySpark application. `status` is starting, running, killed, stopping or stopped."""

    name: str
    status: str = "starting"
    owned: tuple[int, ...] = ()
    rows: int = 0
    batches: int = 0
    generation: int = -1

    @property
    def client_id(self) -> str:
        """By which the broker knows it."""
        return f"demo-{self.name}"

    @property
    def is_member(self) -> bool:
        """Alive and owning something."""
        return self.status == "running" and bool(self.owned)


@dataclass(slots=True)
class Event:
    """Something that happened, seconds after the start."""

    at: float
    text: str


@dataclass(slots=True)
class Scene:
    """The whole demo; `now` is seconds since its start."""

    partitions: int
    total: int = 0
    loaded: int = 0
    now: float = 0.0
    broker: str = "starting"
    group_state: str = "-"
    generation: int = -1
    rebalances: int = 0
    applications: dict[str, Application] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    _counted_at: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def counted(self) -> int:
        """Records whose results are committed."""
        return sum(self.committed.values())

    @property
    def in_topic(self) -> int:
        """Records the topic holds."""
        return sum(self.ends.values())

    @property
    def share(self) -> float:
        """Counted, of the whole file: 0 to 1."""
        return self.counted / self.total if self.total else 0.0

    @property
    def lag(self) -> int:
        """Records in the topic not counted yet."""
        return sum(self.lag_of(partition) for partition in self.ends)

    def lag_of(self, partition: int) -> int:
        """Records of one partition not counted yet."""
        return max(0, self.ends.get(partition, 0) - self.committed.get(partition, 0))

    @property
    def speed(self) -> float:
        """Records counted a second, over the last few."""
        if len(self._counted_at) < 2:
            return 0.0
        (then, before), (now, after) = self._counted_at[0], self._counted_at[-1]
        return (after - before) / max(now - then, 1e-9)

    def owner_of(self, partition: int) -> Application | None:
        """The application the group gave a partition to."""
        return next((app for app in self.applications.values() if partition in app.owned), None)

    def shared_by(self, names: set[str]) -> bool:
        """Exactly these applications share all partitions, each with some, in a stable group."""
        owners = {app.name for app in self.applications.values() if app.owned}
        owned = sum(len(app.owned) for app in self.applications.values())
        return self.group_state == "Stable" and owners == names and owned == self.partitions

    def happened(self, text: str) -> None:
        """Note an event."""
        self.events.append(Event(self.now, text))

    def hear_group(self, seen: GroupSeen | BrokerAway) -> None:
        """Take in what the broker said, or that it said nothing."""
        if isinstance(seen, BrokerAway):
            if self.broker == "up":
                self.broker = "away"
                self.happened("the broker does not answer")
            return
        if self.broker != "up":
            self.happened("the broker answers" if self.broker == "starting" else "the broker answers again")
            self.broker = "up"
        before = {name: app.owned for name, app in self.applications.items()}
        for app in self.applications.values():
            app.owned = seen.owned.get(app.client_id, ())
            if app.owned and app.status == "starting":
                app.status = "running"
        settled = seen.state == "Stable"
        if settled and before != {name: app.owned for name, app in self.applications.items()}:
            self.rebalances += 1
            shares = ", ".join(f"{a.name} {_numbers(a.owned)}" for a in self.applications.values() if a.owned)
            self.happened(f"partitions: {shares or 'nobody has any'}")
        self.group_state = seen.state
        self.ends.update(seen.ends)
        self.committed.update(seen.committed)
        self._counted_at.append((self.now, self.counted))
        while self.now - self._counted_at[0][0] > SPEED_WINDOW_S:
            self._counted_at.popleft()

    def hear_application(self, name: str, message: dict[str, Any]) -> None:
        """Take in what an application said about a batch."""
        app = self.applications[name]
        app.rows += message.get("rows", 0)
        app.batches += 1
        app.generation = message.get("generation", app.generation)
        self.generation = max(self.generation, app.generation)

    def hear_loader(self, message: dict[str, Any]) -> None:
        """Take in how far the loader is."""
        self.loaded = message.get("acknowledged", self.loaded)


def _numbers(partitions: tuple[int, ...]) -> str:
    """1, 2, 3, 7 as 1-3 7."""
    runs: list[list[int]] = []
    for number in sorted(partitions):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
