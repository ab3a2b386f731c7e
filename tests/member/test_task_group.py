"""Groups of tasks in virtual time: joins, deaths and restarts, with stores that take their time to be restored."""

from __future__ import annotations

import struct
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.member.events import Closed, RebalanceRequested
from roster.member.task_assignor import TaskAssignor
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from tests.examples_tried import examples
from tests.member.simulated_group import SESSION, Faults
from tests.member.task_world import TaskWorld

SETTLED = 30_000
STAGES = ((0, "orders", ("totals",)), (1, "clicks", ()), (2, "prices", ()))


def settled(seed: int, members: int, partitions: int = 6, **options) -> TaskWorld:
    world = TaskWorld(seed, partitions, **options)
    for number in range(members):
        world.start(f"m{number}")
    world.run(SETTLED)
    return world


def actives(world: TaskWorld) -> Counter[str]:
    return Counter(actor.name for actor in world.living for task in world.held(actor).active if task.subtopology == 0)


@settings(max_examples=examples(4), deadline=None)
@given(seed=st.integers(0, 10_000), members=st.integers(1, 4), standbys=st.integers(0, 2))
def test_every_task_runs_once_evenly_with_its_standbys_elsewhere(seed, members, standbys):
    world = settled(seed, members, standbys=standbys)
    stateful = [actives(world)[actor.name] for actor in world.living]
    assert sum(stateful) == 6
    assert max(stateful) - min(stateful) <= 1
    assert all(len(warm) == 1 + min(standbys, members - 1) for warm in world.copies().values())
    stateless = [sum(t.subtopology == 1 for t in world.held(actor).active) for actor in world.living]
    assert sum(stateless) == 6
    assert max(stateless) - min(stateless) <= 1
    world.check_settled()


@settings(max_examples=examples(4), deadline=None)
@given(seed=st.integers(0, 10_000), members=st.integers(2, 4))
def test_a_task_whose_owner_dies_goes_to_a_caught_up_copy_at_once(seed, members):
    world = settled(seed, members, standbys=1)
    victim = world.living[seed % members]
    mine = [task for task in world.held(victim).active if task.subtopology == 0]
    warm = world.copies()
    copies = {task: {actor.name for actor in warm[task]} - {victim.name} for task in mine}
    victim.kill()
    heirs: dict[TaskId, str] = {}
    while len(heirs) < len(mine) and world.now < SETTLED + 2 * SESSION:
        world.run_watching(100, least=1)
        heirs = {task: owner.name for task in mine if (owner := world.owner(task))} | heirs
    assert heirs.keys() == set(mine)
    assert all(heirs[task] in copies[task] for task in mine)
    if members > 2:
        world.run(SETTLED)
        assert all(len(warm) == 2 for warm in world.copies().values())


@settings(max_examples=examples(4), deadline=None)
@given(seed=st.integers(0, 10_000), members=st.integers(2, 3), warmups=st.integers(1, 4))
def test_a_join_moves_tasks_and_at_every_moment_each_has_its_caught_up_copies(seed, members, warmups):
    world = settled(seed, members, standbys=1, max_warmups=warmups)
    world.start("new")
    world.run_watching(SETTLED, least=2)
    loads = actives(world)
    assert max(loads.values()) - min(loads[actor.name] for actor in world.living) <= 1
    assert all(len(warm) == 2 for warm in world.copies().values())


@settings(max_examples=examples(3), deadline=None)
@given(seed=st.integers(0, 10_000), members=st.integers(3, 4))
def test_a_member_that_leaves_takes_no_copy_of_a_task_whose_other_copy_is_elsewhere(seed, members):
    world = settled(seed, members, standbys=1)
    world.living[seed % members].feed(Closed())
    world.run_watching(SETTLED, least=1)
    assert all(len(warm) == 2 for warm in world.copies().values())


def test_a_group_comes_to_rest():
    world = settled(3, 3, standbys=1)
    rounds = world.rounds
    world.run(4 * SETTLED)
    assert world.rounds == rounds


def test_the_follow_up_comes_when_the_copy_has_caught_up_and_not_by_a_clock():
    world = settled(1, 1, standbys=0)
    world.speed = 0
    new = world.start("new")
    world.run(SETTLED)
    rounds = world.rounds
    assert actives(world) == {"m0": 6}
    assert len(world.held(new).restoring) == 2, "as many as max_warmups"
    world.run(4 * SETTLED)
    assert world.rounds == rounds, "while nothing catches up, nothing happens"
    world.speed = 10_000
    world.run(5_000)
    assert actives(world) == {"m0": 3, "new": 3}


@settings(max_examples=examples(4), deadline=None)
@given(seed=st.integers(0, 10_000), standbys=st.integers(0, 1), faults=st.booleans())
def test_a_host_with_whole_stores_takes_over_at_once_from_one_that_restores_its_own(seed, standbys, faults):
    """The host whose disk was lost comes first, the one whose disk is whole second."""
    world = TaskWorld(seed, 6, Faults(reset=0.02, duplicate=0.05) if faults else None, standbys=standbys, max_warmups=6)
    world.ends = dict.fromkeys(world.ends, 255_000)
    empty = world.start("empty")
    world.run(world.chance.randint(5_000, 20_000))
    assert actives(world) == {"empty": 6}
    rounds = world.rounds
    world.restored["whole"] = {task: end - 5 for task, end in world.ends.items()}
    whole = world.start("whole")
    joined = world.now
    while actives(world) != {"whole": 6} and world.now < joined + SETTLED:
        world.run(100)
    assert actives(world) == {"whole": 6}
    assert faults or world.rounds <= rounds + 2, "the old owner gives up, the new one takes over"
    assert world.held(empty).restoring, "what it is to have in the end is restored meanwhile"
    world.run(SETTLED)
    assert actives(world) == {"whole": 6}
    world.stop_faults()
    world.speed = 50_000
    world.run(SETTLED)
    assert actives(world) == {"empty": 3, "whole": 3}
    assert all(len(warm) == 1 + standbys for warm in world.copies().values())
    assert world.held(whole).restoring == frozenset()
    world.check_settled()


def test_of_two_owners_that_restore_neither_takes_the_others_tasks():
    world = TaskWorld(11, 6, standbys=0)
    world.ends = dict.fromkeys(world.ends, 255_000)
    for name in ("a", "b"):
        world.restored[name] = dict.fromkeys(world.ends, 0)
        world.start(name)
    world.run(SETTLED)
    owners = {task: world.owner(task).name for task in world.ends}
    assert sorted(Counter(owners.values()).values()) == [3, 3]
    for _ in range(5):
        world.chance.choice(world.living).feed(RebalanceRequested("again"))
        world.run(SETTLED)
        assert {task: world.owner(task).name for task in world.ends} == owners


def test_after_a_restart_of_everything_the_stores_on_disk_decide():
    world = settled(5, 2, standbys=0, partitions=4)
    before = {task: world.owner(task).name for task in world.ends}
    for actor in list(world.living):
        actor.kill()
    world.run(2 * SESSION)
    for name in ("m1", "m0"):
        world.start(name)
    world.run(SETTLED)
    assert {task: world.owner(task).name for task in world.ends} == before


@settings(max_examples=examples(4), deadline=None)
@given(seed=st.integers(0, 10_000), standbys=st.integers(0, 1))
def test_no_task_goes_to_a_member_that_was_away_and_has_not_caught_up(seed, standbys):
    """Its session ends while it is paused, its old tasks go on elsewhere, and it joins before it reports."""
    world = settled(seed, 2, partitions=4, standbys=standbys)
    world.batch = 3_000
    away, stays = world.living[seed % 2], world.living[1 - seed % 2]
    away.pause(2 * SESSION)
    world.run(2 * SESSION - 1)
    assert actives(world)[stays.name] == 4
    world.ends = {task: end + 40_000 for task, end in world.ends.items()}
    world.restored[stays.name] |= world.ends
    for _ in range(SETTLED // 100):
        world.run(100)
        assert actives(world)[stays.name] == 4, f"at {world.now}: too far behind to take any"
    world.speed = 50_000
    world.run(SETTLED)
    assert sorted(actives(world).values()) == [2, 2]
    world.check_settled()


def test_members_that_all_lost_the_group_get_what_their_stores_fit():
    """They join without stores, since they know nothing of them, and tell the leader once they have looked."""
    world = settled(5, 2, standbys=0, partitions=4)
    before = {task: world.owner(task).name for task in world.ends}
    for actor in world.living:
        actor.pause(3 * SESSION)
    world.run(3 * SESSION)
    world.speed = 0
    world.run(SETTLED)
    assert {task: world.owner(task).name for task in world.ends} == before


def test_members_of_one_process_share_its_tasks_and_never_hold_two_copies_of_one():
    world = TaskWorld(2, 8, standbys=1)
    for number in range(4):
        world.start(f"m{number}", process=bytes([number // 2]) * 16)
    world.run(SETTLED)
    assert sorted(actives(world).values()) == [2, 2, 2, 2]
    for task in world.ends:
        held = [actor.name for actor in world.living if task in world.held(actor).active | world.held(actor).standby]
        assert sorted(int(name[1]) // 2 for name in held) == [0, 1]


def test_members_of_one_process_have_tasks_of_each_subtopology_alike():
    stages = tuple(Subtopology(number, (topic,), store) for number, topic, store in STAGES)
    world = TaskWorld(3, 4, subtopologies=stages)
    for number in range(2):
        world.start(f"m{number}", process=bytes(16))
    world.run(SETTLED)
    for actor in world.living:
        assert Counter(task.subtopology for task in world.held(actor).active) == {0: 2, 1: 2, 2: 2}


def test_capacity_counts_as_threads():
    world = TaskWorld(4, 9)
    world.start("small")
    world.start("big", capacity=2)
    world.run(SETTLED)
    assert actives(world) == {"small": 3, "big": 6}


def test_copies_are_kept_in_different_racks():
    world = TaskWorld(6, 6, standbys=1)
    for number in range(4):
        world.start(f"m{number}", rack_id="ab"[number % 2])
    world.run(SETTLED)
    assert all({actor.config.rack_id for actor in warm} == {"a", "b"} for warm in world.copies().values())


@settings(max_examples=examples(3), deadline=None)
@given(seed=st.integers(0, 10_000))
def test_faults_of_network_and_processes_end_in_a_settled_group(seed):
    faults = Faults(reset=0.02, duplicate=0.05, slow_release=0.1)
    world = TaskWorld(seed, 5, faults, standbys=1)
    for number in range(3):
        world.start(f"m{number}")
    for number in range(6):
        world.run(world.chance.randint(1_000, 2 * SESSION))
        living = world.living
        match world.chance.randrange(4):
            case 0 if len(living) > 1:
                world.chance.choice(living).kill()
            case 1 if living:
                world.chance.choice(living).pause(world.chance.randint(500, 2 * SESSION))
            case 2:
                world.start(f"n{number}")
            case _:
                world.crash_leader(world.chance.randint(100, 5_000))
    world.stop_faults()
    world.run(3 * SETTLED)
    world.check_settled()
    copies = 1 + min(1, len(world.living) - 1)
    assert all(len(warm) == copies for warm in world.copies().values())


class Later(TaskAssignor):
    """A member of a later release: it joins with version 6, and with less once the answer says so."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._version = 6

    def subscription_user_data(self, join):
        return struct.pack(">ii", 6, 6) if self._version == 6 else super().subscription_user_data(join)


def test_a_member_of_a_later_release_joins_again_at_once_with_the_version_that_all_speak():
    world = settled(7, 2, standbys=1)
    rounds = world.rounds
    later = world.start("later", kind=Later)
    world.run(3_000)
    assert world.rounds <= rounds + 3, "with its versions only, with its tasks, and with what others then gave up"
    assert world.held(later).standby
    world.run(SETTLED)
    assert sorted(actives(world).values()) == [2, 2, 2]


def test_every_member_knows_who_runs_what():
    world = settled(8, 3, standbys=1)
    runs = {f"{actor.name}:80": world.held(actor).active for actor in world.living}
    for actor in world.living:
        assert {str(host): tasks for host, tasks in world.held(actor).by_host.items()} == runs


def test_a_gap_below_zero_and_stores_of_other_topologies():
    world = settled(9, 1)
    assignor = world.assignors["m0"]
    with pytest.raises(ValueError, match=r"gaps\[0_1\]: must be a number of records from 0 up, not -1"):
        assignor.report({TaskId(0, 1): -1})
    assert assignor.with_state({TaskId(7, 0): 5, TaskId(1, 0): 5, TaskId(0, 0): 5}) == {TaskId(0, 0): 5}
