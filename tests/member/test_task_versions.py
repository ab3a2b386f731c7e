"""Version probing in a task group: each rule, and rolling upgrades among members of v5, v6 and v7."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.member.task_leader import error_answers, settle_versions, version_to_rejoin
from roster.model.tasks import RUNNING, TaskId, TaskLags
from roster.wire import WireError
from roster.wire.streams.assignment_info import AssignmentInfo, decode_assignment_info, encode_assignment_info
from roster.wire.streams.subscription_info import (
    LATEST_VERSION,
    AssignorErrorCode,
    SubscriptionInfo,
    decode_subscription_info,
    encode_subscription_info,
)

NOW = LATEST_VERSION
NEXT, LAST = NOW + 1, NOW + 2
"""Versions of later releases."""


def joined(used, latest=NOW):
    tasks = TaskLags.of({TaskId(0, 0): RUNNING} if used == NOW else {})
    return SubscriptionInfo(version=used, latest_supported=latest, process_id=bytes(16), tasks=tasks)


def group(**used_and_latest):
    return {member: joined(*both) for member, both in used_and_latest.items()}


def answer(version, commonly, error=0):
    return AssignmentInfo(version=version, commonly_supported=commonly, error=error)


# The leader.


def test_a_group_of_one_version_is_answered_in_it():
    settled = settle_versions(group(a=(5, 5), b=(5, 5)))
    assert (settled.version, settled.commonly_supported) == (5, 5)
    assert settled.rejoining == settled.future == frozenset()


def test_everyone_is_answered_in_the_lowest_version_anyone_joined_with():
    settled = settle_versions(group(a=(7, 7), b=(5, 5), c=(7, 7)), latest=7)
    assert (settled.version, settled.commonly_supported) == (5, 5)
    assert settled.rejoining == {"a", "c"}


def test_who_joined_with_less_than_all_speak_is_told_so():
    settled = settle_versions(group(a=(7, 7), b=(5, 7)), latest=7)
    assert (settled.version, settled.commonly_supported) == (5, 7)
    assert settled.rejoining == {"a", "b"}


def test_the_leaders_own_limit_counts():
    settled = settle_versions(group(a=(5, 6), b=(5, 7)))
    assert (settled.version, settled.commonly_supported) == (5, 5)
    assert settled.rejoining == frozenset()


def test_a_member_from_the_future_is_answered_in_what_the_others_speak():
    settled = settle_versions(group(a=(5, 5), b=(6, 6)))
    assert (settled.version, settled.commonly_supported) == (5, 5)
    assert settled.future == settled.rejoining == {"b"}


def test_a_group_of_nobody_has_the_leaders_version():
    assert settle_versions({}).version == NOW


# The member.


@pytest.mark.parametrize(
    ("received", "commonly", "used", "latest", "again"),
    [
        (7, 7, 7, 7, None),
        (5, 5, 7, 7, 5),  # somebody speaks no more than 5
        (5, 7, 5, 7, 7),  # the last old member is gone
        (5, 7, 7, 7, 7),  # and this one was first to say so
        (5, 6, 7, 7, 6),
        (5, 6, 6, 7, 6),
        (6, 6, 6, 7, None),
    ],
)
def test_what_a_member_joins_with_next(received, commonly, used, latest, again):
    assert version_to_rejoin(answer(received, commonly), used, latest) == again


def test_an_error_settles_nothing():
    assert version_to_rejoin(answer(5, 5, AssignorErrorCode.ASSIGNMENT_ERROR), used=6, latest=6) is None


@pytest.mark.parametrize(
    ("received", "commonly", "used", "message"),
    [
        (6, 6, 5, "AssignmentInfo v6: version: above the 5 this member joined with"),
        (5, 6, 5, "AssignmentInfo v5: commonly_supported: 6 is above the 5 this member speaks"),
        (5, 4, 5, "AssignmentInfo v5: commonly_supported: 4 is below the version in use"),
    ],
)
def test_what_no_sound_leader_sends_is_refused(received, commonly, used, message):
    with pytest.raises(WireError, match=message):
        version_to_rejoin(answer(received, commonly), used)


versions = st.integers(NOW, LAST).flatmap(lambda used: st.tuples(st.just(used), st.integers(used, LAST)))
groups = st.dictionaries(st.sampled_from("abcde"), versions, min_size=1).map(lambda each: group(**each))


@given(groups, st.integers(NOW, LAST))
def test_leader_and_members_agree_on_who_joins_again(subscriptions, latest):
    settled = settle_versions(subscriptions, latest)
    told = answer(settled.version, settled.commonly_supported)
    again = {
        member: version_to_rejoin(told, info.version, info.latest_supported) for member, info in subscriptions.items()
    }
    assert {member for member, version in again.items() if version is not None} == settled.rejoining
    assert settled.future <= settled.rejoining


@given(groups, st.sampled_from([1, 3, 4]))
def test_an_error_is_told_in_a_version_its_reader_joined_with(subscriptions, error):
    answers = error_answers(subscriptions, error)
    assert set(answers) == set(subscriptions)
    for member, told in answers.items():
        read = decode_assignment_info(encode_assignment_info(told))
        assert (read.version, read.error) == (NOW, error)
        assert version_to_rejoin(read, subscriptions[member].version) is None


# Rolling upgrades.


class Process:
    """A member with the code of one release: it speaks versions up to `latest`, and nothing of later ones."""

    def __init__(self, latest):
        self.latest = self.used = latest

    def join(self):
        if self.used > LATEST_VERSION:
            return self.used.to_bytes(4, "big") + self.latest.to_bytes(4, "big") + b"what nobody knows yet"
        return encode_subscription_info(joined(self.used, self.latest))

    def lead(self, subscriptions):
        settled = settle_versions(
            {member: decode_subscription_info(data) for member, data in subscriptions.items()}, self.latest
        )
        if settled.version > LATEST_VERSION:
            return b"".join(number.to_bytes(4, "big") for number in (settled.version, settled.commonly_supported))
        return encode_assignment_info(answer(settled.version, settled.commonly_supported))

    def receive(self, data):
        version = int.from_bytes(data[:4], "big")
        assert version <= self.used <= self.latest, "nobody is sent what its release cannot read"
        if version > LATEST_VERSION:
            told = AssignmentInfo(version=version, commonly_supported=int.from_bytes(data[4:8], "big"))
        else:
            told = decode_assignment_info(data)
        again = version_to_rejoin(told, self.used, self.latest)
        self.used = again or self.used
        return again is not None


def rebalance(processes, chance):
    """Rebalance until nobody wants to join again; any member may come to lead. Returns the rounds it took."""
    for rounds in range(1, 10):
        data = processes[chance.choice(sorted(processes))].lead({name: p.join() for name, p in processes.items()})
        if not [name for name, process in processes.items() if process.receive(data)]:
            return rounds
    raise AssertionError("the group does not come to rest")


upgrades = st.tuples(st.integers(NOW, LAST), st.integers(NOW, LAST)).filter(lambda pair: pair[0] < pair[1])


@given(upgrades, st.integers(1, 5), st.integers(0, 2**32))
def test_a_rolling_upgrade_ends_on_the_new_version(upgrade, size, seed):
    old, new = upgrade
    chance = random.Random(seed)
    processes = {f"m{i}": Process(old) for i in range(size)}
    rebalance(processes, chance)
    for name in chance.sample(sorted(processes), size):
        processes[name] = Process(new)
        if chance.random() < 0.7:  # else the next one is restarted in the same rebalance
            assert rebalance(processes, chance) <= 3
    rebalance(processes, chance)
    assert {process.used for process in processes.values()} == {new}


@given(st.lists(st.integers(NOW, LAST), min_size=1, max_size=6), st.integers(0, 2**32))
def test_members_of_any_releases_meet_in_the_highest_they_share(releases, seed):
    chance = random.Random(seed)
    processes = {f"m{i}": Process(latest) for i, latest in enumerate(releases)}
    assert rebalance(processes, chance) <= 3
    assert {process.used for process in processes.values()} == {min(releases)}


@given(st.lists(st.sampled_from([NOW, NEXT, LAST, None]), min_size=1, max_size=12), st.integers(0, 2**32))
def test_releases_that_come_and_go_always_come_to_rest(changes, seed):
    chance = random.Random(seed)
    processes = {"first": Process(NEXT)}
    for number, latest in enumerate(changes):
        if latest is None and len(processes) > 1:
            del processes[chance.choice(sorted(processes))]
        elif latest is not None:
            processes[f"m{number}"] = Process(latest)
        assert rebalance(processes, chance) <= 3
        assert {process.used for process in processes.values()} == {min(p.latest for p in processes.values())}
