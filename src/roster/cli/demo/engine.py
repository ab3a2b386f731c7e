"""The engine of all demos: starts children, hears them and their groups, waits with one deadline, compares results."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING, NamedTuple

from roster.cli.demo import oracle
from roster.cli.demo.processes import ChildMessage
from roster.cli.demo.state import Application, DemoState, Group, in_words
from roster.cli.errors import Failure, one_line
from roster.cli.signals import check_interrupted
from roster.client import Admin, ClientError
from roster.console.looking import Looker
from roster.console.snapshot import Away, Snapshot
from roster.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.cli.demo.environment import Environment, Expected
    from roster.cli.demo.jobs import Job
    from roster.cli.demo.processes import Child
    from roster.cli.groups.live import View

STREAM_S = 30.0
_TICK_S = 0.1
_LOOK_EVERY_S, _LOOK_TIMEOUT_S = 0.5, 3.0


class GroupSeen(NamedTuple):
    """A look at one of the groups."""

    group: str
    seen: Snapshot | Away | ClientError


class Demo:
    """One run of a demo. A demo of its own has `play`, which takes its steps; every step waits for a condition."""

    def __init__(
        self,
        environment: Environment,
        open_view: Callable[[DemoState], View],
        rate: float | None,
        deadline_s: float,
    ) -> None:
        self.environment, self.rate, self.deadline_s = environment, rate, deadline_s
        self.jobs = environment.workload.jobs
        groups = {job.group: Group(environment.partitions) for job in self.jobs}
        self.state = DemoState(groups, copied=any(job.store for job in self.jobs))
        self.started, self._shown = time.monotonic(), 0
        self.view = open_view(self.state)

    def play(self) -> None:
        """Take the steps from the first application's start until all is counted."""
        raise NotImplementedError

    def run(self) -> oracle.Outcome:
        """Run every step and compare the output, or raise Failure."""
        try:
            self._open_topics([name for job in self.jobs for name in (job.topic, job.output) if name])
            with contextlib.ExitStack() as lookers:
                for job in self.jobs:
                    lookers.enter_context(self._looker(job))
                self.play()
            self._all_leave()
            self.before_comparison()
            verdicts = {job.nouns: self._compare(job) for job in self.jobs}
            groups = ", ".join(f"{verdict.groups:,} {nouns}" for nouns, verdict in verdicts.items())
            self.happened(f"compared with a plain computation of the file: {groups}")
            self.environment.children["broker"].terminate()
            self._await_end(self.environment.children["broker"])
            self.state.broker = "stopped"
            late = sum(app.late for app in self.state.applications.values())
            return oracle.Outcome(self.state.total, verdicts, late)
        finally:
            self._show()
            self.view.close()

    def before_comparison(self) -> None:
        """Check the output once all applications have left."""

    # Steps that all demos have.

    def start(self, *names: str, held: str = "") -> None:
        """Start applications, `held` being held back, and compute the expected results beside the first ones."""
        for name in names:
            self.state.applications[name] = Application(name)
            self.environment.start_application(name, held=name == held)
            self.happened(f"PySpark application {name} starts")
        if not self.state.total:
            self.expected: Expected = self.environment.workload.expected()
            self.state.total = self.expected.records
        if not self.state.total:
            raise Failure(f"--input: {self.environment.workload.path} holds no records")

    def stream(self) -> list[Child]:
        """Start a loader for each topic."""
        total, rate = self.state.total, self.rate or max(1.0, self.state.total / STREAM_S)
        into_each = " into each topic," if len(self.jobs) > 1 else ""
        loaders = [self.environment.start_loader(job, rate) for job in self.jobs]
        self.happened(f"{total:,} records of {self.environment.workload.path.name}{into_each} at {rate:,.0f} a second")
        return loaders

    def all_is_counted(self) -> None:
        """Wait until each group has counted the whole file."""
        self.wait("all records are counted", lambda: self.state.is_counted)
        self.happened(f"all {self.state.counted:,} records are counted")

    def happened(self, text: str) -> None:
        """Record and show an event."""
        self.state.now = time.monotonic() - self.started
        self.state.happened(text)
        self._show()

    def wait(self, what: str, is_seen: Callable[[], bool]) -> None:
        """Let the demo run until something is seen."""
        self.state.waiting = what
        while not is_seen():
            self._listen(_TICK_S)
            check_interrupted()
            self.environment.check_children()
            if self.state.now > self.deadline_s:
                raise Failure(
                    f"--deadline: {self.deadline_s:g} s passed while waiting until {what} ({self.state.figures()})"
                )
        self.state.waiting = ""

    def _looker(self, job: Job) -> Looker:
        def report(look: Snapshot | Away | ClientError) -> None:
            self.environment.inbox.put(GroupSeen(job.group, look))

        partitions = [TopicPartition(job.topic, number) for number in range(self.environment.partitions)]
        every_s, timeout_s = _LOOK_EVERY_S, _LOOK_TIMEOUT_S
        bootstrap = self.environment.bootstrap
        return Looker(bootstrap, job.group, report, every_s=every_s, timeout_s=timeout_s, also=partitions)

    def _open_topics(self, topics: list[str]) -> None:
        environment = self.environment
        environment.start_broker()
        self.happened(f"roster broker starts on {environment.bootstrap}")

        def created() -> bool:
            with contextlib.suppress(ClientError), Admin(environment.bootstrap, request_timeout_ms=2_000) as admin:
                there = admin.list_topics()
                for topic in topics:
                    if topic not in there:
                        admin.create_topic(topic, environment.partitions)
                return True
            return False

        self.wait("the broker answers", created)
        for topic in topics:
            self.happened(f"topic {topic} with {environment.partitions} partitions")

    def _all_leave(self) -> None:
        leaving = [app for app in self.state.applications.values() if app.status != "killed"]
        for app in leaving:
            self.environment.children[app.name].terminate()
            app.status = "stopping"
        names = in_words([app.name for app in leaving])
        self.happened(f"{names} {'are' if len(leaving) > 1 else 'is'} asked to stop")
        for app in leaving:
            self._await_end(self.environment.children[app.name])
            app.status = "stopped"
        for group in self.state.groups.values():
            group.owners = {}

    def _await_end(self, child: Child) -> None:
        def has_left() -> bool:
            if child.exit_code:
                raise Failure(f"{child.name} stopped with exit code {child.exit_code}: {child.last_words(1)}")
            return child.exit_code == 0

        self.wait(f"{child.name} has stopped", has_left)

    def _compare(self, job: Job) -> oracle.Verdict:
        results = job.results(self.environment.bootstrap, self.environment.output)
        return oracle.compare(self.expected.groups[job.group], results)

    # Listening.

    def _listen(self, seconds: float) -> None:
        """Process messages of applications, for some time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                message = self.environment.inbox.get(timeout=left)
                self.state.now = time.monotonic() - self.started
                self._hear(message)
        self.state.now = time.monotonic() - self.started
        self._show()

    def _hear(self, message: ChildMessage | GroupSeen) -> None:
        if isinstance(message, GroupSeen):
            if isinstance(message.seen, ClientError):
                raise Failure(f"group {message.group}: {one_line(message.seen)}")
            self.state.hear_group(message.group, message.seen)
        elif message.child in self.state.applications:
            self.state.hear_application(message.child, message.message)
        elif "acknowledged" in message.message:
            self.state.loaded[message.child] = message.message["acknowledged"]

    def _show(self) -> None:
        new, self._shown = self.state.events[self._shown :], len(self.state.events)
        self.view.seen(new, self.state.now)
