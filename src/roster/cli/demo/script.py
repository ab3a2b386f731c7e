"""The demo's steps in order: two applications share a topic, a third joins, one is killed, the broker is killed and
restarted, the output is compared. Every step waits for a condition; one deadline is for them all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from roster.cli.demo import oracle
from roster.cli.demo.environment import GROUP
from roster.cli.demo.stage import Stage
from roster.cli.demo.state import Application, DemoState
from roster.cli.errors import Failure
from roster.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.cli.demo.environment import Environment
    from roster.cli.demo.processes import ChildMessage
    from roster.cli.demo.view import View
    from roster.console import Away, Snapshot

STREAM_S = 30.0
LOADER_WAITS_AT, BROKER_DIES_AT = 0.25, 0.65
SHARED_S = 10.0
"""Three share for at least so long before one of them is killed."""
BROKER_AWAY_S = 2.0


class Script(Stage[DemoState, "Snapshot | Away"]):
    """One run of the demo; `run` returns the verdict or raises Failure."""

    def __init__(self, environment: Environment, view: View[DemoState], rate: float | None, deadline_s: float) -> None:
        super().__init__(environment, view, DemoState(environment.partitions), deadline_s)
        self.rate = rate

    def run(self) -> oracle.Verdict:
        """Run every step and compare the output."""
        try:
            topic = self.environment.workload.topic
            self._open_topics([topic])
            partitions = [TopicPartition(topic, number) for number in range(self.environment.partitions)]
            with self._looker(GROUP, partitions, self.environment.inbox.put):
                expected = self._two_share()
                self._third_joins()
                self._second_dies()
                self._broker_dies()
                self._all_is_counted()
            self._all_leave()
            return self._compare(expected)
        finally:
            self.view.close(self.state)

    def _two_share(self) -> oracle.Groups:
        for name in "ABC":
            self._start(name)
        expected = self.environment.workload.expected()
        self.state.total = oracle.total_of(expected)
        if not self.state.total:
            raise Failure(f"--input: {self.environment.workload.path} holds no records")
        # Records are there once partitions are assigned: what is counted first does not wait for the loader's start.
        self._wait(
            "A and B have warmed up", lambda: all(self.state.applications[name].status != "starting" for name in "AB")
        )
        rate = self.rate or max(1.0, self.state.total / STREAM_S)
        self.environment.start_loader(rate)
        self._happened(f"{self.state.total:,} records of {self.environment.workload.path.name} at {rate:,.0f} a second")
        self._wait("A and B share the partitions", lambda: self.state.shared_by({"A", "B"}))
        return expected

    def _third_joins(self) -> None:
        """Let C in, which has warmed up meanwhile, once there is work going on to share."""
        state, loader = self.state, self.environment.children["loader"]
        paused = False

        def held_up(seen: Callable[[], bool]) -> Callable[[], bool]:
            """Keep most of the stream for the three: a slow machine would have counted it all before C is there."""

            def look() -> bool:
                nonlocal paused
                done = seen()
                if not done and not paused and state.loaded >= LOADER_WAITS_AT * state.total:
                    paused = True
                    loader.pause()
                    self._happened(f"the loader pauses at {LOADER_WAITS_AT:.0%} until three share the partitions")
                return done

            return look

        self._wait("records are counted", held_up(lambda: state.counted > 0 and state.assigned_at is not None))
        self._happened(f"records are counted, {state.since_assignment:.1f} s after the first assignment")
        self._wait("C is ready to join", held_up(lambda: state.applications["C"].status != "starting"))
        self.environment.let_in("C")
        self._happened("PySpark application C joins the group")
        self._wait("A, B and C share the partitions", held_up(lambda: state.shared_by({"A", "B", "C"})))
        if paused:
            loader.resume()
            self._happened("the loader goes on")

    def _second_dies(self) -> None:
        state, three = self.state, {"A", "B", "C"}
        third = state.applications["C"]

        def shared_long_enough() -> bool:
            worked = third.batches > 0 or state.counted >= state.total
            return state.shared_for(three) >= SHARED_S and worked

        self._wait(f"A, B and C have shared for {SHARED_S:.0f} s", shared_long_enough)
        self.environment.children["B"].kill()
        second = state.applications["B"]
        second.status, second.killed_at = "killed", state.now
        self._happened(f"B is killed with -9 at {state.share:.0%}")
        self._wait("A and C share the partitions", lambda: state.shared_by({"A", "C"}))

    def _broker_dies(self) -> None:
        self._wait(f"{BROKER_DIES_AT:.0%} are counted", lambda: self.state.share >= BROKER_DIES_AT)
        self.environment.children["broker"].kill()
        self._happened(f"the broker is killed with -9 at {self.state.share:.0%}")
        again = time.monotonic() + BROKER_AWAY_S
        self._wait("the broker has been away", lambda: time.monotonic() >= again)
        self.state.broker = "away"
        self.environment.start_broker()
        self._happened("the broker starts again on the same directory and port")
        self._wait("the broker answers again", lambda: self.state.broker == "up")

    def _all_is_counted(self) -> None:
        loader = self.environment.children["loader"]
        self._wait("the loader is done", lambda: loader.exit_code == 0)
        self._happened(f"the loader is done: {self.state.loaded:,} records acknowledged")
        state = self.state
        self._wait("all records are counted", lambda: state.in_topic >= state.total and not state.lag)

    def _all_leave(self) -> None:
        leaving = [app for app in self.state.applications.values() if app.status != "killed"]
        for app in leaving:
            self.environment.children[app.name].terminate()
            app.status = "stopping"
        self._happened(f"{' and '.join(app.name for app in leaving)} are asked to stop")
        for app in leaving:
            self._wait(f"{app.name} has left", lambda app=app: self._left_cleanly(self.environment.children[app.name]))  # type: ignore[misc]
            app.status, app.owned = "stopped", ()
        broker = self.environment.children["broker"]
        broker.terminate()
        self._wait("the broker has stopped", lambda: self._left_cleanly(broker))
        self.state.broker, self.state.waiting = "stopped", ""

    def _compare(self, expected: oracle.Groups) -> oracle.Verdict:
        covered = self.environment.settle_output()
        self._happened(f"the sink covers {covered:,} offsets of {self.state.in_topic:,} in the topic")
        verdict = oracle.compare(expected, self.environment.workload.output(self.environment.output))
        self._happened(f"compared with a plain computation of the file: {verdict.groups:,} groups")
        return verdict

    def _start(self, name: str) -> None:
        self.state.applications[name] = Application(name)
        self.environment.start_application(name, held=name == "C")
        self._happened(f"PySpark application {name} starts")

    def _hear_child(self, said: ChildMessage) -> None:
        if said.child == "loader":
            self.state.hear_loader(said.message)
        elif said.child in self.state.applications:
            self.state.hear_application(said.child, said.message)

    def _hear_group(self, seen: Snapshot | Away) -> None:
        self.state.hear_group(seen)
