"""What a pipeline's driver makes of the standing of its tasks, and of what it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from roster.client import AuthorizationError, ClientError, OffsetAndMetadata, UnreachableError
from roster.client.switch_requests import request_group
from roster.model import TopicPartition
from roster.model.switch import Request, Results, Standing
from roster.pipeline.driver.switching import Restrictions, Switching

P0, P1, Q0 = TopicPartition("p", 0), TopicPartition("p", 1), TopicPartition("q", 0)
OLD, NEW = "old", "new"
ASKED = Request("s", OLD, NEW)


class Cluster:
    def __init__(self) -> None:
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.error: ClientError | None = None

    def ask(self, group: str, request: Request) -> None:
        self.offsets[request_group(group)] = {P0: OffsetAndMetadata(0, metadata=request.encode())}

    def group_offsets(self, group: str, partitions: Any = None, *, stable: bool) -> dict[TopicPartition, Any]:
        if self.error is not None:
            raise self.error
        return self.offsets.get(group, {})


def committed(standing: Standing, at: int = 5) -> OffsetAndMetadata:
    return OffsetAndMetadata(at, metadata=standing.added_to(""))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def switching(cluster: Any, group: str, *, paused: bool = False) -> Switching:
    return Switching(group, cluster, paused=paused)


def test_a_pipeline_begins_as_it_is_told_where_the_offsets_do_not_say_who_writes(cluster: Cluster) -> None:
    for paused in (True, False):
        made = switching(cluster, NEW, paused=paused)
        made.assigned({P0: None, P1: committed(Standing(Results.PAUSED, "s", OLD)), Q0: OffsetAndMetadata(3)})
        assert made.paused([P0, P1, Q0]) == ([P0, P1, Q0] if paused else [P1])
        made.assigned({P1: committed(Standing(Results.WRITES, "s", OLD, "s"))})
        assert P1 not in made.paused([P0, P1])
        assert (made.with_standings([P0], "{}")[P0] == "{}") is not paused


def test_it_says_what_becomes_of_the_results_of_owned_partitions(cluster: Cluster) -> None:
    made = switching(cluster, NEW, paused=True)
    assert made.results == ""
    made.assigned({P0: committed(Standing(Results.PAUSED, "s", OLD)), P1: None})
    made.next_steps({P0: 5})
    assert made.results == f"paused, {OLD} writes"
    made.next_steps({P1: 5})
    assert made.results == "paused"


@pytest.mark.parametrize(
    ("of_others", "then"),
    [
        ([Standing(Results.WRITES, "s", OLD, "s")] * 2, Results.WRITES),
        ([Standing(Results.PAUSED, "s", OLD)] * 2, Results.PAUSED),
        ([Standing(Results.HANDED_OVER, "s", OLD)] * 2, Results.HANDED_OVER),
        ([Standing(Results.WRITES, "s", OLD, "s"), Standing(Results.WAITS, "s", OLD)], None),
        ([Standing(), Standing(Results.PAUSED)], None),
    ],
)
@pytest.mark.parametrize("paused", [True, False])
def test_a_partition_that_the_topic_gets_after_a_switch_stands_as_the_others(
    cluster: Cluster, of_others: list[Standing], then: Results | None, *, paused: bool
) -> None:
    cluster.offsets[NEW] = {p: committed(each) for p, each in zip((P0, P1), of_others, strict=True)}
    made = Switching(NEW, cluster, paused=paused, keeps_state=False)  # type: ignore[arg-type]
    made.assigned({Q0: None})
    standing = Standing.of(made.with_standings([Q0], "")[Q0]) or Standing()
    assert standing.results == (then or (Results.PAUSED if paused else Results.WRITES))
    made.assigned({Q0: OffsetAndMetadata(3)})
    assert (made.paused([Q0]) == [Q0]) is paused, "an offset without a standing is from before"


def test_without_state_each_partition_stands_for_itself_and_a_paused_one_is_not_read(cluster: Cluster) -> None:
    cluster.ask(NEW, ASKED)
    cluster.offsets[OLD] = {P0: committed(Standing(Results.HANDED_OVER, "s", NEW), 9), Q0: committed(Standing(), 4)}
    made = Switching(NEW, cluster, paused=True, keeps_state=False)  # type: ignore[arg-type]
    made.assigned({p: committed(Standing(Results.WAITS, "s", OLD)) for p in (P0, Q0)})
    steps = made.next_steps({P0: 9, Q0: 5})
    assert steps == {P0: Standing(Results.WRITES, "s", OLD, "s")}
    made.record(steps)
    assert made.restrictions == Restrictions({Q0: 5}, frozenset({Q0}), frozenset({Q0}))
    with_state = switching(cluster, NEW, paused=True)
    with_state.assigned({P0: None, Q0: None})
    assert with_state.restrictions.passed_over == frozenset()


def test_a_group_that_waits_for_one_that_is_gone_says_so_once(cluster: Cluster, caplog: Any) -> None:
    made = switching(cluster, OLD)
    made.assigned({p: committed(Standing(Results.HANDED_OVER, "s", NEW)) for p in (P0, P1)})
    for _ in range(3):
        assert made.next_steps({P0: 5, P1: 5}) == {}
    (line,) = (record.message for record in caplog.records)
    assert line.startswith("old: has handed over to new, which has no offsets any more, so no group writes")
    assert "`roster groups reset old --forget-switch`" in line
    cluster.ask(OLD, Request("t", NEW, OLD))
    assert {each.results for each in made.next_steps({P0: 5, P1: 5}).values()} == {Results.WRITES}


def test_partitions_of_one_task_stand_as_one_of_them_says(cluster: Cluster) -> None:
    made = switching(cluster, NEW)
    made.assigned({P0: None, Q0: committed(Standing(Results.PAUSED, "s", OLD)), P1: None})
    assert made.paused([P0, P1, Q0]) == [P0, Q0]


@pytest.mark.parametrize("error", [AuthorizationError("no"), UnreachableError("no broker")])
def test_where_it_cannot_look_a_writer_goes_on_and_a_task_amid_a_switch_waits(
    cluster: Cluster, error: ClientError
) -> None:
    cluster.error = error
    made = switching(cluster, NEW)
    made.assigned({P0: OffsetAndMetadata(5), P1: committed(Standing(Results.WAITS, "s", OLD))})
    assert made.next_steps({P0: 5, P1: 5}) == {}
    assert made.restrictions.limits == {P1: -1}


def test_it_reads_up_to_where_the_other_group_has_stopped_and_then_writes(cluster: Cluster) -> None:
    cluster.ask(NEW, ASKED)
    cluster.offsets[OLD] = {p: committed(Standing(Results.HANDED_OVER, "s", NEW), 9) for p in (P0, Q0)}
    made = switching(cluster, NEW)
    made.assigned({p: committed(Standing(Results.WAITS, "s", OLD)) for p in (P0, Q0)})
    assert made.next_steps({P0: 5, Q0: 9}) == {}
    assert made.restrictions.limits == {P0: 9, Q0: 9}
    made.assigned({p: committed(Standing(Results.WAITS, "s", OLD)) for p in (P0, Q0)})
    steps = made.next_steps({P0: 9, Q0: 9})
    assert steps == dict.fromkeys([P0, Q0], Standing(Results.WRITES, "s", OLD, "s"))
    assert made.paused([P0]) == [P0], "until that is committed"
    made.record(steps)
    assert made.paused([P0]) == []
    assert made.restrictions.limits == {}
