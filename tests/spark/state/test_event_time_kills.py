"""Tasks behind a repartition topic that die in a batch, move, and are restored: the same rows are late, or none."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state.lmdb_store import LmdbStore
from roster.state.source_times import SOURCES_KEY
from roster.state.store import Position
from tests.examples_tried import examples
from tests.spark.state.test_event_time_of_sources import GRACE, WINDOWS, World, logs_of, plain_windows, seconds

if TYPE_CHECKING:
    from pathlib import Path

Entries = list[tuple[bytes, bytes]]


class MortalWorld(World):
    """A world whose receiving tasks die before their transaction ends, and move to where they have no store."""

    path: Path
    forgets = frozenset[bytes]()
    """Keys that a restored store lacks."""

    def receive(self, partition: int, most: int) -> None:
        before = self.read[partition], len(self.results), self.late, self.entries(partition)
        super().receive(partition, most)
        chance = self.rng.random()
        if chance < 0.2:
            self.read[partition], count, self.late, entries = before
            del self.results[count:]
            self.restore(partition, entries)
        elif chance < 0.4:
            self.restore(partition, [(key, of) for key, of in self.entries(partition) if key not in self.forgets])

    def entries(self, partition: int) -> Entries:
        return [(key, value) for key, value in self.stores[partition].scan() if value is not None]

    def restore(self, partition: int, entries: Entries) -> None:
        self.stores[partition].close()
        number = next(self.numbers)
        self.stores[partition] = LmdbStore(self.path / f"restored {number}")
        self.stores[partition].commit([key for key, _ in entries], [value for _, value in entries], Position(number))


def problem(rng: random.Random, path: Any, delay: int, forgets: frozenset[bytes] = frozenset()) -> str:
    """How a run's windows and late rows differ from the plain ones, "" if they do not."""
    logs = logs_of(rng, delay)
    wanted, late = plain_windows(logs)
    world = MortalWorld(rng, logs, WINDOWS, path)
    world.path, world.forgets = path, forgets
    world.run()
    found = [((each["k"], seconds(each["window_start"])), each["n"]) for each in world.results if each["k"] != "end"]
    twice = len(found) != len(dict(found))
    return "" if (dict(found), world.late, twice) == (wanted, late, False) else f"{found} {wanted} {world.late} {late}"


@given(seed=st.integers(0, 1 << 32), delay=st.sampled_from([0, GRACE, 30]))
@settings(max_examples=examples(40), deadline=None)
def test_which_rows_are_late_does_not_depend_on_deaths_and_moves(tmp_path_factory: Any, seed: int, delay: int) -> None:
    assert problem(random.Random(seed), tmp_path_factory.mktemp("s"), delay) == ""


def test_times_of_sources_that_a_move_forgets_are_found(tmp_path_factory: Any) -> None:
    seeds = (random.Random(seed) for seed in range(60))
    assert any(problem(rng, tmp_path_factory.mktemp("s"), 30, frozenset([SOURCES_KEY])) for rng in seeds)
