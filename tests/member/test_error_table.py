"""The error matrix of reference A6, row by row: what each answer makes of state, identity and claims."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from roster.member import MemberState
from roster.member.events import RequestFailed, Responded, SelectionChanged, Started
from roster.member.types import FailureKind
from roster.wire import ErrorCode
from roster.wire.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.member.stage import Stage, parts

E = ErrorCode
EVERYTHING = "t-0 t-1"


@dataclass(frozen=True)
class After:
    """What must hold after the error: member id and generation kept, partitions kept, and the next request."""

    member_id: bool = True
    generation: bool = True
    owned: bool = True
    next: type | None = JoinGroupRequest
    pause: bool = False
    """Whether the next request may go out only after a pause."""
    fatal: FailureKind | None = None


RETRY = After()
PAUSED = After(pause=True)
PAUSED_SYNC = After(next=SyncGroupRequest, pause=True)
LOOK = After(next=FindCoordinatorRequest)
RESET_MEMBER = After(member_id=False, generation=False, owned=False)
RESET_GENERATION = After(generation=False, owned=False)
SAME = After(next=None)


def fatal(kind: FailureKind) -> After:
    return After(member_id=False, generation=False, owned=False, next=None, fatal=kind)


JOINING = {
    E.UNKNOWN_MEMBER_ID: RESET_MEMBER,
    E.ILLEGAL_GENERATION: RESET_GENERATION,
    E.REBALANCE_IN_PROGRESS: RETRY,
    E.COORDINATOR_LOAD_IN_PROGRESS: PAUSED,
    E.REQUEST_TIMED_OUT: PAUSED,
    E.NOT_COORDINATOR: LOOK,
    E.COORDINATOR_NOT_AVAILABLE: LOOK,
    E.FENCED_INSTANCE_ID: fatal(FailureKind.FENCED_INSTANCE),
    E.INCONSISTENT_GROUP_PROTOCOL: fatal(FailureKind.PROTOCOL),
    E.INVALID_SESSION_TIMEOUT: fatal(FailureKind.SESSION_TIMEOUT),
    E.INVALID_GROUP_ID: fatal(FailureKind.GROUP_ID),
    E.GROUP_MAX_SIZE_REACHED: fatal(FailureKind.GROUP_FULL),
    E.GROUP_AUTHORIZATION_FAILED: fatal(FailureKind.AUTHORIZATION),
    E.UNSUPPORTED_VERSION: fatal(FailureKind.UNSUPPORTED),
    E.UNKNOWN_SERVER_ERROR: fatal(FailureKind.UNEXPECTED),
}

HEARTBEAT = {
    E.NONE: SAME,
    E.REBALANCE_IN_PROGRESS: RETRY,
    E.UNKNOWN_MEMBER_ID: RESET_MEMBER,
    E.ILLEGAL_GENERATION: RESET_GENERATION,
    E.COORDINATOR_LOAD_IN_PROGRESS: SAME,
    E.NOT_COORDINATOR: LOOK,
    E.COORDINATOR_NOT_AVAILABLE: LOOK,
    E.FENCED_INSTANCE_ID: fatal(FailureKind.FENCED_INSTANCE),
    E.GROUP_AUTHORIZATION_FAILED: fatal(FailureKind.AUTHORIZATION),
    E.UNKNOWN_SERVER_ERROR: fatal(FailureKind.UNEXPECTED),
}


def check(stage: Stage, after: After, generation: int) -> None:
    member = stage.member
    if after.fatal is not None:
        assert member.state is MemberState.FAILED
        assert stage.owns.failure is not None
        assert stage.owns.failure.kind is after.fatal
        assert stage.owns.failure.message
    assert (member.member_id == "m") is after.member_id
    assert (member.generation == generation) is after.generation
    assert (stage.owns.partitions == parts(EVERYTHING)) is after.owned
    assert after.owned or stage.owns.lost == parts(EVERYTHING)
    if after.next is None:
        assert not stage.has(JoinGroupRequest)
        return
    assert stage.has(after.next) is not after.pause
    stage.wait(1_200)
    assert stage.has(after.next)


@pytest.mark.parametrize(("error", "after"), JOINING.items(), ids=lambda value: getattr(value, "name", ""))
def test_join_group_error(error: ErrorCode, after: After) -> None:
    stage = Stage()
    stage.stable(EVERYTHING)
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.answer(JoinGroupRequest, JoinGroupResponse(error_code=error))
    check(stage, after, generation=1)


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (error, PAUSED_SYNC if after is PAUSED else after)
        for error, after in JOINING.items()
        if error is not E.INVALID_SESSION_TIMEOUT
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_sync_group_error(error: ErrorCode, after: After) -> None:
    stage = Stage()
    stage.stable(EVERYTHING)
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.joined(generation=2)
    stage.answer(SyncGroupRequest, SyncGroupResponse(error_code=error))
    check(stage, after, generation=2)


@pytest.mark.parametrize(("error", "after"), HEARTBEAT.items(), ids=lambda value: getattr(value, "name", ""))
def test_heartbeat_error(error: ErrorCode, after: After) -> None:
    stage = Stage()
    stage.stable(EVERYTHING)
    stage.heartbeat(error)
    check(stage, after, generation=1)


COMMIT = {
    E.NONE: (SAME, "done"),
    E.REBALANCE_IN_PROGRESS: (RETRY, "waits"),
    E.UNKNOWN_MEMBER_ID: (RESET_MEMBER, FailureKind.FENCED),
    E.ILLEGAL_GENERATION: (RESET_GENERATION, FailureKind.FENCED),
    E.COORDINATOR_LOAD_IN_PROGRESS: (SAME, "waits"),
    E.NOT_COORDINATOR: (LOOK, "waits"),
    E.COORDINATOR_NOT_AVAILABLE: (LOOK, "waits"),
    E.REQUEST_TIMED_OUT: (LOOK, "waits"),
    E.FENCED_INSTANCE_ID: (fatal(FailureKind.FENCED_INSTANCE), FailureKind.FENCED_INSTANCE),
    E.GROUP_AUTHORIZATION_FAILED: (fatal(FailureKind.AUTHORIZATION), FailureKind.AUTHORIZATION),
    E.UNKNOWN_TOPIC_OR_PARTITION: (SAME, FailureKind.UNKNOWN_TOPIC),
    E.OFFSET_METADATA_TOO_LARGE: (SAME, FailureKind.METADATA_TOO_LARGE),
    E.INVALID_COMMIT_OFFSET_SIZE: (SAME, FailureKind.METADATA_TOO_LARGE),
    E.TOPIC_AUTHORIZATION_FAILED: (SAME, FailureKind.AUTHORIZATION),
}


@pytest.mark.parametrize("error", COMMIT, ids=lambda error: error.name)
def test_offset_commit_error(error: ErrorCode) -> None:
    after, outcome = COMMIT[error]
    stage = Stage()
    stage.stable(EVERYTHING)
    stage.commit("t-0")
    stage.committed(error)
    if outcome == "waits":
        assert stage.commits == {}
    elif outcome == "done":
        assert stage.commits[1].failure is None
    else:
        failure = stage.commits[1].failure
        assert failure is not None
        assert failure.kind is outcome
        assert failure.message
    check(stage, after, generation=1)


def test_a_commit_that_waits_is_sent_again_and_succeeds() -> None:
    stage = Stage()
    stage.stable(EVERYTHING)
    stage.commit("t-0")
    stage.committed(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert not stage.has(OffsetCommitRequest)
    stage.wait(200)
    stage.committed()
    assert stage.commits[1].failure is None


FINDING = {
    E.COORDINATOR_NOT_AVAILABLE: None,
    E.COORDINATOR_LOAD_IN_PROGRESS: None,
    E.GROUP_AUTHORIZATION_FAILED: FailureKind.AUTHORIZATION,
    E.INVALID_GROUP_ID: FailureKind.GROUP_ID,
}


@pytest.mark.parametrize("error", FINDING, ids=lambda error: error.name)
def test_find_coordinator_error(error: ErrorCode) -> None:
    stage = Stage()
    stage.step(Started())
    stage.find_coordinator(error)
    if FINDING[error] is None:
        assert not stage.has(FindCoordinatorRequest)
        stage.wait(200)
        stage.find_coordinator()
        assert stage.has(JoinGroupRequest)
    else:
        assert stage.owns.failure is not None
        assert stage.owns.failure.kind is FINDING[error]


@pytest.mark.parametrize("kind", [JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, OffsetCommitRequest])
def test_a_lost_connection_means_a_new_look_for_the_coordinator_and_nothing_is_given_up(kind: type) -> None:
    stage = Stage()
    stage.stable(EVERYTHING)
    if kind is HeartbeatRequest:
        stage.wait(3_000)
    elif kind is OffsetCommitRequest:
        stage.commit("t-0")
    else:
        stage.heartbeat(E.REBALANCE_IN_PROGRESS)
        if kind is SyncGroupRequest:
            stage.joined(generation=2)
    number = next(n for n, send in stage.open.items() if isinstance(send.message, kind))
    del stage.open[number]
    stage.step(RequestFailed(number, "connection lost"))
    assert stage.disconnected == 1
    assert stage.owns.partitions == parts(EVERYTHING)
    assert stage.member.member_id == "m"
    stage.find_coordinator()
    stage.wait(1_200)
    assert stage.has(kind)


@pytest.mark.parametrize("error", [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID])
@pytest.mark.parametrize("kind", ["heartbeat", "commit"])
def test_an_error_about_an_older_generation_resets_nothing(error: ErrorCode, kind: str) -> None:
    """A6: reset id and generation only if the generation is unchanged since the request."""
    stage = Stage()
    stage.stable(EVERYTHING)
    stage.wait(3_000)
    stage.commit("t-0")
    old_heartbeat = next(n for n, s in stage.open.items() if isinstance(s.message, HeartbeatRequest))
    old_commit = next(n for n, s in stage.open.items() if isinstance(s.message, OffsetCommitRequest))
    stage.step(SelectionChanged(frozenset({"t", "u"})))
    stage.joined(generation=2)
    stage.synced(EVERYTHING)
    if kind == "heartbeat":
        stage.step(Responded(old_heartbeat, HeartbeatResponse(error_code=error)))
    else:
        partition = OffsetCommitResponse.Partition(error_code=error)
        topic = OffsetCommitResponse.Topic(name="t", partitions=[partition])
        del stage.open[old_commit]
        stage.step(Responded(old_commit, OffsetCommitResponse(topics=[topic])))
        stage.wait(200)
        assert stage.request(OffsetCommitRequest).generation_id_or_member_epoch == 2, "the tenure went on"
        stage.committed()
        assert stage.commits[1].failure is None
    assert stage.member.generation == 2
    assert stage.owns.partitions == parts(EVERYTHING)


def test_member_id_required_keeps_the_id_and_retries_at_once() -> None:
    stage = Stage()
    stage.start()
    assert stage.request(JoinGroupRequest).member_id == ""
    stage.answer(JoinGroupRequest, JoinGroupResponse(error_code=E.MEMBER_ID_REQUIRED, member_id="m"))
    assert stage.request(JoinGroupRequest).member_id == "m"
    assert stage.request(JoinGroupRequest).reason == "need to re-join with the given member-id: m"


def test_immediate_retries_that_follow_each_other_begin_to_pause() -> None:
    stage = Stage()
    stage.start()
    for _ in range(20):
        if not stage.has(JoinGroupRequest):
            break
        stage.answer(JoinGroupRequest, JoinGroupResponse(error_code=E.REBALANCE_IN_PROGRESS))
    assert not stage.has(JoinGroupRequest), "a broker that always says so is asked without end"
    stage.wait(1_200)
    assert stage.has(JoinGroupRequest)
