"""Defects of groups that run tasks with state, each as a patch of the product that the simulator must find."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roster.member import task_leader
from roster.member.task_assignor import CatchUp, TaskAssignor
from roster.model.tasks import RUNNING, STATELESS
from tests.testing.planted_bugs import AT_REST, AT_REST_AGAIN, PlantedBug, instead, wrapped

if TYPE_CHECKING:
    import pytest

TO_CAUGHT_UP = "an active task goes to a caught-up copy"
KEPT = "a caught-up copy is kept until another has caught up"
GAPS = "a member joins with the gaps of its stores"
ONE_ACTIVE = "a task has one active owner"


def gaps_not_looked_at(assign: Any) -> Any:
    return lambda problem: assign(replace(problem, acceptable_lag=1 << 40))


def standbys_forgotten(assign: Any) -> Any:
    return lambda problem: assign(replace(problem, standbys=0))


def standby_given_up_before_its_task_comes(patch: pytest.MonkeyPatch) -> None:
    keep_open = task_leader._Leading._keep_open

    def forgetful(self: Any, shares: Any, withheld: Any) -> None:
        before = {member: list(share.standby) for member, share in shares.items()}
        keep_open(self, shares, withheld)
        for member, share in shares.items():
            share.standby = before[member]

    patch.setattr(task_leader._Leading, "_keep_open", forgetful)


def a_task_assigned_is_taken_for_caught_up(on_assignment: Any) -> Any:
    def taken(self: TaskAssignor, partitions: Any, *more: Any) -> Any:
        reason = on_assignment(self, partitions, *more)
        self._gaps |= self.with_state(dict.fromkeys(self.options.tasks_of(partitions), 0))
        return reason

    return taken


def every_member_runs_one_task(answers: Any) -> Any:
    def greedy(self: Any, shares: Any, *more: Any) -> Any:
        taken = sorted(task for task in self.sources if task.subtopology in self.options.with_state)[:1]
        given = {
            member: task_leader._Share(sorted({*share.active, *taken}), share.standby)
            for member, share in shares.items()
        }
        return answers(self, given, *more)

    return greedy


TASK_BUGS = [
    PlantedBug(
        "place tasks whatever the gaps", (TO_CAUGHT_UP, KEPT), 141, wrapped(task_leader, "assign", gaps_not_looked_at)
    ),
    PlantedBug("forget the standby tasks", (KEPT,), 40, wrapped(task_leader, "assign", standbys_forgotten)),
    PlantedBug("give a standby up before its task comes", (KEPT,), 40, standby_given_up_before_its_task_comes),
    PlantedBug(
        "never ask for the follow-up", (AT_REST, AT_REST_AGAIN), 107, instead(CatchUp, "caught_up", lambda *_: [])
    ),
    PlantedBug(
        "take a task for caught up once it is assigned",
        (GAPS,),
        107,
        wrapped(TaskAssignor, "on_assignment", a_task_assigned_is_taken_for_caught_up),
    ),
    PlantedBug(
        "take an owner that restores its store for caught up",
        (GAPS,),
        40,
        instead(TaskAssignor, "_lag_where_it_runs", lambda _, task: STATELESS if task.subtopology else RUNNING),
    ),
    PlantedBug(
        "run a task in every member",
        (ONE_ACTIVE,),
        40,
        wrapped(task_leader._Leading, "_answers", every_member_runs_one_task),
    ),
]
