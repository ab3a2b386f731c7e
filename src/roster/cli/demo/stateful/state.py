"""The stateful demo's state, changed by messages of its processes and looks at its groups; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roster.cli.demo.state import Event, client_id
from roster.console import Away, Snapshot

SESSION_TIMEOUT_S = 6.0
"""Seconds after which the broker takes a silent application for dead: the least that Kafka allows by default."""
CAUGHT_UP = 10_000
"""Changelog records that a copy may be behind to count as caught up: a pipeline's default."""


@dataclass(slots=True)
class StatefulApplication:
    """One PySpark application. `status` is starting, running, killed, stopping or stopped.

    copies: by group, how many changelog records the copy of each task here is behind.
    """

    name: str
    status: str = "starting"
    rows: int = 0
    batches: int = 0
    restored: int = 0
    late: int = 0
    killed_at: float | None = None
    copies: dict[str, dict[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Task:
    """A task: who runs it ("" while it is handed over), and its input, committed and in all."""

    owner: str = ""
    committed: int = 0
    end: int = 0

    @property
    def lag(self) -> int:
        """Records that are not committed."""
        return max(0, self.end - self.committed)


@dataclass(slots=True)
class StatefulState:
    """The whole demo; `now` is seconds since its start. groups: the tasks of each group by partition."""

    groups: dict[str, dict[int, Task]]
    total: int = 0
    loaded: dict[str, int] = field(default_factory=dict)
    now: float = 0.0
    broker: str = "starting"
    applications: dict[str, StatefulApplication] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    waiting: str = ""

    @property
    def counted(self) -> int:
        """Records whose results are committed, over all groups."""
        return sum(task.committed for tasks in self.groups.values() for task in tasks.values())

    @property
    def lag(self) -> int:
        """Records in the topics that are not counted."""
        return sum(task.lag for tasks in self.groups.values() for task in tasks.values())

    @property
    def share(self) -> float:
        """Counted, of all the records of all groups: 0 to 1."""
        return self.counted / (self.total * len(self.groups)) if self.total else 0.0

    @property
    def is_counted(self) -> bool:
        """True once each group has counted the whole file."""
        return self.total > 0 and not self.lag and self.counted == self.total * len(self.groups)

    def tasks_of(self, name: str) -> list[tuple[str, int]]:
        """Return the tasks that an application runs, as (group, partition)."""
        return [
            (group, number) for group, tasks in self.groups.items() for number, t in tasks.items() if t.owner == name
        ]

    def copies(self, group: str, number: int) -> dict[str, int]:
        """Return the applications that keep a copy of a task, with the changelog records that it is behind."""
        owner = self.groups[group][number].owner
        return {
            app.name: app.copies[group][number]
            for app in self.applications.values()
            if number in app.copies.get(group, ()) and app.name != owner
        }

    def shared_by(self, names: set[str]) -> bool:
        """Each task of each group runs in one of these applications, and each application has some of each group."""
        return all({task.owner for task in tasks.values()} == names for tasks in self.groups.values())

    def is_covered(self) -> bool:
        """Each task has a copy elsewhere that has caught up."""
        return all(
            any(gap <= CAUGHT_UP for gap in self.copies(group, number).values())
            for group, tasks in self.groups.items()
            for number in tasks
        )

    def happened(self, text: str) -> None:
        """Note an event."""
        self.events.append(Event(self.now, text))

    def figures(self) -> str:
        """Say how far it is, for an error."""
        return f"lag {self.lag}, {self.counted} of {self.total * len(self.groups)} counted"

    def hear_group(self, group: str, seen: Snapshot | Away) -> None:
        """Take in what the broker said of a group, or that it said nothing."""
        if isinstance(seen, Away):
            self.broker = "away" if self.broker == "up" else self.broker
            return
        self.broker = "up"
        names = {client_id(name): name for name in self.applications}
        owners = {tp: names.get(member.client_id, "") for member in seen.members for tp in member.partitions}
        tasks = self.groups[group]
        for tp, position in seen.positions.items():
            tasks[tp.partition] = Task(owners.get(tp, ""), position.committed or 0, position.end or 0)

    def hear_application(self, name: str, message: Mapping[str, Any]) -> None:
        """Take in what an application said: that its Spark is up, what a batch did, or how far its copies are."""
        app = self.applications[name]
        if app.status == "killed":
            return
        if "spark" in message:
            app.status = "running"
            self.happened(f"Spark is up in {name}")
        elif "copies" in message:
            app.copies[message["group"]] = {int(number): gap for number, gap in message["copies"].items()}
        else:
            app.rows += message["rows"]
            app.restored += message["restored"]
            app.late += message["late"]
            app.batches += 1

    def killed(self, name: str) -> None:
        """Note that an application was killed: its copies are gone with it."""
        app = self.applications[name]
        app.status, app.killed_at, app.copies = "killed", self.now, {}

    def hint(self) -> str:
        """Return what is waited for, most urgent first."""
        dead = [app for app in self.applications.values() if app.killed_at is not None and self.tasks_of(app.name)]
        if dead:
            left = max(0.0, (dead[0].killed_at or 0.0) + SESSION_TIMEOUT_S - self.now)
            return f"the broker waits for the session of {dead[0].name} to end: {left:.0f} s"
        starting = [app.name for app in self.applications.values() if app.status == "starting"]
        if starting:
            return f"Spark is starting in {' and '.join(starting)} (10–30 s, more on a busy machine)"
        return f"waiting until {self.waiting}" if self.waiting else ""
