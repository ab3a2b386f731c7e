"""Groups that balance lag, on Roster's broker: offsets fetched by the leader's own client, or done without."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer

from roster.assignors import LagOptions, lag_cooperative_sticky
from roster.client import Admin, GroupMember, OffsetAndMetadata, OptionError, member_shell
from roster.model import TopicPartition
from tests.librdkafka import idempotent_producer
from tests.waiting import until

numbers = count()
Fill = Callable[[str, dict[int, int]], None]


@pytest.fixture
def address(bootstrap: str) -> str:
    """Where the tests that do not say otherwise run."""
    return bootstrap


@pytest.fixture
def topic(address: str, fill: Fill) -> str:
    """LA-1's topic, a thousandth of its size."""
    name = f"lagging-{next(numbers)}"
    with Admin(address) as admin:
        admin.create_topic(name, 3)
    fill(name, {0: 100, 1: 60, 2: 50})
    return name


@pytest.fixture(scope="module")
def producer() -> Iterator[Callable[[str], Producer]]:
    """One for each address: librdkafka waits half a second for the first producer id."""
    kept = cache(idempotent_producer)
    yield kept
    kept.cache_clear()


@pytest.fixture
def fill(producer: Callable[[str], Producer], address: str) -> Fill:
    """Write so many more records to each partition."""
    return partial(_fill, producer(address))


def _fill(producer: Producer, topic: str, records: dict[int, int]) -> None:
    for partition, most in records.items():
        for number in range(most):
            producer.produce(topic, str(number), partition=partition)
    assert producer.flush(60) == 0


@pytest.fixture
def make(address: str, topic: str) -> Iterator[Callable[..., GroupMember]]:
    """Started members of one group; what they are to give up they release at once."""
    group, stop = f"lag-group-{next(numbers)}", threading.Event()
    with ExitStack() as stack:

        def build(**options: object) -> GroupMember:
            settings = {"assignors": ("lag-cooperative-sticky",), "auto_offset_reset": "earliest", **options}
            member = GroupMember(
                address, group, [topic], heartbeat_interval_ms=100, session_timeout_ms=6_000, **settings
            )
            stack.callback(member.close)
            thread = threading.Thread(target=_release, args=(member, stop), daemon=True)
            stack.callback(thread.join, 5)
            stack.callback(stop.set)
            thread.start()
            member.start(60)
            return member

        yield build
        stop.set()


def _release(member: GroupMember, stop: threading.Event) -> None:
    epoch = -1
    while not stop.is_set():
        now = member.wait(epoch, 0.05)
        epoch = now.epoch
        if now.revoking:
            member.release(now.revoking)


def split(members: list[GroupMember]) -> list[set[int]]:
    """The partition numbers of each member once each has some and all are given out."""

    def owned() -> list[set[int]]:
        return [{p.partition for p in member.ownership().partitions} for member in members]

    def given_out() -> list[set[int]] | None:
        now = owned()
        return now if all(now) and sorted(p for numbers in now for p in numbers) == [0, 1, 2] else None

    return until(given_out, what=owned)


def rest(members: list[GroupMember], partitions: int) -> None:
    """Wait until all partitions are given out and none is being given up."""

    def at_rest() -> bool:
        owned = [member.ownership() for member in members]
        return sum(len(each.partitions) for each in owned) == partitions and not any(each.revoking for each in owned)

    until(at_rest, what=lambda: [member.ownership() for member in members])


@pytest.mark.parametrize("assignor", ["lag", "lag-sticky", "lag-cooperative-sticky"])
def test_la_1_with_a_real_backlog(make: Callable[..., GroupMember], assignor: str) -> None:
    members = [make(assignors=(assignor,)), make(assignors=(assignor,))]
    assert sorted(split(members), key=len) == [{0}, {1, 2}]


class TestOnApacheKafka:
    @pytest.fixture
    def address(self, apache_kafka: Any) -> str:
        return str(apache_kafka.bootstrap)

    def test_la_1_with_a_real_backlog(self, make: Callable[..., GroupMember]) -> None:
        assert sorted(split([make(), make()]), key=len) == [{0}, {1, 2}]


def test_committed_offsets_count(make: Callable[..., GroupMember], topic: str) -> None:
    """With 10 records of partition 0 left, 1 is what weighs most."""
    first = make()
    first.commit({TopicPartition(topic, 0): OffsetAndMetadata(90)}, first.ownership())
    assert sorted(split([first, make()]), key=len) == [{1}, {0, 2}]


def test_when_offsets_cannot_be_had_the_group_is_assigned_all_the_same(
    make: Callable[..., GroupMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*arguments: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(member_shell, "partition_offsets", never)
    told: list[str] = []
    members = [make(on_event=lambda event: told.append(event.text)), make()]
    assert sorted(map(len, split(members))) == [1, 2]
    assert any("lag-cooperative-sticky does without lags: the offsets did not come within" in text for text in told)


def test_capacity_counts(make: Callable[..., GroupMember]) -> None:
    """The big one is due 2.7 of 3 partitions, the small one 0.3: rounded, two or three and none or one."""
    big, small = make(capacity=9), make()
    rest([big, small], 3)
    assert len(big.ownership().partitions) >= 2


@pytest.mark.parametrize(("options", "moves"), [(LagOptions(), True), (LagOptions(movement_cost=1_000), False)])
def test_the_options_of_a_policy_decide_what_a_rebalance_moves(
    make: Callable[..., GroupMember], address: str, topic: str, options: LagOptions, moves: bool
) -> None:
    """Two have read everything but what one of them has got since, when new partitions come."""
    both = [make(assignors=lag_cooperative_sticky(options), metadata_max_age_ms=300) for _ in range(2)]
    split(both)
    with Admin(address) as admin:
        admin.create_partitions(topic, 4)
    rest(both, 4)
    for member in both:
        owned = member.ownership()
        ends = member.end_offsets(owned.partitions)
        member.commit({p: OffsetAndMetadata(end) for p, end in ends.items()}, owned)
    before = both[0].ownership().partitions
    # Another producer: the first would refuse the new partitions.
    _fill(idempotent_producer(address), topic, {p.partition: 200 for p in before})
    with Admin(address) as admin:
        admin.create_partitions(topic, 6)
    rest(both, 6)
    assert (not before <= both[0].ownership().partitions) == moves


def test_an_option_that_cannot_work_is_named(bootstrap: str) -> None:
    with pytest.raises(OptionError) as refused:
        GroupMember(bootstrap, "g", ["t"], capacity=0)
    assert refused.value.option == "capacity"
