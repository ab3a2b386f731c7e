"""How many bytes members may make a group hold."""

from __future__ import annotations

import pytest

from roster.coordinator import CoordinatorConfig
from roster.wire import ErrorCode
from tests.coordinator.coordinator_harness import GROUP, GroupState, with_config

LIMITS = {"max_member_metadata_bytes": 100, "max_group_metadata_bytes": 150, "initial_rebalance_delay_ms": 0}


def protocols(*sizes: int) -> tuple[tuple[str, bytes], ...]:
    return tuple((f"p{n}", bytes(size)) for n, size in enumerate(sizes))


def test_a_member_with_too_much_metadata_is_refused_and_leaves_nothing_behind() -> None:
    c = with_config(**LIMITS)
    assert c.join(version=3, protocols=protocols(60, 41)).error is ErrorCode.MESSAGE_TOO_LARGE
    assert c.coordinator.group(GROUP) is None
    assert not c.join(version=3, protocols=protocols(60, 40)).error


def test_a_group_takes_members_until_their_metadata_fills_it() -> None:
    c = with_config(**LIMITS)
    c.join(instance="a", protocols=protocols(100))
    assert c.join(instance="b", protocols=protocols(51)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    second = c.join(instance="b", protocols=protocols(50))
    assert second.parked
    assert c.group().metadata_bytes == 150


def test_a_member_that_rejoins_is_counted_with_what_it_brings_now() -> None:
    c = with_config(**LIMITS)
    (member,) = c.stable_group("a", protocols=(("range", bytes(90)),))
    assert not c.join(member, instance="a", protocols=(("range", bytes(100)),)).error
    assert c.group().metadata_bytes == 100
    assert not c.join(instance="a", protocols=(("range", bytes(20)),)).error
    assert c.group().metadata_bytes == 20


def test_assignments_too_large_to_keep_are_refused() -> None:
    c = with_config(**LIMITS)
    joined = c.join(instance="a", protocols=(("range", b""),))
    member, generation = joined.reply.member_id, joined.reply.generation_id
    assert c.sync(member, generation, {member: bytes(151)}, instance="a").error is ErrorCode.MESSAGE_TOO_LARGE
    assert c.state is GroupState.COMPLETING
    assert not c.sync(member, generation, {member: bytes(150)}, instance="a").error


@pytest.mark.parametrize("name", ["max_member_metadata_bytes", "max_group_metadata_bytes"])
def test_limits_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: 0 is not a whole number from 1 to"):
        CoordinatorConfig(**{name: 0})
