"""Members that run tasks, on Roster's broker and on Apache Kafka: join, leave, death, and what a warm copy is for."""

from __future__ import annotations

import contextlib

import pytest

from roster.client import (
    Admin,
    AssignmentError,
    AuthorizationError,
    OptionError,
    Subtopology,
    TaskId,
    TaskMember,
    TaskOptions,
    UnreachableError,
    task_gaps,
)
from roster.model import TopicPartition
from tests.client.task_application import TASKS, TIMES, Application, applications
from tests.waiting import until


def spread(running: list[Application]) -> list[list[TaskId]]:
    return [sorted(application.member.tasks().active) for application in running]


def all_run(running: list[Application]) -> bool:
    return sorted(task for tasks in spread(running) for task in tasks) == TASKS


def warm(running: list[Application]) -> bool:
    """Restore everything; True once each task has a standby copy that has caught up, and nothing is given up."""
    for application in running:
        application.restore()
    held = [application.member.tasks() for application in running]
    copies = sorted(task for each in held for task in each.standby - each.restoring)
    return copies == TASKS and not any(each.revoking or each.restoring for each in held)


def test_tasks_move_to_warm_copies_only_and_a_death_is_taken_over_from_one(cluster):
    topic = cluster.create_topic("task-member", 4)
    group = f"g-{topic}"
    with applications() as running, Admin(cluster.bootstrap) as admin:
        running.append(Application(cluster.bootstrap, group, topic))
        assert spread(running) == [TASKS]
        running.append(Application(cluster.bootstrap, group, topic))
        until(lambda: len(running[1].member.tasks().restoring) == 4, what="the new one restores copies")
        assert spread(running) == [TASKS, []], "nothing moves to a copy that has not caught up"
        running[1].restore()
        until(lambda: sorted(map(len, spread(running))) == [2, 2], what="moved once the copies have caught up")
        until(lambda: warm(running) and all_run(running), what="each task runs, and has a warm copy")
        shown = {p.partition for m in admin.describe_group(group).members for p in m.assignment}
        assert shown == {0, 1, 2, 3}, "what every Kafka tool sees"
        dead = running.pop(0)
        dead.close(leave=False)
        until(lambda: spread(running) == [TASKS], what="the warm copies take over")
        assert running[0].gaps == dict.fromkeys(TASKS, 0)
        assert not running[0].member.tasks().restoring
        assert {str(host) for host in running[0].member.tasks().by_host} == {"h:1"}


def test_another_topology_ends_the_member_that_has_it_and_no_other(cluster):
    topic = cluster.create_topic("task-topology", 4)
    with applications() as running:
        running.append(Application(cluster.bootstrap, f"g-{topic}", topic))
        other = cluster.create_topic("task-other", 4)
        options = TaskOptions(subtopologies=[Subtopology(0, [topic]), Subtopology(1, [other])])
        with pytest.raises(AssignmentError, match="leader runs another topology than this member, which reads"):
            TaskMember(cluster.bootstrap, f"g-{topic}", options, gaps=dict, **TIMES).start()
        until(lambda: spread(running) == [TASKS], what="the others go on")
        assert running[0].member.ownership().error is None


def test_gaps_are_worked_out_from_the_logs(cluster):
    topic = cluster.create_topic("task-changelog", 2)
    cluster.produce({(topic, 0): 3})
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Admin(cluster.bootstrap) as admin:
        stores = {TaskId(0, 0): {first: 1}, TaskId(0, 1): {first: None, second: 0}, TaskId(0, 2): {}}
        assert task_gaps(admin, stores) == {TaskId(0, 0): 2, TaskId(0, 1): 3, TaskId(0, 2): 0}


def test_a_broker_that_is_away_while_gaps_are_worked_out_is_waited_for(roster_broker):
    topic, answers = roster_broker.create_topic(partitions=1), [UnreachableError("nobody there")] * 2

    def gaps():
        if answers:
            raise answers.pop()
        return {}

    options = TaskOptions(subtopologies=[Subtopology(0, [topic])])
    member = TaskMember(roster_broker.bootstrap, f"g-{topic}", options, gaps=gaps, **TIMES)
    with contextlib.closing(member):
        member.start()
        assert member.tasks().active == {TaskId(0, 0)}
    for error, seconds in ((UnreachableError("nobody there"), 0.0), (AuthorizationError("not allowed"), 60.0)):
        answers.append(error)
        with pytest.raises(type(error)):
            TaskMember(roster_broker.bootstrap, f"g-{topic}", options, gaps=gaps, **TIMES).start(seconds)


def test_options_that_are_none():
    options = TaskOptions(subtopologies=[Subtopology(0, ["orders"])])
    with pytest.raises(OptionError, match="reads the topics of its sub-topologies"):
        TaskMember("localhost:1", "g", options, gaps=dict).subscribe(["other"])
    with pytest.raises(OptionError, match="must be TaskOptions, not dict"):
        TaskMember("localhost:1", "g", {}, gaps=dict)  # type: ignore[arg-type]
