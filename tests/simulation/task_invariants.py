"""What must hold of tasks with state, each as a function named after its sentence; it raises BrokenInvariant."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from roster.model.tasks import TaskId
from tests.simulation.errors import broken

Tasks = Mapping[str, frozenset[TaskId]]


def a_task_has_one_active_owner(generation: int, active: Tasks) -> None:
    """No task is active in two members of one generation."""
    owners: dict[TaskId, str] = {}
    for member, tasks in active.items():
        for task in tasks:
            if owners.setdefault(task, member) != member:
                broken(
                    "a task has one active owner",
                    f"generation {generation} runs task {task} in {owners[task]} and in {member}",
                )


def an_active_task_goes_to_a_caught_up_copy(task: TaskId, warm: Collection[str], active: Tasks) -> None:
    """A task is run where it runs or its copy has caught up, as long as any member says so of itself."""
    if not warm:
        return
    for member, tasks in active.items():
        if task in tasks and member not in warm:
            broken(
                "an active task goes to a caught-up copy",
                f"task {task} goes to {member}, and {sorted(warm)} have caught up",
            )


def a_caught_up_copy_is_kept_until_another_has_caught_up(
    task: TaskId, warm: Collection[str], copies: Tasks, wanted: int
) -> None:
    """Of the copies that have caught up so many stay as are promised, however many others are restored."""
    kept = [member for member in warm if task in copies.get(member, ())]
    if len(kept) < min(len(warm), wanted):
        broken(
            "a caught-up copy is kept until another has caught up",
            f"of task {task} {sorted(warm)} have caught up, {wanted} are promised, {sorted(kept)} keep it",
        )


def a_member_joins_with_the_gaps_of_its_stores(
    name: str, lags: Mapping[TaskId, int], reported: Mapping[TaskId, int], runs: Collection[TaskId], acceptable: int
) -> None:
    """A JoinGroup names each store with its gap, and no other; tasks that run have none once they have caught up."""
    for task, lag in lags.items():
        if lag != reported.get(task) and not (task in runs and lag == 0 and reported.get(task, 0) <= acceptable):
            broken(
                "a member joins with the gaps of its stores",
                f"{name} joins with a gap of {lag} for task {task}, which is {reported.get(task, 'not there')}",
            )
    if forgotten := sorted(reported.keys() - lags.keys()):
        broken("a member joins with the gaps of its stores", f"{name} joins without its store of task {forgotten[0]}")
