"""A member joins again when a store has caught up: once, at that moment, and by no clock."""

from roster.assignors.tasks import Client, TaskProblem, assign
from roster.member.task_assignor import CatchUp
from roster.model.tasks import RUNNING, TaskId

ONE, TWO, THREE = (TaskId(0, number) for number in range(3))


def test_each_task_is_told_once_when_its_gap_comes_within_the_acceptable_lag():
    catch_up = CatchUp(100)
    catch_up.assigned([ONE, TWO, THREE], {ONE: 5_000, TWO: 100})
    assert catch_up.caught_up({ONE: 101, TWO: 0, THREE: 9_000}) == []
    assert catch_up.caught_up({ONE: 100, THREE: 50}) == [ONE, THREE]
    assert catch_up.caught_up({ONE: 0, THREE: 0}) == []


def test_a_gap_that_grows_again_waits_for_the_next_assignment():
    catch_up = CatchUp(100)
    catch_up.assigned([ONE], {ONE: 50})
    assert catch_up.caught_up({ONE: 500}) == []
    assert catch_up.caught_up({ONE: 50}) == []
    catch_up.assigned([ONE], {ONE: 500})
    assert catch_up.caught_up({ONE: 50}) == [ONE]


def test_a_task_that_is_not_restored_here_any_more_asks_for_nothing():
    catch_up = CatchUp(100)
    catch_up.assigned([ONE], {})
    catch_up.assigned([], {})
    assert catch_up.caught_up({ONE: 0}) == []


def test_a_standby_that_is_restored_is_told_too_though_no_task_waits_for_it():
    """With racks, a plan made while stores are restored may leave a better place for a copy to the next one."""
    clients = {"a": Client(1, {ONE: RUNNING}), "b": Client(1)}
    plan = assign(TaskProblem([ONE], [], clients, standbys=1, acceptable_lag=100))
    assert (plan.followup, plan.clients["b"].standby) == (False, [ONE])
    catch_up = CatchUp(100)
    catch_up.assigned(plan.clients["b"].standby, {})
    assert catch_up.caught_up({ONE: 100}) == [ONE]


def test_a_join_ends_in_as_many_rebalances_as_warm_ups_catch_up_and_one():
    """A third client joins two that run six tasks; its stores catch up one after the other."""
    tasks = [TaskId(0, number) for number in range(6)]
    gaps = {"a": dict.fromkeys(tasks[:3], RUNNING), "b": dict.fromkeys(tasks[3:], RUNNING), "c": {}}
    catch_up = CatchUp(100)
    rebalances = 0
    for _ in range(20):
        plan = assign(
            TaskProblem(tasks, [], {name: Client(1, lags) for name, lags in gaps.items()}, acceptable_lag=100)
        )
        rebalances += 1
        if not plan.followup:
            break
        restoring = plan.clients["c"].warmup
        catch_up.assigned(restoring, gaps["c"])
        held = {task: gaps["c"].get(task, 10_000) for task in restoring}
        held[min(restoring, key=held.__getitem__)] = 0
        assert len(catch_up.caught_up(held)) == 1
        for name, each in plan.clients.items():
            gaps[name] = dict.fromkeys(each.active, RUNNING) | (held if name == "c" else {})
    assert [len(each.active) for each in plan.clients.values()] == [2, 2, 2]
    assert rebalances == 3
