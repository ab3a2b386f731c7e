"""A recorded rebalance as a test: it replays to the byte, and says whose assignment differs."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from roster.history.case import Case, case_of, replay_case
from roster.history.derived import GroupHistory
from roster.member.assign_group import assign_group
from roster.member.group_snapshot import GroupSnapshot
from roster.model import TopicPartition
from roster.wire.consumer.messages import Subscription, encode_subscription
from roster.wire.consumer.user_data import encode_lag_user_data
from roster.wire.offsets_topic import GroupMetadataValue, encode_value
from tests.history.made_up import Group, events

if TYPE_CHECKING:
    from pathlib import Path

START = 1_790_000_000_000


def recorded(assignor: str, offsets: dict[str, dict[int, tuple[int, int, int]]] | None = None) -> GroupHistory:
    """A group of two members, assigned by a leader of Roster, with a static one."""
    data = encode_lag_user_data(None, capacity=2, settling=False) if offsets else None
    subscription = encode_subscription(Subscription(topics=["t"], user_data=data))
    instances = {"m1": None, "m2": "i2"}
    group = GroupSnapshot(
        subscriptions=dict.fromkeys(instances, subscription),
        partitions={"t": 5},
        instance_ids=instances,
        generation=7,
        offsets=offsets,
    )
    given = assign_group(assignor, group).assignments
    members = [
        GroupMetadataValue.Member(
            member_id=member,
            group_instance_id=instance,
            client_id="c",
            client_host="/h",
            session_timeout=1,
            subscription=subscription,
            assignment=given[member],
        )
        for member, instance in instances.items()
    ]
    made = Group(random.Random(1))
    value = GroupMetadataValue(protocol_type="consumer", generation=7, protocol=assignor, leader="m1", members=members)
    made.records.append((START, encode_value(value)))
    known = {TopicPartition("t", n): at for n, at in (offsets or {}).get("t", {}).items()}
    commits = {tp: [(START - 1, committed)] for tp, (_, _, committed) in known.items()}
    ends = {tp: [(START - 1000, end), (START + 1000, end)] for tp, (_, end, _) in known.items()}
    return GroupHistory(events(made, commits=commits, ends=ends))


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_recorded_rebalance_replays_to_the_byte(assignor: str, tmp_path: Path) -> None:
    case = case_of(recorded(assignor), 7)
    assert case.differing() == []
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case.as_json()))
    assert Case.from_json(json.loads(path.read_text())) == case
    replay_case(path)
    other = replace(case, assignments={**case.assignments, "m2": case.assignments["m1"]})
    path.write_text(json.dumps(other.as_json()))
    with pytest.raises(AssertionError, match=f"{assignor} assigns otherwise than recorded to m2$"):
        replay_case(path)


def test_offsets_of_the_time_are_part_of_a_case_of_a_lag_assignor() -> None:
    offsets = {"t": {n: (0, 1000 * (n == 3) + 10 * n, 5 * n) for n in range(5)}}
    case = case_of(recorded("lag-cooperative-sticky", offsets), 7)
    assert case.group.offsets == offsets
    assert case.differing() == []
    assert case_of(recorded("range", offsets), 7).group.offsets is None


def test_what_cannot_be_exported_is_said() -> None:
    with pytest.raises(ValueError, match="generation 8 is not in the history"):
        case_of(recorded("range"), 8)
