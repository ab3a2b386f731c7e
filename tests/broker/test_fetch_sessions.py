"""Fetch sessions: room for them, and what a client knows; answers: tests/real/test_same_answers_sessions."""

from __future__ import annotations

import itertools
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.broker.fetch_sessions import Client, FetchContext, FetchSessions
from roster.wire import ErrorCode
from roster.wire.messages import FetchRequest, FetchResponse
from tests.broker.rawclient import RawClient

CLIENT = Client("User:a", 1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sessions(slots: int, clock: Clock | None = None) -> FetchSessions:
    return FetchSessions(slots, itertools.count(1).__next__, clock or Clock())


def ask(kept: FetchSessions, message: FetchRequest, client: Client = CLIENT) -> FetchContext | ErrorCode:
    return kept.context(message, 12, client)


def request(session: int, epoch: int, offsets: dict[int, int], forgotten: list[int] = ()) -> FetchRequest:
    partitions = [FetchRequest.Partition(partition=each, fetch_offset=offset) for each, offset in offsets.items()]
    gone = [FetchRequest.ForgottenTopic(topic="t", partitions=list(forgotten))] if forgotten else []
    topics = [FetchRequest.Topic(topic="t", partitions=partitions)] if offsets else []
    return FetchRequest(session_id=session, session_epoch=epoch, topics=topics, forgotten_topics_data=gone)


def answer(context: FetchContext, ends: dict[int, int]) -> FetchResponse:
    """Answer as a broker whose partitions end at `ends`; every record is one byte."""
    response = FetchResponse()
    for topic in context.topics:
        answers = FetchResponse.Topic(topic=topic.topic)
        response.responses.append(answers)
        for each in topic.partitions:
            end = ends[each.partition]
            records = b"x" * (end - each.fetch_offset)
            answers.partitions.append(
                FetchResponse.Partition(
                    partition_index=each.partition, high_watermark=end, log_start_offset=0, records=records
                )
            )
    context.finish(response)
    return response


def begin(kept: FetchSessions, partitions: int = 1, client: Client = CLIENT) -> int:
    context = ask(kept, request(0, 0, dict.fromkeys(range(partitions), 0)), client)
    return answer(context, dict.fromkeys(range(partitions), 0)).session_id


def test_without_slots_there_are_none():
    assert begin(sessions(0)) == 0


def test_a_session_that_was_not_used_for_long_gives_way():
    clock = Clock()
    kept = sessions(2, clock)
    assert [begin(kept), begin(kept), begin(kept)] == [1, 2, 0]
    clock.now = 100
    assert answer(ask(kept, request(1, 1, {})), {0: 0}).session_id == 1
    clock.now = 130
    assert begin(kept) == 3
    assert ask(kept, request(2, 1, {})) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert isinstance(ask(kept, request(1, 2, {})), FetchContext)
    assert len(kept) == 2


def test_a_larger_session_takes_the_place_of_a_smaller_one_that_is_old():
    clock = Clock()
    kept = sessions(2, clock)
    small, large = begin(kept, 1), begin(kept, 9)
    assert begin(kept, 5) == 0
    clock.now = 121
    for session in (small, large):
        ask(kept, request(session, 1, {}))
    assert begin(kept, 1) == 0
    assert begin(kept, 5) > 0
    assert ask(kept, request(small, 2, {})) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_all_partitions_together_are_bounded(monkeypatch):
    monkeypatch.setattr("roster.broker.fetch_sessions.MAX_PARTITIONS", 10)
    kept = sessions(9)
    first = begin(kept, 6)
    assert begin(kept, 5) == 0
    ask(kept, request(first, 1, {}, forgotten=[0, 1]))
    assert begin(kept, 5) > 0
    ask(kept, request(first, -1, {}))
    assert begin(kept, 5) > 0


def test_a_session_grows_to_the_items_of_one_request(monkeypatch):
    monkeypatch.setattr("roster.broker.fetch_sessions.MAX_ITEMS", 10)
    kept = sessions(9)
    session = begin(kept, 6)
    assert isinstance(ask(kept, request(session, 1, dict.fromkeys(range(6, 10), 0))), FetchContext)
    assert isinstance(ask(kept, request(session, 2, {10: 0}, forgotten=[0])), FetchContext)
    assert ask(kept, request(session, 3, {11: 0})) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(kept) == 0


def test_sessions_do_not_grow_beyond_what_all_may_have(monkeypatch):
    monkeypatch.setattr("roster.broker.fetch_sessions.MAX_PARTITIONS", 10)
    kept = sessions(9)
    one, other = begin(kept, 5), begin(kept, 5)
    assert ask(kept, request(one, 1, {5: 0})) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert isinstance(ask(kept, request(other, 1, {5: 0})), FetchContext)


@pytest.mark.parametrize("epoch", [-1, 0, 1, 7])
def test_the_session_of_another_principal_is_not_there(epoch):
    kept = sessions(9)
    session = begin(kept, 2)
    stranger = Client("User:b", 2)
    told = ask(kept, request(session, epoch, {}), stranger)
    assert told == ErrorCode.FETCH_SESSION_ID_NOT_FOUND if epoch > 0 else told.topics == []
    own = ask(kept, request(session, 1, {}))
    assert [part.partition for topic in own.topics for part in topic.partitions] == [0, 1]


def test_sessions_end_with_the_connection_that_used_them_last():
    kept = sessions(9)
    first, second = Client("User:a", 1), Client("User:a", 2)
    moved, stays, gone = (begin(kept, 3, first) for _ in range(3))
    ask(kept, request(moved, 1, {}), second)
    ask(kept, request(gone, -1, {}), first)
    kept.connection_ended(1)
    assert ask(kept, request(stays, 1, {}), second) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert isinstance(ask(kept, request(moved, 2, {}), second), FetchContext)
    kept.connection_ended(2)
    kept.connection_ended(2)
    assert len(kept) == 0


def test_a_broker_ends_the_sessions_of_a_client_that_leaves(broker, client):
    wanted = FetchRequest.Topic(topic="left", partitions=[FetchRequest.Partition(partition=0)])
    with RawClient(broker.address) as leaving:
        session = leaving.ask(FetchRequest(session_epoch=0, topics=[wanted]), 12).session_id
        assert session != 0
        leaving.socket.shutdown(socket.SHUT_WR)
        assert leaving.is_closed()
    told = client.ask(FetchRequest(session_id=session, session_epoch=1), 12)
    assert told.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3)),
        st.tuples(st.just("fetch"), st.booleans()),
        st.tuples(st.just("forget"), st.integers(0, 3)),
        st.tuples(st.just("read"), st.integers(0, 3)),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_client_that_sends_changes_only_knows_every_end_and_gets_every_record(steps):
    kept = sessions(1)
    ends = dict.fromkeys(range(4), 0)
    context = ask(kept, request(0, 0, {0: 0, 1: 0}))
    session = answer(context, ends).session_id
    position, sent, known = {0: 0, 1: 0}, {0: 0, 1: 0}, {0: 0, 1: 0}
    for epoch, (step, what) in with_epochs(steps):
        if step == "write":
            ends[what] += 1
        elif step == "forget" and len(position) > 1:
            position.pop(what, None)
        elif step == "read":
            position.setdefault(what, 0)
        elif step == "fetch":
            changed = {each: offset for each, offset in position.items() if sent.get(each) != offset}
            forgotten = [each for each in sent if each not in position]
            context = ask(kept, request(session, epoch, changed, forgotten))
            sent, known = dict(position), {each: end for each, end in known.items() if each in position}
            read = {each.partition: each.fetch_offset for topic in context.topics for each in topic.partitions}
            assert read == position
            for each in (part for topic in answer(context, ends).responses for part in topic.partitions):
                known[each.partition_index] = each.high_watermark
                position[each.partition_index] += len(each.records or b"") if what else 0
            assert known == {each: ends[each] for each in position}
            assert position == known or not what


def with_epochs(steps):
    """Each step with the epoch that the next fetch has."""
    epoch = 1
    numbered = []
    for step in steps:
        numbered.append((epoch, step))
        epoch += step[0] == "fetch"
    return numbered
