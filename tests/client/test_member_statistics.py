"""What members count while a real group goes through joins, an expired member, a leave and new partitions."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from roster.client import Admin, CommitFenced, GroupMember, MemberStatistics, OffsetAndMetadata, Ownership
from roster.member.events import Report
from roster.member.types import ReportKind
from roster.model import TopicPartition
from tests.waiting import until


def counted(member: GroupMember) -> Counter[str]:
    return +member.statistics.rebalances


def test_causes_and_moves_are_those_that_the_test_brought_about(bootstrap: str, admin: Admin) -> None:
    admin.create_topic("counted", 4)
    settings: dict[str, Any] = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000, "metadata_max_age_ms": 200}
    with ExitStack() as members:

        def member() -> GroupMember:
            return members.enter_context(GroupMember(bootstrap, "counted", ["counted"], **settings))

        def shares(*parts: int) -> bool:
            for each in group:
                each.release(each.ownership().revoking)
            return [len(each.ownership().partitions) for each in group] == list(parts)

        group = [member()]
        assert counted(group[0]) == {"join": 1}
        assert group[0].statistics.moved_partitions == 4
        group.append(member())
        until(lambda: shares(2, 2), 60)
        # The leader saw the other come, gave two partitions up and joined again for them.
        until(lambda: counted(group[0]) == {"join": 2, "revoked": 1}, 60)
        assert +counted(group[1]) == {"join": 1, "unknown": 1}
        assert [each.statistics.moved_partitions for each in group] == [4, 2]
        stale = group[1].ownership()
        group.pop().close()
        until(lambda: shares(4), 60)
        assert counted(group[0]) == {"join": 2, "revoked": 1, "leave": 1}
        assert group[0].statistics.moved_partitions == 4 + 2
        admin.create_partitions("counted", 6)
        until(lambda: shares(6), 60)
        assert counted(group[0])["partitions"] == 1
        assert 0 < group[0].statistics.rebalance_seconds < 60
        assert sum(group[0].statistics.heartbeat_lateness.counts) > 0
        with pytest.raises(CommitFenced):
            group[0].commit({TopicPartition("counted", 9): OffsetAndMetadata(1)}, Ownership(epoch=stale.epoch))
        assert group[0].statistics.commit_failures == {"fenced": 1}


def test_what_only_the_member_knows_is_told_in_words() -> None:
    member, zero, one = MemberStatistics(), TopicPartition("t", 0), TopicPartition("t", 1)
    member.take(Report(ReportKind.REJOIN, "need to re-join with the given member-id: m"), 0.2)  # its first join
    member.take(Report(ReportKind.JOINED, "generation 1", cause="join"), 0.3)
    member.take(Report(ReportKind.REJOIN, "the group rebalances"), 1.0)
    member.owns(Ownership(1, "m", frozenset({zero, one})), 2.0)
    member.owns(Ownership(2, "m", frozenset({zero}), revoking=frozenset({one})), 3.0)
    member.owns(Ownership(3, "m", frozenset({zero}), revoking=frozenset({one})), 4.0)
    member.owns(Ownership(3, "m", frozenset({zero})), 5.5)
    member.owns(Ownership(4, "m", revoking=frozenset({zero})), 6.0)
    member.owns(Ownership(-1, "", lost=frozenset({zero})), 7.0)
    assert list(member.events) == [
        (1.0, "joins again: the group rebalances"),
        (5.5, "released revoked partitions after 2.5 s"),
        (7.0, "lost partitions: 1"),
    ]
