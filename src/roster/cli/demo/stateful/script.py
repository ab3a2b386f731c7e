"""The stateful demo's steps in order: two applications share the tasks and keep copies of each other's state, one is
killed, the other goes on with its copies, the results are compared. Every step waits for a condition.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from roster.cli.demo import oracle
from roster.cli.demo.environment import Environment, Workload, free_port
from roster.cli.demo.script import STREAM_S
from roster.cli.demo.stage import Stage
from roster.cli.demo.stateful.jobs import JOBS, flights_in_file
from roster.cli.demo.stateful.questions import ask
from roster.cli.demo.stateful.state import StatefulApplication, StatefulState
from roster.cli.errors import Failure
from roster.client import Admin, ClientError
from roster.console import Away, Snapshot
from roster.model import Address, TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from roster.cli.demo.processes import ChildMessage
    from roster.cli.demo.view import View

NAMES = ("A", "B")
DIES_AT = 0.4


class GroupSeen(NamedTuple):
    """A look at one of the groups."""

    group: str
    seen: Snapshot | Away | ClientError


@dataclass(frozen=True, slots=True)
class StatefulVerdict:
    """Result of the comparison: of each job a verdict over its groups."""

    records: int
    verdicts: dict[str, oracle.Verdict]
    late: int

    @property
    def holds(self) -> bool:
        """All results are equal to the plain computation."""
        return all(verdict.holds for verdict in self.verdicts.values()) and not self.late

    def __str__(self) -> str:
        groups = " and ".join(f"{verdict.groups:,} {nouns}" for nouns, verdict in self.verdicts.items())
        if self.holds:
            return f"{self.records:,} flights, the state of {groups} equals a plain computation"
        wrong = "; ".join(f"{nouns}: {verdict}" for nouns, verdict in self.verdicts.items())
        return f"{self.records:,} flights, NOT equal to a plain computation: {wrong}; {self.late} late"


class StatefulEnvironment(Environment):
    """Directory, ports and children of one run; each application has a disk of its own."""

    def __init__(self, directory: Path, workload: Workload, partitions: int) -> None:
        super().__init__(directory, workload, partitions)
        self._servers: dict[tuple[str, str], Address] = {}

    def put_in_order(self, records: int | None) -> None:
        """Stream the first flights, or all (None), month after month: the package's file has 10 before 2."""
        path = self.directory / "flights.csv"
        with zipfile.ZipFile(self.workload.path) as archive, archive.open(archive.namelist()[0]) as whole:
            heading, *flights = whole
        flights.sort(key=lambda line: int(line.split(b",", 2)[1]))
        path.write_bytes(heading + b"".join(flights[:records]))
        self.workload = replace(self.workload, path=path)

    def start_stateful(self, name: str) -> None:
        """Start one of the PySpark applications."""
        state = str(self.directory / f"state-{name}")
        module = "roster.cli.demo.stateful.application"
        servers = [word for job in JOBS for word in ("--server", str(self.server(name, job.group)))]
        self.start_module(name, module, "--name", name, "--bootstrap", self.bootstrap, "--state-dir", state, *servers)

    def server(self, name: str, group: str) -> Address:
        """Return where an application answers queries of a group's state."""
        return self._servers.setdefault((name, group), Address("127.0.0.1", free_port()))

    def start_loaders(self, path: Path, rate: float) -> None:
        """Start a `roster load` of the file for each job's topic."""
        for job in JOBS:
            self.load(f"loader of {job.topic}", path, job.topic, (job.key,), rate)


class StatefulScript(Stage[StatefulState, GroupSeen]):
    """One run of the demo; `run` returns the verdict or raises Failure."""

    environment: StatefulEnvironment

    def __init__(
        self, environment: StatefulEnvironment, view: View[StatefulState], rate: float | None, deadline_s: float
    ) -> None:
        super().__init__(environment, view, StatefulState({job.group: {} for job in JOBS}), deadline_s)
        self.environment, self.rate = environment, rate

    def run(self) -> StatefulVerdict:
        """Run every step and compare the results."""
        try:
            self._open_topics([topic for job in JOBS for topic in (job.topic, job.output)])
            with contextlib.ExitStack() as lookers:
                for job in JOBS:
                    partitions = [TopicPartition(job.topic, number) for number in range(self.environment.partitions)]
                    lookers.enter_context(self._looker(job.group, partitions, partial(self._saw, job.group)))
                expected = self._two_share()
                asked = self._ask_across()
                self._one_dies()
                self._all_is_counted()
                self._ask_again(asked, expected)
                self._stop(NAMES[0])
            return self._compare(expected)
        finally:
            self.view.close(self.state)

    def _saw(self, group: str, seen: Snapshot | Away | ClientError) -> None:
        self.environment.inbox.put(GroupSeen(group, seen))

    def _two_share(self) -> dict[str, oracle.Groups]:
        state, path = self.state, self.environment.workload.path
        for name in NAMES:
            state.applications[name] = StatefulApplication(name)
            self.environment.start_stateful(name)
            self._happened(f"PySpark application {name} starts, with a pipeline for each group and a disk of its own")
        flights = flights_in_file(path)
        state.total = len(flights)
        expected = {job.group: job.expected(flights) for job in JOBS}
        # The stream begins when there are tasks: a slow machine would have all of it in the topics before.
        self._wait("A and B share the tasks", lambda: state.shared_by(set(NAMES)))
        self._happened("A and B share the tasks of both groups")
        rate = self.rate or max(1.0, state.total / STREAM_S)
        self.environment.start_loaders(path, rate)
        self._happened(f"{state.total:,} flights of {path.name} into each topic, at {rate:,.0f} a second")
        return expected

    def _ask_across(self) -> dict[str, Any]:
        """Ask one application for an aircraft whose task runs in the other; return the aircraft's row."""
        job = JOBS[0]
        one, other = (self.environment.server(name, job.group) for name in NAMES)
        row: dict[str, Any] = {}

        def answered() -> bool:
            there = ask(other, f"/stores/{job.store}/prefix", limit="1", local="true")
            if not there or not there["rows"]:
                return False
            key = there["rows"][0][job.key]
            answer = ask(one, f"/stores/{job.store}/get", key=key)
            if answer is None or ask(one, f"/stores/{job.store}/get", key=key, local="true") is not None:
                return False
            row.update(answer["row"])
            if row[job.key] != key or row["flights"] < there["rows"][0]["flights"]:
                raise Failure(f"{NAMES[0]} answers {row}, {NAMES[1]} had {there['rows'][0]} before")
            return True

        self._wait(f"{NAMES[0]} answers for a task of {NAMES[1]}", answered)
        at = f"http://{one}/stores/{job.store}/get?key={row[job.key]}"
        self._happened(f"{at}: {row['flights']} flights so far, asked of {NAMES[0]}, kept in {NAMES[1]}")
        return row

    def _ask_again(self, asked: dict[str, Any], expected: dict[str, oracle.Groups]) -> None:
        """Ask the survivor for the same aircraft, whose task it runs now."""
        job = JOBS[0]
        server, path = self.environment.server(NAMES[0], job.group), f"/stores/{job.store}/get"
        answers: list[dict[str, Any]] = []

        def answered() -> bool:
            if (answer := ask(server, path, key=asked[job.key])) is not None:
                answers.append(answer["row"])
            return bool(answers)

        self._wait(f"{NAMES[0]} answers", answered)
        if not job.groups([json.dumps(answers[0]).encode()]).items() <= expected[job.group].items():
            raise Failure(f"{NAMES[0]} answers {answers[0]}, which is not what a plain computation gives")
        self._happened(f"asked again, {NAMES[0]} says {answers[0]['flights']} flights, as the plain computation")

    def _one_dies(self) -> None:
        state, (heir, victim) = self.state, NAMES
        self._wait(
            f"{DIES_AT:.0%} are counted and each task has a copy that has caught up",
            lambda: state.share >= DIES_AT and state.is_covered() and state.shared_by(set(NAMES)),
        )
        moving = state.tasks_of(victim)
        gaps = sum(state.copies(group, number).get(heir, 0) for group, number in moving)
        before = state.applications[heir].restored
        self.environment.children[victim].kill()
        state.killed(victim)
        self._happened(
            f"{victim} is killed with -9 at {state.share:.0%}: it ran {len(moving)} tasks, whose copies in {heir} were"
            f" {gaps:,} changelog records behind"
        )
        self._wait(f"{heir} runs all tasks", lambda: state.shared_by({heir}))
        at = {task: state.groups[task[0]][task[1]].committed for task in moving}
        self._happened(f"the session of {victim} has ended: {heir} goes on with its copies")

        def has_gone_on() -> bool:
            tasks = [(state.groups[group][number], at[group, number]) for group, number in moving]
            return all(task.committed > then or not task.lag for task, then in tasks)

        self._wait(f"{heir} has results of all of them", has_gone_on)
        replayed = state.applications[heir].restored - before
        self._happened(
            f"{heir} has results of all of them: {replayed:,} of {self._changes():,} changelog records replayed"
        )

    def _changes(self) -> int:
        partitions = [
            TopicPartition(job.changelog, number) for job in JOBS for number in range(self.environment.partitions)
        ]
        with Admin(self.environment.bootstrap) as admin:
            return sum(admin.end_offsets(partitions).values())

    def _all_is_counted(self) -> None:
        self._wait("all flights are counted", lambda: self.state.is_counted)
        self._happened(f"all flights are counted: {self.state.counted:,} records in both groups")

    def _stop(self, name: str) -> None:
        child = self.environment.children[name]
        child.terminate()
        self.state.applications[name].status = "stopping"
        self._wait(f"{name} has left", lambda: self._left_cleanly(child))
        self.state.applications[name].status = "stopped"
        self.state.waiting = ""

    def _compare(self, expected: dict[str, oracle.Groups]) -> StatefulVerdict:
        bootstrap = self.environment.bootstrap
        verdicts = {job.nouns: oracle.compare(expected[job.group], job.results(bootstrap)) for job in JOBS}
        self._happened("the last result of each key compared with a plain computation of the file")
        return StatefulVerdict(self.state.total, verdicts, sum(app.late for app in self.state.applications.values()))

    def _hear_child(self, said: ChildMessage) -> None:
        if said.child in self.state.applications:
            self.state.hear_application(said.child, said.message)
        else:
            self.state.loaded[said.child] = said.message.get("acknowledged", 0)

    def _hear_group(self, seen: GroupSeen) -> None:
        if isinstance(seen.seen, ClientError):
            raise Failure(f"group {seen.group}: {seen.seen}")
        self.state.hear_group(seen.group, seen.seen)
