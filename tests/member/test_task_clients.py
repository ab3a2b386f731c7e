"""Members of a task group, read from their bytes, as the clients of a TaskProblem."""

from __future__ import annotations

from roster.assignors.tasks import Client, TaskProblem, assign
from roster.member.task_leader import members_by_process, running_tasks, task_clients
from roster.model import TopicPartition
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire.streams.subscription_info import SubscriptionInfo, decode_subscription_info, encode_subscription_info

ONE, TWO = bytes(16), bytes(range(16))
FIRST, SECOND = "00000000-0000-0000-0000-000000000000", "00010203-0405-0607-0809-0a0b0c0d0e0f"


def ids(*texts):
    return [TaskId.parse(text) for text in texts]


def lags(**by_task):
    return {TaskId.parse(task.removeprefix("t")): lag for task, lag in by_task.items()}


def said(process, **by_task):
    tasks = TaskLags.of(lags(**by_task))
    info = SubscriptionInfo(version=5, latest_supported=5, process_id=process, tasks=tasks)
    return decode_subscription_info(encode_subscription_info(info))


def test_the_members_of_one_process_are_the_threads_of_one_client():
    told = {"c": said(TWO, t0_1=7), "b": said(ONE, t0_0=RUNNING), "a": said(TWO, t1_0=STATELESS)}
    assert members_by_process(told) == {SECOND: ["a", "c"], FIRST: ["b"]}
    assert task_clients(told) == {
        FIRST: Client(1, {TaskId(0, 0): 0}),  # by the document an active task is one without a gap
        SECOND: Client(2, {TaskId(0, 1): 7, TaskId(1, 0): STATELESS}),
    }


def test_of_what_several_threads_say_the_best_holds_in_any_order():
    told = {
        "a": said(ONE, t0_0=9, t0_1=RUNNING, t0_2=0, t0_3=5),
        "b": said(ONE, t0_0=4, t0_1=3, t0_2=STATELESS, t0_3=5),
        "c": said(ONE, t0_3=6, t0_4=1),
    }
    best = {"0_0": 4, "0_1": 0, "0_2": STATELESS, "0_3": 5, "0_4": 1}
    for members in ("abc", "cba", "bca"):
        (client,) = task_clients({name: told[member] for name, member in zip("xyz", members, strict=True)}).values()
        assert client == Client(3, {TaskId.parse(task): lag for task, lag in best.items()})


def test_a_member_from_the_future_is_no_client_yet():
    future = decode_subscription_info(bytes.fromhex("00000006 00000006"))
    assert task_clients({"a": future, "b": said(ONE)}) == {FIRST: Client(1, {})}
    assert members_by_process({"a": future}) == {}


def test_what_members_say_is_placed_where_it_is():
    told = {"a": said(ONE, t0_0=RUNNING, t1_0=STATELESS), "b": said(TWO, t0_1=RUNNING, t1_1=STATELESS)}
    plan = assign(TaskProblem(ids("0_0", "0_1"), ids("1_0", "1_1"), task_clients(told)))
    assert plan.clients[FIRST].active == ids("0_0", "1_0")
    assert plan.clients[SECOND].active == ids("0_1", "1_1")
    assert not plan.followup


def test_an_owner_that_restores_a_task_is_as_far_behind_as_it_says():
    told = {"a": said(ONE, t0_0=501, t0_1=500), "b": said(ONE, t0_2=900), "c": said(TWO, t0_0=3)}
    running = {"a": ids("0_0", "0_1", "0_2")}
    assert task_clients(told, running, acceptable_lag=500) == {
        FIRST: Client(2, lags(t0_0=501, t0_1=RUNNING, t0_2=900), restoring=frozenset(ids("0_0", "0_2"))),
        SECOND: Client(1, lags(t0_0=3)),
    }


def test_who_runs_a_task_owns_its_source_partitions():
    """An active task and a standby task without a gap both say 0."""
    t = [TopicPartition("t", number) for number in range(3)]
    u = TopicPartition("u", 0)
    sources = {TaskId(0, 0): [t[0], u], TaskId(0, 1): [t[1]], TaskId(0, 2): [t[2]]}
    running = running_tasks({"a": [t[0], u, t[1]], "b": [t[2], TopicPartition("gone", 0)], "c": [u]}, sources)
    assert running == {"a": ids("0_0", "0_1"), "b": ids("0_2"), "c": []}
    told = {"a": said(ONE, t0_0=RUNNING, t0_1=STATELESS, t0_2=0), "b": said(TWO, t0_0=0), "c": said(TWO)}
    assert task_clients(told, running) == {
        FIRST: Client(1, {TaskId(0, 0): RUNNING, TaskId(0, 1): STATELESS, TaskId(0, 2): 0}),
        SECOND: Client(2, {TaskId(0, 0): 0, TaskId(0, 2): RUNNING}),
    }
