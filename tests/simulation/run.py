"""One seed, and many."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

from tests.simulation.actions import perform
from tests.simulation.coverage import Coverage
from tests.simulation.errors import BrokenInvariant
from tests.simulation.network import NetworkFaults
from tests.simulation.scenario import Action, Scenario, draw_scenario
from tests.simulation.world import LAST_RESTART_MS, World

PROBED = 3
"""Of so many seeds one ends with a calm join."""
CRASHED = "nothing raises"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to; `broken` is None if every invariant held."""

    scenario: Scenario
    broken: BrokenInvariant | None
    events: int
    virtual_ms: int
    rounds: int
    commits: int
    refused: int
    counts: Counter[str]
    coverage: Coverage
    lines: list[str]
    digest: str


def run_seed(seed: int, *, traced: bool = False) -> Outcome:
    """Run one seed."""
    return run_scenario(draw_scenario(seed), traced=traced)


def run_scenario(scenario: Scenario, *, traced: bool = False) -> Outcome:
    """Run a scenario up to rest, or to the first invariant that breaks."""
    world = World(scenario, traced=traced)
    broken: BrokenInvariant | None = None
    try:
        _run(world)
    except BrokenInvariant as error:
        broken = error
    except Exception as error:
        broken = BrokenInvariant(CRASHED, f"{type(error).__name__}: {error}")
        broken.__cause__ = error
    if broken is not None:
        world.note(f"BROKEN {broken}")
    return Outcome(
        scenario,
        broken,
        world.scheduler.events,
        world.scheduler.now,
        world.books.rounds,
        world.books.acknowledged_commits,
        world.books.refused_commits,
        world.counts,
        world.coverage,
        world.history.lines,
        world.history.digest if traced else "",
    )


def _run(world: World) -> None:
    scenario = world.scenario
    world.boot()
    for _ in range(scenario.members):
        world.scheduler.after(world.chance.choice((0, 0, 100, 1_000)), world.start_member)
    for action in scenario.actions:
        world.scheduler.at(action.time, perform, world, action)
    world.scheduler.run(scenario.ends_at)
    world.stop_faults()
    world.scheduler.run(max(world.scheduler.now + LAST_RESTART_MS, world.network.last_arrival))
    world.settle("a group is at rest once faults stop")
    world.stay_idle()
    if scenario.seed % PROBED == 0:
        world.join_calmly()
        world.stay_idle()
    world.end_transactions()
    world.nothing_is_left()


# -- shrinking ---------------------------------------------------------------------------------------------------------


def shrink(scenario: Scenario, sentence: str, *, attempts: int = 120) -> Scenario:
    """Leave out actions and faults as long as the same invariant breaks."""

    def breaks(candidate: Scenario) -> bool:
        nonlocal attempts
        attempts -= 1
        broken = run_scenario(candidate).broken
        return broken is not None and broken.sentence == sentence

    for candidate in _simpler_settings(scenario):
        if attempts > 0 and breaks(candidate(scenario)):
            scenario = candidate(scenario)
    size = max(len(scenario.actions) // 2, 1)
    while attempts > 0:
        shorter = next((s for s in _without(scenario, size) if attempts > 0 and breaks(s)), None)
        if shorter is not None:
            scenario = shorter
        elif size == 1:
            break
        else:
            size //= 2
    return scenario


def _simpler_settings(scenario: Scenario) -> list[Callable[[Scenario], Scenario]]:
    calm = NetworkFaults(delay=scenario.network.delay)
    changes: list[Callable[[Scenario], Scenario]] = [lambda s: replace(s, network=calm)]
    changes += [_without_fault(name) for name in ("slow", "drop", "duplicate", "reset")]
    changes += [lambda s: replace(s, slow_release=0.0), lambda s: replace(s, sync_ms=2), lambda s: replace(s, old=0.0)]
    changes += [lambda s: replace(s, members=max(s.members - 1, 1))] * 2
    return changes


def _without_fault(name: str) -> Callable[[Scenario], Scenario]:
    return lambda scenario: replace(scenario, network=replace(scenario.network, **{name: 0.0}))  # type: ignore[arg-type]


def _without(scenario: Scenario, size: int) -> Iterable[Scenario]:
    actions = scenario.actions
    for start in range(0, len(actions), size):
        kept = actions[:start] + actions[start + size :]
        yield replace(scenario, actions=kept)


def kept_actions(scenario: Scenario, kept: Collection[int]) -> Scenario:
    """Return a scenario with only some of its actions, by their places."""
    actions: list[Action] = [action for place, action in enumerate(scenario.actions) if place in kept]
    return replace(scenario, actions=actions)


# -- many seeds --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Summary:
    """Totals of many runs; `first` is the first one in which an invariant broke."""

    seeds: int = 0
    events: int = 0
    virtual_ms: int = 0
    rounds: int = 0
    commits: int = 0
    refused: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    coverage: Coverage = field(default_factory=Coverage)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add one run."""
        self.seeds += 1
        self.events += outcome.events
        self.virtual_ms += outcome.virtual_ms
        self.rounds += outcome.rounds
        self.commits += outcome.commits
        self.refused += outcome.refused
        self.counts.update(outcome.counts)
        self.coverage.add(outcome.coverage)
        if outcome.broken is not None:
            self.failures.append(outcome)


CHUNK = 20
"""Seeds that a process is given at once."""


def run_many(
    seeds: Iterable[int],
    *,
    most_failures: int = 1,
    jobs: int = 1,
    progress: Callable[[Summary], None] | None = None,
) -> Summary:
    """Run seeds in order until so many have failed, in `jobs` processes.

    More than one process changes neither a run nor its result: outcomes are added in the order of the seeds.
    """
    summary = Summary()
    start = time.perf_counter()
    with ExitStack() as stack:
        if jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(jobs, get_context("spawn")))
            stack.callback(pool.shutdown, cancel_futures=True)
            outcomes: Iterator[Outcome] = pool.map(run_seed, seeds, chunksize=CHUNK)
        else:
            outcomes = map(run_seed, seeds)
        for outcome in outcomes:
            summary.add(outcome)
            summary.seconds = time.perf_counter() - start
            if progress is not None:
                progress(summary)
            if len(summary.failures) >= most_failures:
                break
    return summary
