"""The demo's steps in a fake environment: their order, the verdict, and that it fails clearly and never hangs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from roster.cli.demo import engine, sharing
from roster.cli.demo.engine import GroupSeen
from roster.cli.demo.environment import Environment, Expected, Workload
from roster.cli.demo.jobs import KEYS, Job
from roster.cli.demo.oracle import Figures
from roster.cli.demo.processes import ChildMessage
from roster.cli.demo.sharing import SharingDemo
from roster.cli.errors import Failure
from roster.client import AuthorizationError
from roster.console.snapshot import Away, MemberSeen, Snapshot
from roster.model import GroupPosition, TopicPartition

TOTAL = 240


@dataclass
class FakeChild:
    name: str
    exit_code: int | None = None
    expected_to_end: bool = False
    stops_with: int = 0

    paused: bool = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def kill(self) -> None:
        self.expected_to_end = True
        self.exit_code = -9

    def terminate(self) -> None:
        self.expected_to_end = True
        self.exit_code = self.stops_with

    def last_words(self, _lines: int = 15) -> str:
        return f"{self.name} says why"


def workload(total: int, results=None) -> Workload:
    """Take a file with so many records of one key."""
    job: Job = replace(KEYS, topic="t", key=("k",), results=results or (lambda *_: {}))
    return Workload(Path("file.csv"), (job,), lambda: Expected(total, {"demo": {("k",): Figures(total)}}))


@dataclass
class World(Environment):
    """Each look at the group is a step of time: the loader loads a little, the applications count what was loaded."""

    partitions: int = 12
    bootstrap: str = "127.0.0.1:0"
    output: Path = Path("nowhere")
    children: dict[str, FakeChild] = field(default_factory=dict)
    loaded: int = 0
    counted: int = 0
    counts_per_step: int = 10
    broker_starts: int = 0
    trouble: dict[int, str] = field(default_factory=dict)
    said: list = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    refused: bool = False
    looked: bool = False
    workload: Workload = field(init=False)

    def __post_init__(self):
        self.workload = workload(TOTAL, lambda *_: {("k",): Figures(self.counted)})
        self.inbox = self

    def start_broker(self):
        self.broker_starts += 1
        return self._start("broker", [])

    def start_application(self, name, *, held=False):
        self.said.append(ChildMessage(name, {"spark": "up"}))
        if held:
            self.held.add(name)
        return self._start(name, [])

    def let_in(self, name):
        self.held.discard(name)

    def start_loader(self, job, rate):
        assert job.topic == "t"
        assert rate == TOTAL / engine.STREAM_S
        return self._start("loader", [])

    def settle_output(self):
        return self.counted

    def _start(self, name, _command):
        self.children[name] = FakeChild(name)
        return self.children[name]

    def put(self, _seen):
        raise AssertionError("there is no looker")

    def get(self, timeout):
        if self.children["broker"].exit_code is not None:
            return GroupSeen("demo", Away(0.0, "refused"))
        if self.refused:
            return GroupSeen("demo", AuthorizationError("this client may not read the group"))
        if not self.looked:
            self.looked = True
            return GroupSeen("demo", Snapshot(0.0))
        if self.said:
            return self.said.pop(0)
        for at in [at for at in self.trouble if self.counted >= at]:
            self.children[self.trouble.pop(at)].exit_code = 3
        loader = self.children.get("loader")
        if loader is not None and loader.exit_code is None and not loader.paused:
            self.loaded = min(TOTAL, self.loaded + 10)
            loader.exit_code = 0 if self.loaded == TOTAL else None
            if self.loaded % 20:
                return ChildMessage("loader", {"acknowledged": self.loaded})
        alive = [name for name in "ABC" if name in self.children and self.children[name].exit_code is None]
        members = [name for name in alive if name not in self.held]
        if alive:
            self.counted = min(self.loaded, self.counted + self.counts_per_step)
        if len(members) == 3 and self.counted == self.loaded:
            self.said.append(ChildMessage("C", {"rows": 1, "generation": 2, "restored": 0, "late": 0}))
        return self.look({f"demo-{name}": range(at, 12, len(members)) for at, name in enumerate(members)})

    def look(self, owned):
        seen = [
            MemberSeen(name, name, partitions=frozenset(TopicPartition("t", number) for number in numbers))
            for name, numbers in owned.items()
        ]
        positions = {TopicPartition("t", number): GroupPosition(0, 0) for number in range(1, 12)}
        positions[TopicPartition("t", 0)] = GroupPosition(self.counted, self.loaded)
        return GroupSeen("demo", Snapshot(0.0, "Stable", members=tuple(seen), positions=positions))


class Lines:
    def __init__(self, state):
        self.state, self.closed = state, False

    def seen(self, events, now): ...

    def close(self):
        self.closed = True


@pytest.fixture
def tell(monkeypatch):
    class NoWatch:
        def __init__(self, *_, **__): ...
        def __enter__(self): ...
        def __exit__(self, *_): ...

    class NoAdmin(NoWatch):
        def __init__(self, *_, **__): ...
        def __enter__(self):
            return self

        def list_topics(self):
            return {}

        def create_topic(self, name, partitions): ...

    monkeypatch.setattr(engine, "Looker", NoWatch)
    monkeypatch.setattr(sharing, "SHARED_S", 0.05)
    monkeypatch.setattr(engine, "Admin", NoAdmin)
    monkeypatch.setattr(engine, "_TICK_S", 0.001)
    monkeypatch.setattr(sharing, "BROKER_AWAY_S", 0.01)

    def run(world: World, deadline_s: float = 60.0):
        demo = SharingDemo(world, Lines, None, deadline_s)
        world.view = demo.view
        try:
            return demo.run(), [event.text for event in demo.state.events]
        finally:
            assert demo.view.closed

    return run


def test_the_plot_in_order_and_everything_counted_once(tell):
    world = World()
    verdict, events = tell(world)
    assert verdict.holds
    assert str(verdict) == f"{TOTAL} records in, {TOTAL} counted once, 0 lost, 0 double"
    wanted = [
        "roster broker starts on 127.0.0.1:0",
        "PySpark application A starts",
        "PySpark application B starts",
        f"240 records of file.csv at {240 / engine.STREAM_S:,.0f} a second",
        "PySpark application C starts",
        "records are counted, ",
        "PySpark application C joins the group",
        "C joined",
        "rebalance, over between two looks: A 4, B 4, C 4",
        "B is killed with -9",
        "B left (or its session ended)",
        "rebalance, over between two looks: A 6, C 6",
        "the broker is killed with -9",
        "the broker does not answer",
        "the broker starts again",
        "the broker answers again",
        "the loader is done: 2",
        "A and C are asked to stop",
        "the sink covers 240 offsets of 240 in the topic",
        "compared with a plain computation",
    ]
    at = {words: next(n for n, text in enumerate(events) if text.startswith(words)) for words in wanted}
    assert list(at.values()) == sorted(at.values())
    # The stream goes on while Spark starts, in C behind A and B.
    for words in ("rebalance, over between two looks: A 6, B 6", "Spark is up in C"):
        assert events.index(words) < at["PySpark application C joins the group"]
    assert world.broker_starts == 2
    assert {name: child.exit_code for name, child in world.children.items()} == {
        "broker": 0,
        "A": 0,
        "B": -9,
        "C": 0,
        "loader": 0,
    }


def test_a_record_counted_twice_is_a_verdict_that_does_not_hold(tell):
    world = World()
    world.workload = workload(TOTAL, lambda *_: {("k",): Figures(TOTAL + 1)})
    verdict, _ = tell(world)
    assert not verdict.holds
    assert str(verdict) == f"{TOTAL} records in, {TOTAL} counted once, 0 lost, 1 double"


@pytest.mark.parametrize("name", ["A", "broker", "loader"])
def test_a_child_that_ends_by_itself_is_named_with_its_last_words(tell, name, capsys):
    with pytest.raises(Failure, match=rf"^{name} ended by itself \(exit code 3\): {name} says why"):
        tell(World(trouble={50: name}))
    assert f"{name} says why" in capsys.readouterr().err


def test_an_application_that_does_not_leave_cleanly_is_a_failure(tell):
    class Stubborn(World):
        def start_application(self, name, **more):
            child = super().start_application(name, **more)
            child.stops_with = 1
            return child

    with pytest.raises(Failure, match="A stopped with exit code 1: A says why"):
        tell(Stubborn())


def test_records_that_are_never_counted_end_at_the_deadline(tell):
    with pytest.raises(
        Failure, match=r"^--deadline: 0.5 s passed while waiting until records are counted \(lag \d+, 0 of"
    ):
        tell(World(counts_per_step=0), deadline_s=0.5)


def test_an_empty_file_is_said_at_once(tell):
    world = World()
    world.workload = workload(0)
    with pytest.raises(Failure, match=r"file\.csv holds no records"):
        tell(world)


def test_a_cluster_that_refuses_to_tell_of_the_group_is_a_failure(tell):
    with pytest.raises(Failure, match="this client may not read the group"):
        tell(World(refused=True))


def test_three_share_for_a_while_before_one_is_killed(tell, monkeypatch):
    monkeypatch.setattr(sharing, "SHARED_S", 0.3)
    world = World()
    kills = []
    begun = FakeChild.kill

    def kill(child):
        kills.append((child.name, world.shared_for()))
        begun(child)

    monkeypatch.setattr(FakeChild, "kill", kill)
    world.shared_for = lambda: world.view.state.shared_for({"A", "B", "C"})
    tell(world)
    assert kills[0][0] == "B"
    assert kills[0][1] >= 0.3


def test_on_a_slow_machine_the_loader_waits_until_three_share(tell):
    world = World()
    slow = World.get

    def get(timeout):
        if world.loaded < TOTAL // 2:
            world.counted = -world.counts_per_step  # nothing is counted yet
        return slow(world, timeout)

    world.get = get
    verdict, events = tell(world)
    wanted = [
        f"the loader pauses at {1 / 2:.0%}",
        "C joined",
        "the loader goes on",
        "B is killed",
        "the loader is done",
    ]
    positions = [next(at for at, text in enumerate(events) if text.startswith(words)) for words in wanted]
    assert positions == sorted(positions)
    assert verdict.holds
