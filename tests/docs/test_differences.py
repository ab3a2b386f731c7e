"""The rows of the page about differences from the documents, held against what Roster does.

Tried here are rows of placing and counting. Those about the coordinator, failovers, tasks and bytes are held by the
tests of their rooms.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from roster.assignors import ASSIGNORS
from roster.member.assign_group import plan_group
from roster.member.group_snapshot import GroupSnapshot
from roster.model import TopicPartition
from roster.wire.consumer.messages import Subscription, by_topic, encode_subscription

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = (Path(__file__).parents[2] / "docs" / "documents" / "differences.md").read_text()
Given = dict[str, dict[str, list[int]]]


def row(beginning: str) -> str:
    """The one row of the page that begins so."""
    (found,) = re.findall(rf"^\| {re.escape(beginning)}.*\|$", PAGE, re.MULTILINE)
    return found


def member(topics: str, owned: str = "", generation: int = -1) -> bytes:
    claims = [
        TopicPartition(topic, int(number)) for topic, _, number in (name.rpartition("-") for name in owned.split())
    ]
    return encode_subscription(
        Subscription(topics=topics.split(), owned_partitions=by_topic(claims), generation_id=generation)
    )


def plan(assignor: str, members: Mapping[str, bytes], partitions: Mapping[str, int]) -> Given:
    offsets = {topic: dict.fromkeys(range(count), (0, 0, 0)) for topic, count in partitions.items()}
    made = plan_group(assignor, GroupSnapshot(subscriptions=members, partitions=partitions, offsets=offsets))
    return {
        name: {topic: list(numbers) for topic, numbers in given.items()} for name, given in made.assignment().items()
    }


def test_every_row_has_what_the_document_says_what_roster_does_and_why() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert len(rows) > 40
    assert {len(line.split(" | ")) for line in rows if not line.startswith("|-")} == {3}


def test_free_partitions_are_dealt_one_by_one() -> None:
    told = row("Each member in turn takes free partitions")
    assert "t0: 0, 1 and t1: 0 for the first" in told, "as the document's pseudo code deals them"
    dealt = plan("cooperative-sticky", dict.fromkeys("ab", member("t0 t1")), {"t0": 3, "t1": 3})
    shown = "; ".join(" and ".join(f"{t}: {', '.join(map(str, n))}" for t, n in dealt[m].items()) for m in "ab")
    assert shown in told


def test_an_old_claim_that_nobody_contests_is_kept() -> None:
    assert row("A claim of an older generation")
    group = {"old": member("t", "t-2 t-3", 1), "new": member("t", "t-0 t-1", 5)}
    assert plan("cooperative-sticky", group, {"t": 4}) == {"old": {"t": [2, 3]}, "new": {"t": [0, 1]}}


def test_there_is_no_assignor_of_the_documents_name() -> None:
    assert row("`constrained-cooperative-sticky` is")
    assert "constrained-cooperative-sticky" not in ASSIGNORS


def test_without_lag_counts_are_those_of_range_and_the_partitions_are_not() -> None:
    told = row("Without lag the assignment")
    group = dict.fromkeys("ab", member("t"))
    by_lag, by_range = (plan(assignor, group, {"t": 7}) for assignor in ("lag", "range"))
    assert [len(by_lag[m]["t"]) for m in "ab"] == [len(by_range[m]["t"]) for m in "ab"] == [4, 3]
    assert by_lag == {"a": {"t": [0, 2, 4, 6]}, "b": {"t": [1, 3, 5]}}
    assert "0, 2, 4, 6 and 1, 3, 5" in told


def test_totals_over_topics_may_differ_where_subscriptions_do() -> None:
    assert "5 and 1 of six" in row("Counts differ by at most one, and")
    given = plan("lag", {"a": member("t0 t1"), "b": member("t0")}, {"t0": 2, "t1": 4})
    assert {m: sum(map(len, topics.values())) for m, topics in given.items()} == {"a": 5, "b": 1}


def test_roundrobin_of_three_partitions() -> None:
    assert row("`roundrobin` gives C0").split(" | ")[1] == "0 and 2."
    given = plan("roundrobin", dict.fromkeys(["C0", "C1"], member("t")), {"t": 3})
    assert given == {"C0": {"t": [0, 2]}, "C1": {"t": [1]}}


def test_two_claims_without_a_newer_one_are_both_dropped() -> None:
    assert row("Members without a generation count")
    group = {"a": member("t", "t-0"), "b": member("t", "t-0"), "c": member("t")}
    made = plan_group("cooperative-sticky", GroupSnapshot(subscriptions=group, partitions={"t": 1}))
    assert made.owner_before.tolist() == [-1]
