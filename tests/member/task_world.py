"""A group of tasks in virtual time: members, a coordinator, logs that grow, and stores that are restored from them."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from roster.member.events import RebalanceRequested
from roster.member.task_assignor import HeldTasks, TaskAssignor
from roster.member.task_options import TaskOptions
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from tests.member.simulated_group import Actor, Faults, World

ACCEPTABLE = 50
TICK = 400
SUBTOPOLOGIES = (Subtopology(0, ("orders", "prices"), ("totals", "last")), Subtopology(1, ("clicks",)))


class TaskWorld(World):
    """The world of a group of tasks; `restored` has the position of every store on every member's disk."""

    def __init__(self, seed: int, partitions: int, faults: Faults | None = None, **options: object) -> None:
        topics = {"orders": partitions, "prices": partitions, "clicks": partitions}
        super().__init__(seed, topics, faults or Faults())
        self.options = TaskOptions(
            **{"subtopologies": SUBTOPOLOGIES, "acceptable_lag": ACCEPTABLE} | options  # type: ignore[arg-type]
        )
        self.assignors: dict[str, TaskAssignor] = {}
        self.restored: defaultdict[str, dict[TaskId, int]] = defaultdict(dict)
        self.ends = {TaskId(0, number): 1_000 for number in range(partitions)}
        self.speed = 150
        """Records restored in a tick, per store."""
        self.batch = 0
        """Milliseconds of a batch that an application finishes after a pause before it reports."""

    def start(
        self, name: str, process: bytes | None = None, kind: type[TaskAssignor] = TaskAssignor, **options: object
    ) -> Actor:
        """Start a member, with what is on its disk."""
        identity = process or Random(f"{name}").randbytes(16)
        tasks = TaskOptions(
            subtopologies=self.options.subtopologies,
            standbys=self.options.standbys,
            acceptable_lag=self.options.acceptable_lag,
            max_warmups=self.options.max_warmups,
            host=f"{name}:80",
        )
        assignor = self.assignors[name] = kind(tasks, identity, self.gaps(name))
        actor = self.join(name, (assignor,), **options)
        self.after(TICK, lambda: self._work(actor))
        return actor

    def gaps(self, name: str) -> dict[TaskId, int]:
        return {task: self.ends[task] - position for task, position in self.restored[name].items()}

    def held(self, actor: Actor) -> HeldTasks:
        return self.assignors[actor.name].held(actor.owns.partitions, actor.owns.revoking)

    def _work(self, actor: Actor) -> None:
        if not actor.alive or actor.stopped:
            return
        if self.now >= actor.paused_until + self.batch:
            held, stores = self.held(actor), self.restored[actor.name]
            for task in held.active | held.revoking | held.standby:
                if task.subtopology:
                    continue
                stores[task] = min(stores.get(task, 0) + self.speed, self.ends[task])
                if task in held.active and stores[task] == self.ends[task]:
                    self.ends[task] += 10
                    stores[task] += 10
            running = held.active | held.revoking
            if (reason := self.assignors[actor.name].report(self.gaps(actor.name), running)) is not None:
                actor.feed(RebalanceRequested(reason))
        self.after(TICK, lambda: self._work(actor))

    def copies(self) -> dict[TaskId, list[Actor]]:
        """{task with state: members that keep a copy which has caught up, the owner's among them}."""
        found: dict[TaskId, list[Actor]] = {task: [] for task in self.ends}
        for actor in self.living:
            held, stores = self.held(actor), self.restored[actor.name]
            for task in held.active | held.revoking | held.standby:
                if task in stores and self.ends[task] - stores[task] <= ACCEPTABLE:
                    found[task].append(actor)
        return found

    def owner(self, task: TaskId) -> Actor | None:
        return next((actor for actor in self.living if task in self.held(actor).active), None)

    def _check_balance(self, living: list[Actor]) -> None:
        """L4: tasks with state are even, and so are those without, as alike members have them."""
        for subtopology in (each.number for each in self.options.subtopologies):
            sizes = [sum(task.subtopology == subtopology for task in self.held(actor).active) for actor in living]
            assert max(sizes) - min(sizes) <= 1, f"L4: sub-topology {subtopology}: {sizes}"

    def run_watching(self, ms: int, least: int) -> None:
        """Run and check ten times a second: each task with state has at least so many caught-up copies."""
        end = self.now + ms
        while self.now < end:
            self.run(100)
            for task, warm in self.copies().items():
                assert len(warm) >= least, f"{task} at {self.now}: {[actor.name for actor in warm]}"
