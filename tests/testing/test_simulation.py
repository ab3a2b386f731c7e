"""The simulator: groups under faults hold the invariants, a seed is one run bit for bit, and a failure is readable."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from random import Random

import pytest
from click.testing import CliRunner

from roster.coordinator.states import GroupState
from roster.model import SetTimer
from tests.examples_tried import examples
from tests.simulation import BrokenInvariant, errors, invariants, run_many, run_scenario, run_seed, shrink
from tests.simulation.__main__ import simulate
from tests.simulation.actions import ACTIONS
from tests.simulation.clock import Scheduler, Timers
from tests.simulation.disk import Disk, Durable, record_batch
from tests.simulation.network import Connection, Direction, Network, NetworkFaults
from tests.simulation.run import kept_actions
from tests.simulation.scenario import MISBEHAVIOURS, TRANSACTION_WEIGHTS, WEIGHTS, draw_scenario
from tests.simulation.scripted import SCRIPTS

FIRST = int(os.environ.get("ROSTER_SIMULATION_FIRST", "0"))
SEEDS = "ROSTER_SIMULATION_SEEDS"
"""Environment variable: the number of seeds to run, from ROSTER_SIMULATION_FIRST on."""


def test_every_invariant_holds_in_every_seed() -> None:
    summary = run_many(range(FIRST, FIRST + examples(24, SEEDS)))
    assert not summary.failures, f"seed {summary.failures[0].scenario.seed}: {summary.failures[0].broken}"
    assert summary.events > 100 * summary.seeds
    assert summary.commits > summary.seeds


def test_every_kind_of_action_is_drawn_and_known() -> None:
    assert WEIGHTS.keys() | TRANSACTION_WEIGHTS.keys() | {"rolling upgrade"} == ACTIONS.keys()
    assert set(MISBEHAVIOURS) == SCRIPTS.keys()
    drawn = Counter(action.kind for seed in range(400) for action in draw_scenario(seed).actions)
    assert drawn.keys() == ACTIONS.keys()


@pytest.mark.process
@pytest.mark.gate
def test_a_seed_is_the_same_run_under_any_hash_seed() -> None:
    program = "from tests.simulation import run_seed; print([run_seed(s, traced=True).digest for s in (3, 12, 20)])"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": seed},
            text=True,
        )
        for seed in ("0", "4711")
    ]
    first, second = (process.communicate()[0] for process in runs)
    assert len(first.split(",")) == 3
    assert first == second


def test_a_trace_changes_nothing() -> None:
    quiet, traced = run_seed(5), run_seed(5, traced=True)
    assert (quiet.events, quiet.virtual_ms, quiet.counts) == (traced.events, traced.virtual_ms, traced.counts)
    assert not quiet.lines
    assert traced.digest != run_seed(6, traced=True).digest


@pytest.mark.gate
def test_transactions_are_committed_and_aborted_in_both_versions_of_the_protocol() -> None:
    drawn = [draw_scenario(seed) for seed in range(60)]
    for version in (1, 2):
        outcomes = [run_scenario(scenario) for scenario in drawn if scenario.transactions == version][:2]
        assert sum(outcome.counts["transaction committed"] for outcome in outcomes) > 10
        assert all(outcome.broken is None for outcome in outcomes)
        assert all(outcome.coverage.transactions["Ongoing", "EndTxn"] for outcome in outcomes)


def test_tasks_with_state_are_restored_and_move_once_their_copies_have_caught_up() -> None:
    drawn = [scenario for seed in range(200) if (scenario := draw_scenario(seed)).tasks is not None]
    assert {scenario.tasks.standbys for scenario in drawn if scenario.tasks is not None} == {0, 1, 2}
    outcomes = [run_scenario(scenario) for scenario in drawn[:3]]
    assert all(outcome.broken is None for outcome in outcomes)
    assert sum(outcome.counts["copy caught up"] for outcome in outcomes) > 0
    assert all(draw_scenario(scenario.seed, tasks=False).tasks is None for scenario in drawn)


@pytest.mark.parametrize(
    ("seed", "actions"),
    [
        pytest.param(502432, (0, 1, 2), id="a batch sent again to an old leader that has lost it is not acknowledged"),
        pytest.param(501029, (1, 2, 3, 4), id="the same with four members"),
        pytest.param(500351, (0, 1, 3, 5, 7), id="an abort needs no positions from an old coordinator"),
        pytest.param(504651, (0, 1, 2, 3, 5, 6, 7, 8, 9, 10), id="the writes of a log end in their order"),
        pytest.param(505879, (0, 1, 3), id="a static member that starts again says what it has caught up on"),
        pytest.param(604208, (0, 1, 2), id="a broker does not forget the newest leader for what it hears late"),
        pytest.param(606111, (0,), id="a task lost before it had a store has no gap"),
        pytest.param(603620, (0, 1), id="a join of a static member that cannot be stored renews its session"),
        pytest.param(606120, (0, 1, 2, 3), id="the same of an old coordinator"),
        pytest.param(
            641833,
            (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13),
            id="a group without processes is not at rest while one is to start again",
        ),
        pytest.param(628734, (0, 1, 2, 3), id="a first join that cannot be stored tells the member's id"),
        pytest.param(604911, (0, 1, 2, 3), id="after a failover not all protocols of others are known"),
    ],
)
@pytest.mark.sampled(4)
def test_seeds_that_once_broke_do_so_no_more(seed: int, actions: tuple[int, ...]) -> None:
    assert run_scenario(kept_actions(draw_scenario(seed), actions)).broken is None


def test_a_member_assigned_that_joins_again_in_the_same_step_has_not_held_its_partitions_since_before() -> None:
    assert run_seed(200743).broken is None


# -- failures ----------------------------------------------------------------------------------------------------------


def broken_by_action(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Have an action break an invariant whatever happens."""

    def broken(*_: object) -> bool:
        errors.broken("actions are harmless", kind)

    monkeypatch.setitem(ACTIONS, kind, broken)


def seed_with(kind: str) -> int:
    return next(seed for seed in range(400) if len((s := draw_scenario(seed)).actions) > 4 and kind in str(s.actions))


@pytest.mark.gate
def test_a_failure_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_by_action(monkeypatch, "topic grows")
    scenario = draw_scenario(seed_with("topic grows"))
    shortest = shrink(scenario, "actions are harmless")
    assert [action.kind for action in shortest.actions] == ["topic grows"]
    assert shortest.network.reset == shortest.network.drop == 0
    assert str(run_scenario(shortest).broken) == "actions are harmless: topic grows"


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    done = CliRunner().invoke(simulate, arguments)
    return done.exit_code, done.output


@pytest.mark.gate
def test_the_command_prints_the_history_and_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_by_action(monkeypatch, "topic grows")
    seed = seed_with("topic grows")
    code, shown = run("--seed", str(seed))
    assert code == 1
    assert f"BROKEN in seed {seed}: actions are harmless: topic grows" in shown
    assert f"python -m tests.simulation --seed {seed} --trace" in shown
    (only,) = (line.split()[-1] for line in shown.splitlines() if "--only" in line)
    assert run("--seed", str(seed), "--only", only)[0] == 1
    assert run("--seed", str(seed), "--only", "")[0] == 0


def test_the_command_sums_up() -> None:
    code, shown = run("--seeds", "2", "--seed", "7", "--jobs", "1", "--coverage")
    assert code == 0
    assert "2 seeds" in shown
    assert "0 broken invariants" in shown
    assert "event of a coordinator" in shown


@pytest.mark.process
@pytest.mark.gate
def test_seeds_in_several_processes_are_the_same_runs() -> None:
    alone, shared = run_many(range(30, 32)), run_many(range(30, 32), jobs=2)
    assert (shared.seeds, shared.events, shared.counts) == (alone.seeds, alone.events, alone.counts)
    assert shared.coverage.coordinators == alone.coverage.coordinators


def test_a_broken_invariant_travels_between_processes() -> None:
    broken = pickle.loads(pickle.dumps(BrokenInvariant("a sentence", "what was seen")))
    assert (broken.sentence, broken.seen, str(broken)) == ("a sentence", "what was seen", "a sentence: what was seen")


@pytest.mark.parametrize("options", [["--trace"], ["--only", "1"], ["--seed", "1", "--only", "x"]])
def test_a_mistake_in_the_options_is_named(options: list[str]) -> None:
    code, shown = run(*options)
    assert code == 2
    assert options[-2 if len(options) > 1 else -1] in shown


# -- the parts ---------------------------------------------------------------------------------------------------------


class Peer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.received: list[bytes] = []
        self.lost = 0

    def frame_received(self, _connection: Connection, frame: bytes) -> None:
        self.received.append(frame)

    def connection_lost(self, _connection: Connection) -> None:
        self.lost += 1


def test_frames_of_a_connection_keep_their_order() -> None:
    scheduler, counts = Scheduler(), Counter[str]()
    network = Network(scheduler, Random(1), counts)
    network.faults = NetworkFaults(delay=100, slow=0.3, duplicate=0.3)
    client, node = Peer("client"), Peer("node")
    connection = Connection(client, node, "x")
    for number in range(50):
        network.send(connection, Direction.TO_NODE, bytes([number]), repeatable=True)
    scheduler.run(10_000)
    assert node.received == sorted(node.received)
    assert len(node.received) > 50
    assert counts["frame delayed"] > 0


def test_a_one_way_partition_holds_back_one_way() -> None:
    scheduler = Scheduler()
    network = Network(scheduler, Random(1), Counter())
    client, node = Peer("client"), Peer("node")
    connection = Connection(client, node, "x")
    network.partition("client", "node", Direction.TO_NODE, 5_000)
    network.send(connection, Direction.TO_NODE, b"request")
    network.send(connection, Direction.TO_CLIENT, b"response")
    scheduler.run(4_999)
    assert (client.received, node.received) == ([b"response"], [])
    scheduler.run(6_000)
    assert node.received == [b"request"]


def test_a_crash_keeps_a_beginning_of_what_was_not_synced() -> None:
    sizes = set()
    for seed in range(40):
        counts = Counter[str]()
        disk = Disk(Random(seed), counts, Durable())
        batches = [record_batch(((b"\0\x02\0\x01g", None),)) for _ in range(6)]
        assert all(disk.append(batch, 0) for batch in batches)
        assert disk.sync(batches[1])
        disk.crash()
        sizes.add(len(disk))
        kept = [not batch.dropped for batch in batches]
        assert kept == sorted(kept, reverse=True)
        assert sum(kept) == len(disk) >= 2
    assert sizes == {2, 3, 4, 5, 6}


def test_an_old_leader_cannot_write() -> None:
    disk = Disk(Random(1), Counter(), Durable())
    disk.epoch = 2
    assert not disk.append(record_batch(((b"", None),)), 1)


def test_a_clock_that_jumps_fires_the_timers_it_jumps_over() -> None:
    scheduler = Scheduler()
    fired: list[tuple[int, str]] = []
    timers: Timers[str] = Timers(scheduler, lambda name: fired.append((scheduler.now, name)))
    timers.apply(SetTimer("soon", 1_000))
    timers.apply(SetTimer("late", 9_000))
    scheduler.run(500)
    timers.jump(4_000)
    scheduler.run(5_000)
    assert fired == [(500, "soon"), (5_000, "late")]


def test_a_broken_invariant_says_what_was_seen() -> None:
    with pytest.raises(BrokenInvariant, match="only legal transitions: Heartbeat took the group from Empty to Stable"):
        invariants.only_legal_transitions(GroupState.EMPTY, GroupState.STABLE, "Heartbeat")
