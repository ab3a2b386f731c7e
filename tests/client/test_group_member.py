"""The blocking member against Roster's broker: joining, handing over, committing, closing, and every start error."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from roster.client import (
    Admin,
    AssignmentError,
    ClientError,
    ClosedError,
    CommitFenced,
    FencedInstanceError,
    GroupMember,
    InconsistentProtocolError,
    MemberEvent,
    OffsetAndMetadata,
    OptionError,
    Ownership,
    SessionTimeoutError,
    UnknownTopicError,
    UnreachableError,
    member_shell,
)
from roster.client.loop import LoopThread
from roster.model import TopicPartition
from roster.testing.broker import running_broker
from roster.wire.records import read_batch
from tests.waiting import until as waiting_until

numbers = count()


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"topic-{next(numbers)}"
    admin.create_topic(name, 4)
    return name


@pytest.fixture
def make(bootstrap: str, topic: str) -> Iterator[Callable[..., GroupMember]]:
    """Members of one group of the test's own, closed at its end; `run=True` also releases what is to be revoked."""
    group = f"group-{next(numbers)}"
    stop = threading.Event()
    with ExitStack() as stack:

        def build(*, run: bool = True, **options: Any) -> GroupMember:
            options = {
                "topics": [topic],
                "heartbeat_interval_ms": 100,
                "session_timeout_ms": 6_000,
                "metadata_max_age_ms": 200,
                **options,
            }
            member = GroupMember(bootstrap, options.pop("group", group), options.pop("topics"), **options)
            stack.callback(member.close)
            if run:
                thread = threading.Thread(target=_release, args=(member, stop), daemon=True)
                stack.callback(thread.join, 5)
                stack.callback(stop.set)
                thread.start()
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


def until(member: GroupMember, holds: Callable[[Ownership], bool], timeout: float = 60.0) -> Ownership:
    """Wait for an ownership that `holds`."""
    deadline = time.monotonic() + timeout
    now = member.ownership()
    while not holds(now):
        assert time.monotonic() < deadline, f"still {now}"
        now = member.wait(now.epoch, 1.0)
    return now


def offsets(partitions: frozenset[TopicPartition], offset: int = 1) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition: OffsetAndMetadata(offset, metadata="note") for partition in partitions}


def test_a_member_alone_owns_everything_and_commits(make: Callable[..., GroupMember], topic: str) -> None:
    member = make()
    member.start()
    owned = member.ownership()
    assert owned.partitions == {TopicPartition(topic, number) for number in range(4)}
    assert owned.member_id.startswith("roster-")
    member.commit(offsets(owned.partitions, 3), owned)
    assert member.committed(owned.partitions) == offsets(owned.partitions, 3)
    assert member.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)] == OffsetAndMetadata(
        3, metadata="note"
    )
    assert member.partitions_for([topic]) == {topic: 4}
    assert set(member.end_offsets(owned.partitions).values()) == {0}
    assert set(member.beginning_offsets(owned.partitions).values()) == {0}
    assert member.offsets_for_times({TopicPartition(topic, 0): 0}) == {TopicPartition(topic, 0): None}


def test_the_offset_of_a_time_is_that_of_the_first_record_from_then_on(
    make: Callable[..., GroupMember], topic: str, bootstrap: str
) -> None:
    producer, member, place = Producer({"bootstrap.servers": bootstrap}), make(), TopicPartition(topic, 1)
    for time_ms in (1_000, 2_000):
        producer.produce(topic, b"value", partition=1, timestamp=time_ms)
    producer.flush()
    member.start()
    assert [member.offsets_for_times({place: at})[place] for at in (1_000, 1_001, 2_001)] == [0, 1, None]


def test_a_wait_for_records_ends_with_the_first_record_or_a_change_of_ownership(
    make: Callable[..., GroupMember], topic: str, bootstrap: str
) -> None:
    member = make(metadata_max_age_ms=60_000)
    member.start()
    owned = member.ownership()
    positions = dict.fromkeys(owned.partitions, 0)
    assert member.wait_for_records(positions, owned.epoch, 0.01) == owned
    producer = Producer({"bootstrap.servers": bootstrap})
    waiting = threading.Thread(target=member.wait_for_records, args=(positions, owned.epoch, 600.0))
    waiting.start()
    producer.produce(topic, b"value", partition=2)
    producer.flush()
    waiting.join(60)
    assert not waiting.is_alive()
    ((arrival,),) = member.arrivals(positions).values()
    (record,) = read_batch(arrival.records)
    assert (arrival[:6], record.value) == ((topic, 2, 0, 1, 1, False), b"value")
    member.watch(positions, 600.0)
    for number in range(1, 5):  # more of them come, and are kept behind the first
        producer.produce(topic, b"value", partition=2)
        producer.flush()
        waiting_until(lambda n=number: member.arrivals(positions)[TopicPartition(topic, 2)][-1].next == n + 1)
        member.watch(positions, 600.0)
    ends = {**positions, TopicPartition(topic, 2): 5}
    assert member.arrivals(ends) == {}
    member.wait_for_records(positions, owned.epoch, 600.0)  # there is one already
    ends = member.end_offsets(owned.partitions)
    joining = threading.Thread(target=make().start)
    joining.start()
    assert member.wait_for_records(ends, owned.epoch, 600.0).epoch != owned.epoch
    joining.join()


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_two_members_share_and_one_takes_over(make: Callable[..., GroupMember], assignor: str) -> None:
    one, two = make(assignors=[assignor]), make(assignors=[assignor])
    one.start()
    before = one.ownership()
    two.start()
    until(one, lambda o: len(o.partitions) == 2)
    mine = until(two, lambda o: len(o.partitions) == 2)
    assert not mine.partitions & one.ownership().partitions
    with pytest.raises(CommitFenced) as raised:
        one.commit(offsets(before.partitions), before)
    assert raised.value.partitions >= mine.partitions
    one.close()
    until(two, lambda o: len(o.partitions) == 4)


def test_revoking_waits_for_release_and_commits_meanwhile(make: Callable[..., GroupMember]) -> None:
    one, two = make(run=False), make()
    one.start()
    two.start()
    now = until(one, lambda o: bool(o.revoking))
    assert now.revoke_deadline is not None
    assert now.revoke_deadline > time.monotonic()
    assert len(now.partitions) == len(now.revoking) == 2
    time.sleep(0.3)
    assert not two.ownership().partitions, "not before the release"
    one.commit(offsets(now.revoking, 9), now)
    one.release(now.revoking)
    given = until(two, lambda o: len(o.partitions) == 2)
    assert given.partitions == now.revoking
    assert two.committed(given.partitions) == offsets(given.partitions, 9)


def test_what_is_not_released_in_time_is_lost(make: Callable[..., GroupMember]) -> None:
    one = make(run=False, rebalance_timeout_ms=1_000)
    two = make()
    one.start()
    two.start()
    now = until(one, lambda o: bool(o.revoking))
    lost = until(one, lambda o: bool(o.lost))
    assert lost.lost == now.revoking
    with pytest.raises(CommitFenced):
        one.commit(offsets(now.revoking), now)
    until(two, lambda o: len(o.partitions) == 2)


def test_a_pattern_follows_new_topics(make: Callable[..., GroupMember], admin: Admin) -> None:
    stem = f"pattern-{next(numbers)}"
    admin.create_topic(f"{stem}.a", 1)
    member = make(topics=re.compile(re.escape(stem) + r"\..*"))
    member.start()
    until(member, lambda o: len(o.partitions) == 1)
    admin.create_topic(f"{stem}.b", 2)
    until(member, lambda o: len(o.partitions) == 3)


def test_new_partitions_and_deleted_topics_are_picked_up(
    make: Callable[..., GroupMember], admin: Admin, topic: str
) -> None:
    extra = f"extra-{next(numbers)}"
    admin.create_topic(extra, 1)
    member = make(topics=[topic, extra])
    member.start()
    admin.create_partitions(topic, 6)
    until(member, lambda o: len(o.partitions) == 7)
    admin.delete_topic(extra)
    until(member, lambda o: len(o.partitions) == 6)


def test_a_broker_that_restarts_finds_its_members_again(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", 2)
        member = GroupMember(broker.bootstrap, "g", ["t"], heartbeat_interval_ms=100, request_timeout_ms=20_000)
        member.start()
        owned = member.ownership()
    with running_broker(tmp_path, port=port):
        member.commit(offsets(owned.partitions, 5), owned)
        assert member.ownership().partitions == owned.partitions
        assert member.committed(owned.partitions) == offsets(owned.partitions, 5)
        member.close()


def test_a_leader_that_cannot_assign_tells_every_member(
    make: Callable[..., GroupMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> dict[str, bytes]:
        raise ValueError("the test forbids it")

    monkeypatch.setattr(member_shell, "assign_group", broken)
    with pytest.raises(AssignmentError, match=r"range: ValueError: the test forbids it"):
        make(assignors=["range"]).start()


def test_a_second_process_with_the_same_instance_id_fences_the_first(make: Callable[..., GroupMember]) -> None:
    one, two = make(group_instance_id="i"), make(group_instance_id="i")
    one.start()
    two.start()
    gone = until(one, lambda o: o.error is not None)
    assert isinstance(gone.error, FencedInstanceError)
    assert not gone.partitions
    with pytest.raises(FencedInstanceError):
        one.commit(offsets(gone.lost), gone)


def test_events_tell_what_happened(make: Callable[..., GroupMember]) -> None:
    told: list[MemberEvent] = []
    member = make(on_event=told.append)
    member.start()
    member.close()
    kinds = [event.kind for event in told]
    for kind in ("coordinator", "joining", "joined", "leading", "assigned", "left"):
        assert kind in kinds


def test_joining_is_logged_once_and_names_the_member_once_a_line(
    make: Callable[..., GroupMember], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roster.member")
    make().start()
    lines = [record.getMessage() for record in caplog.records if record.name == "roster.member"]
    reasons = [line.partition(": ")[2].partition(": ")[2] for line in lines]
    assert len(set(reasons)) == len(reasons)
    assert "need to re-join with the given member-id" in reasons
    for line in lines:
        assert "member :" not in line
        ids = re.findall(r"roster-[0-9a-f-]{36}", line)
        assert len(ids) == len(set(ids))


def test_an_on_event_that_raises_harms_nothing(make: Callable[..., GroupMember]) -> None:
    def broken(event: MemberEvent) -> None:
        raise RuntimeError(event.kind)

    member = make(on_event=broken)
    member.start()
    assert len(member.ownership().partitions) == 4


def test_closing_is_final_and_may_be_repeated(make: Callable[..., GroupMember], topic: str, admin: Admin) -> None:
    member = make(group=f"closing-{topic}")
    member.start()
    owned = member.ownership()
    member.close()
    member.close()
    assert not admin.describe_group(f"closing-{topic}").members, "it said goodbye"
    assert not member.ownership().partitions
    member.release(owned.partitions)
    for call in (
        lambda: member.commit(offsets(owned.partitions), owned),
        lambda: member.committed(owned.partitions),
        member.start,
    ):
        with pytest.raises(ClosedError):
            call()
    assert not [t for t in threading.enumerate() if t.name == f"roster-member-closing-{topic}"]


def test_without_leave_the_place_is_kept_until_the_session_ends(make: Callable[..., GroupMember], admin: Admin) -> None:
    group = f"kept-{next(numbers)}"
    member = make(group=group)
    member.start()
    member.close(leave=False)
    assert len(admin.describe_group(group).members) == 1


# What cannot start says so.


def test_a_missing_topic(make: Callable[..., GroupMember]) -> None:
    with pytest.raises(UnknownTopicError, match="no such topic: nowhere") as raised:
        make(topics=["nowhere"]).start()
    assert raised.value.topics == ("nowhere",)


def test_an_unreachable_broker(topic: str) -> None:
    member = GroupMember("127.0.0.1:1", "g", [topic])
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        member.start(timeout=0.3)
    with pytest.raises(ClosedError):
        member.start()


def test_a_session_timeout_the_broker_refuses(make: Callable[..., GroupMember]) -> None:
    with pytest.raises(SessionTimeoutError, match="session_timeout_ms=2000000"):
        make(session_timeout_ms=2_000_000).start()


def test_a_group_that_uses_other_assignors(make: Callable[..., GroupMember]) -> None:
    make(assignors=["range"]).start()
    with pytest.raises(InconsistentProtocolError, match=r"none of this member's assignors"):
        make(assignors=["roundrobin"]).start()


WRONG: dict[str, dict[str, Any]] = {
    "group": {"group": ""},
    "topics": {"topics": []},
    "assignors": {"assignors": ["fair"]},
    "session_timeout_ms": {"session_timeout_ms": 0},
    "heartbeat_interval_ms": {"heartbeat_interval_ms": 45_000},
    "rebalance_timeout_ms": {"rebalance_timeout_ms": -1},
    "request_timeout_ms": {"request_timeout_ms": 1.5},
    "metadata_max_age_ms": {"metadata_max_age_ms": True},
    "group_instance_id": {"group_instance_id": "a b"},
    "bootstrap": {"bootstrap": "nowhere:port"},
}


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_option_is_one_clear_error_that_names_it(option: str) -> None:
    arguments: dict[str, Any] = {"bootstrap": "127.0.0.1:9092", "group": "g", "topics": ["t"], **WRONG[option]}
    with pytest.raises(OptionError, match=f"^option {option}: ") as raised:
        GroupMember(arguments.pop("bootstrap"), arguments.pop("group"), arguments.pop("topics"), **arguments)
    assert raised.value.option == option
    assert isinstance(raised.value, ClientError)


@pytest.mark.parametrize("topics", ["t", ["a b"], ["."], ["x" * 250], [1], None])
def test_topics_that_are_none(topics: Any) -> None:
    with pytest.raises(OptionError, match=r"^option topics: "):
        GroupMember("127.0.0.1:9092", "g", topics)


def test_a_start_that_waits_is_ended_by_close(topic: str) -> None:
    member = GroupMember("127.0.0.1:1", "g", [topic])
    raised: list[BaseException] = []

    def start() -> None:
        try:
            member.start(600.0)
        except ClientError as error:
            raised.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    member.close()
    thread.join(30)
    assert [type(error) for error in raised] in ([ClosedError], [UnreachableError])
    assert not thread.is_alive()


def test_a_member_that_is_closed_as_it_starts_does_not_stay(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, closing = GroupMember(bootstrap, "as-it-starts", [topic]), list[threading.Thread]()

    class Starting(LoopThread):
        def __init__(self, name: str) -> None:
            closing.append(threading.Thread(target=member.close))
            closing[0].start()
            closing[0].join(0.2)  # it goes on before there is a loop, or waits for it
            super().__init__(name)

    monkeypatch.setattr("roster.client.group_member.LoopThread", Starting)
    with pytest.raises(ClosedError):
        member.start(60.0)
    closing[0].join()
    assert not [thread for thread in threading.enumerate() if thread.name == "roster-member-as-it-starts"]


def test_a_member_that_is_closed_amid_its_first_requests_was_closed_and_not_unreachable(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = GroupMember(bootstrap, "amid-requests", [topic])
    closing = threading.Thread(target=member.close)

    async def topics(*_: Any) -> None:
        closing.start()
        while not member._closed:
            await asyncio.sleep(0)
        raise UnreachableError("the connection ended: not needed any more")

    monkeypatch.setattr(member._cluster, "topics", topics)
    with pytest.raises(ClosedError):
        member.start(60.0)
    closing.join()


def test_members_with_the_default_assignors_use_cooperative_sticky_until_a_plain_neighbour_comes(
    make: Callable[..., GroupMember], bootstrap: str, topic: str
) -> None:
    members = [make() for _ in range(2)]
    for member in members:
        member.start()
    for member in members:
        until(member, lambda now: len(now.partitions) == 2)
        assert member.assignor == "cooperative-sticky"
    neighbour = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": members[0]._config.group,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 200,
        }
    )
    neighbour.subscribe([topic])
    deadline = time.monotonic() + 90
    shares: list[int] = []
    while sorted(shares) != [1, 1, 2]:
        neighbour.poll(0.1)
        shares = [len(neighbour.assignment()), *(len(member.ownership().partitions) for member in members)]
        assert time.monotonic() < deadline, "the neighbour gets its share"
    assert {member.assignor for member in members} == {"range"}
    neighbour.close()
    for member in members:
        until(member, lambda now: len(now.partitions) == 2)
    assert {member.assignor for member in members} == {"cooperative-sticky"}
