"""The state of a demo, changed by messages of its processes and snapshots of its groups; no I/O, no clock.

Each group is a `roster.console.GroupHistory`, as in `roster groups watch`; applications and the current step are added.
"""

from dataclasses import dataclass, field, replace

from roster._json import JsonObject
from roster.console.events import Event as GroupEvent
from roster.console.events import EventKind
from roster.console.history import GroupHistory
from roster.console.rows import GroupRows, rows_of
from roster.console.snapshot import Away, Snapshot
from roster.model import GroupPosition

SESSION_TIMEOUT_S = 6.0
"""Seconds after which the broker takes a silent application for dead: the least that Kafka allows by default."""
CAUGHT_UP = 10_000
"""Changelog records that a copy may be behind to count as caught up: a pipeline's default."""
_TOLD_BY_THE_SCRIPT = frozenset(
    {EventKind.COORDINATOR_AWAY, EventKind.COORDINATOR_BACK, EventKind.GONE, EventKind.FOUND, EventKind.EMPTY}
)


@dataclass(slots=True)
class Application:
    """One PySpark application. `status` is starting, ready, running, killed, stopping or stopped.

    copies: by group, the gap in changelog records of each task's standby copy here.
    """

    name: str
    status: str = "starting"
    rows: int = 0
    batches: int = 0
    restored: int = 0
    late: int = 0
    generation: int = -1
    killed_at: float | None = None
    copies: dict[str, dict[int, int]] = field(default_factory=dict)


def client_id(name: str) -> str:
    """Return the client id of an application."""
    return f"demo-{name}"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, seconds after the start."""

    at: float
    text: str


@dataclass(slots=True)
class Group:
    """A consumer group. owners: the application that runs each partition; committed and end: offsets, summed."""

    partitions: int
    history: GroupHistory = field(default_factory=lambda: GroupHistory({client_id(name): name for name in "ABC"}))
    rows: GroupRows = field(default_factory=lambda: GroupRows((), ()))
    owners: dict[int, str] = field(default_factory=dict)
    committed: int = 0
    end: int = 0

    def see(self, look: Snapshot | Away) -> list[GroupEvent]:
        """Add a look; return its events."""
        if isinstance(look, Snapshot):
            # The applications begin at the start of the log, so nothing committed means offset 0.
            known = {
                tp: GroupPosition(position.committed or 0, position.end)
                for tp, position in look.positions.items()
                if position.end is not None
            }
            look = replace(look, positions=known)
            self.committed = sum(position.committed or 0 for position in known.values()) if known else self.committed
            self.end = sum(position.end or 0 for position in known.values()) if known else self.end
        events = self.history.see(look)
        self.rows = rows_of(self.history)
        names = {key: member.mark for key, member in self.history.members.items()}
        self.owners = {tp.partition: names[key] for tp, key in self.history.owners.items() if key in names}
        return events

    @property
    def sharing(self) -> frozenset[str]:
        """Applications that own all partitions between them in a stable group; empty if a partition has no owner."""
        whole = self.history.state == "Stable" and len(self.owners) == self.partitions
        return frozenset(self.owners.values()) if whole else frozenset()


@dataclass(slots=True)
class DemoState:
    """The whole demo; `now` is seconds since its start. copied: tasks have state, with standby copies."""

    groups: dict[str, Group]
    copied: bool = False
    total: int = 0
    """Records of the file, which each group counts."""
    loaded: dict[str, int] = field(default_factory=dict)
    """Records acknowledged, by loader."""
    now: float = 0.0
    broker: str = "starting"
    applications: dict[str, Application] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    waiting: str = ""
    """Condition that the current step waits for."""
    assigned_at: float | None = None
    """When an application was first seen with partitions."""
    shared_since: tuple[frozenset[str], float] = (frozenset(), 0.0)
    """Applications that share all partitions of every group, and the time since."""

    @property
    def goal(self) -> int:
        """Records to count, over all groups."""
        return self.total * len(self.groups)

    @property
    def counted(self) -> int:
        """Records whose results are committed, over all groups."""
        return sum(group.committed for group in self.groups.values())

    @property
    def in_topics(self) -> int:
        """Records the topics hold."""
        return sum(group.end for group in self.groups.values())

    @property
    def lag(self) -> int:
        """Records in the topics not counted yet."""
        return sum(group.history.lag for group in self.groups.values())

    @property
    def share(self) -> float:
        """Counted, of all records of all groups: 0 to 1."""
        return self.counted / self.goal if self.goal else 0.0

    @property
    def is_counted(self) -> bool:
        """True once each group has counted the whole file."""
        return 0 < self.goal <= self.in_topics and not self.lag

    @property
    def since_assignment(self) -> float:
        """Seconds since an application was first seen with partitions; 0 before."""
        return 0.0 if self.assigned_at is None else self.now - self.assigned_at

    def tasks_of(self, name: str) -> list[tuple[str, int]]:
        """Return an application's tasks, as (group, partition)."""
        return [(key, number) for key, group in self.groups.items() for number, o in group.owners.items() if o == name]

    def copies(self, group: str, number: int) -> dict[str, int]:
        """Return the applications that keep a copy of a task, with its gap in changelog records."""
        owner = self.groups[group].owners.get(number)
        kept = {app.name: app.copies.get(group, {}) for app in self.applications.values() if app.name != owner}
        return {name: tasks[number] for name, tasks in kept.items() if number in tasks}

    def is_covered(self) -> bool:
        """Each task has a copy elsewhere that has caught up."""
        return all(
            any(gap <= CAUGHT_UP for gap in self.copies(key, number).values())
            for key, group in self.groups.items()
            for number in range(group.partitions)
        )

    def shared_by(self, names: set[str]) -> bool:
        """Exactly these applications share all partitions, each with some of every group, in stable groups."""
        return self.shared_since[0] == names

    def shared_for(self, names: set[str]) -> float:
        """Seconds for which these have shared without a break."""
        return self.now - self.shared_since[1] if self.shared_by(names) else 0.0

    def happened(self, text: str) -> None:
        """Record an event."""
        self.events.append(Event(self.now, text))

    def hear_group(self, key: str, look: Snapshot | Away) -> None:
        """Process the broker's description of a group, or its absence."""
        if isinstance(look, Away):
            if self.broker == "up":
                self.broker = "away"
                self.happened("the broker does not answer")
        elif self.broker != "up":
            self.happened("the broker answers" if self.broker == "starting" else "the broker answers again")
            self.broker = "up"
        for event in self.groups[key].see(replace(look, at=self.now)):
            # With several groups it is the tasks that matter, and the picture has those.
            if event.kind not in _TOLD_BY_THE_SCRIPT and len(self.groups) == 1:
                self.happened(event.text)
        self._see_owners()

    def _see_owners(self) -> None:
        for app in self.applications.values():
            if not self.tasks_of(app.name):
                continue
            app.status = "running" if app.status in ("starting", "ready") else app.status
            self.assigned_at = self.now if self.assigned_at is None else self.assigned_at
        sharing = {group.sharing for group in self.groups.values()}
        names = sharing.pop() if len(sharing) == 1 else frozenset()
        if names != self.shared_since[0]:
            self.shared_since = (names, self.now)

    def hear_application(self, name: str, message: JsonObject) -> None:
        """Process an application's message: Spark is up, a batch's progress, or the gaps of its copies."""
        app = self.applications[name]
        if app.status == "killed":
            return
        if "spark" in message:
            app.status = "ready" if app.status == "starting" else app.status
            self.happened(f"Spark is up in {name}")
        elif "copies" in message:
            app.copies[message["group"]] = {int(number): gap for number, gap in message["copies"].items()}
        else:
            app.rows += message["rows"]
            app.restored += message["restored"]
            app.late += message["late"]
            app.generation = message["generation"]
            app.batches += 1

    def killed(self, name: str) -> None:
        """Record that an application was killed, and its copies with it."""
        app = self.applications[name]
        app.status, app.killed_at, app.copies = "killed", self.now, {}

    def figures(self) -> str:
        """Say how far it is, for an error."""
        return f"lag {self.lag}, {self.counted} of {self.goal} counted"

    def hint(self) -> str:
        """Conditions waited for, most urgent first."""
        apps = self.applications.values()
        if self.broker == "starting":
            return "the broker is starting"
        if self.broker == "away":
            return "the broker is away: applications keep their partitions and try again"
        for app in apps:
            if app.killed_at is not None and self.tasks_of(app.name):
                left = max(0.0, app.killed_at + SESSION_TIMEOUT_S - self.now)
                return f"the broker waits for the session of {app.name} to end: {left:.0f} s"
        busy = []
        if compiling := [app.name for app in apps if app.status == "running" and not app.batches and self.loaded]:
            busy.append(f"first batch of {in_words(compiling)}: compiling")
        if starting := [app.name for app in apps if app.status == "starting"]:
            busy.append(f"Spark is starting in {in_words(starting)} (10–30 s, more on a busy machine)")
        return "; ".join(busy) or (f"waiting until {self.waiting}" if self.waiting else "")


def in_words(names: list[str]) -> str:
    """Join names: "A", "A and B", "A, B and C"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
