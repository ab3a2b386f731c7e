"""The demo's plot on a stage where nothing is real: its order, its verdict, and that it fails clearly, never hangs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from roster.cli.demo import story as story_module
from roster.cli.demo.oracle import Figures
from roster.cli.demo.processes import Said
from roster.cli.demo.scene import BrokerAway, GroupSeen
from roster.cli.demo.stage import Material, Stage
from roster.cli.demo.story import Story
from roster.cli.errors import Failure

TOTAL = 240


@dataclass
class FakeChild:
    name: str
    exit_code: int | None = None
    expected_to_end: bool = False
    stops_with: int = 0

    def kill(self) -> None:
        self.expected_to_end = True
        self.exit_code = -9

    def terminate(self) -> None:
        self.expected_to_end = True
        self.exit_code = self.stops_with

    def last_words(self, _lines: int = 15) -> str:
        return f"{self.name} says why"


@dataclass
class World(Stage):
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
    material: Material = field(init=False)

    def __post_init__(self):
        everything = {("k",): Figures(TOTAL)}
        output = lambda _: {("k",): Figures(self.counted)}  # noqa: E731
        self.material = Material(Path("file.csv"), "t", ("k",), "keys", (), lambda: everything, output)
        self.inbox = self

    def start_broker(self):
        self.broker_starts += 1
        return self._start("broker", [])

    def start_application(self, name):
        return self._start(name, [])

    def start_loader(self, rate):
        assert rate == TOTAL / story_module.STREAM_S
        return self._start("loader", [])

    def settle_output(self):
        return self.counted

    def _start(self, name, _command):
        self.children[name] = FakeChild(name)
        return self.children[name]

    def get(self, timeout):
        if self.children["broker"].exit_code is not None:
            return BrokerAway()
        for at in [at for at in self.trouble if self.counted >= at]:
            self.children[self.trouble.pop(at)].exit_code = 3
        loader = self.children.get("loader")
        if loader is not None and loader.exit_code is None:
            self.loaded = min(TOTAL, self.loaded + 10)
            loader.exit_code = 0 if self.loaded == TOTAL else None
            if self.loaded % 20:
                return Said("loader", {"acknowledged": self.loaded})
        alive = [name for name in "ABC" if name in self.children and self.children[name].exit_code is None]
        if alive:
            self.counted = min(self.loaded, self.counted + self.counts_per_step)
        owned = {f"demo-{name}": tuple(range(at, 12, len(alive))) for at, name in enumerate(alive)}
        return GroupSeen("Stable", owned, {0: self.counted}, {0: self.loaded, 1: 0})


class Lines:
    def __init__(self):
        self.closed = False

    def show(self, scene):
        self.scene = scene

    def close(self, scene):
        self.closed = True


@pytest.fixture
def tell(monkeypatch):
    class NoWatch:
        def __init__(self, *_): ...
        def __enter__(self): ...
        def __exit__(self, *_): ...

    class NoAdmin(NoWatch):
        def __init__(self, *_, **__): ...
        def __enter__(self):
            return self

        def list_topics(self):
            return {}

        def create_topic(self, name, partitions): ...

    monkeypatch.setattr(story_module, "Watch", NoWatch)
    monkeypatch.setattr(story_module, "Admin", NoAdmin)
    monkeypatch.setattr(story_module, "_TICK_S", 0.001)
    monkeypatch.setattr(story_module, "BROKER_AWAY_S", 0.01)

    def run(world: World, deadline_s: float = 60.0):
        view = Lines()
        try:
            return Story(world, view, None, deadline_s).tell(), [event.text for event in view.scene.events]
        finally:
            assert view.closed

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
        "partitions: A 0 2 4 6 8 10, B 1 3 5 7 9 11",
        "240 records of file.csv at 3 a second",
        "PySpark application C starts",
        "partitions: A 0 3 6 9, B 1 4 7 10, C 2 5 8 11",
        "B is killed with -9",
        "partitions: A 0 2 4 6 8 10, C 1 3 5 7 9 11",
        "the broker is killed with -9",
        "the broker does not answer",
        "the broker starts again",
        "the broker answers again",
        "the loader is done: 2",
        "A and C are asked to stop",
        "the sink covers 240 offsets of 240 in the topic",
        "compared with a plain computation",
    ]
    positions = [next(at for at, text in enumerate(events) if text.startswith(words)) for words in wanted]
    assert positions == sorted(positions)
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
    world.material = Material(
        world.material.path, "t", ("k",), "keys", (), world.material.expected, lambda _: {("k",): Figures(TOTAL + 1)}
    )
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
        def start_application(self, name):
            child = super().start_application(name)
            child.stops_with = 1
            return child

    with pytest.raises(Failure, match="A stopped with exit code 1: A says why"):
        tell(Stubborn())


def test_records_that_are_never_counted_end_at_the_deadline(tell):
    with pytest.raises(Failure, match=r"^--deadline: 0.5 s passed while waiting until 40% are counted \(lag 240, 0 of"):
        tell(World(counts_per_step=0), deadline_s=0.5)


def test_an_empty_file_is_said_at_once(tell):
    world = World()
    world.material = Material(Path("empty.csv"), "t", ("k",), "keys", (), dict, lambda _: {})
    with pytest.raises(Failure, match=r"empty\.csv holds no records"):
        tell(world)
