"""The demo's plot, told top to bottom: two applications share a topic, a third joins, one dies, the broker dies, all is
counted once. Every step waits for what it needs to see; one deadline ends them all.
"""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING

from roster.cli.demo import oracle
from roster.cli.demo.processes import Said
from roster.cli.demo.scene import Application, Scene
from roster.cli.demo.stage import GROUP
from roster.cli.demo.watch import Watch
from roster.cli.errors import Failure
from roster.client import Admin, ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.cli.demo.processes import Child
    from roster.cli.demo.stage import Stage
    from roster.cli.demo.view import View

STREAM_S = 75.0
# The third starts early in the stream: Spark needs a good while to start beside the other two on two cores.
THIRD_STARTS_AT, SECOND_DIES_AT, BROKER_DIES_AT = 0.03, 0.4, 0.65
BROKER_AWAY_S = 2.0
_TICK_S = 0.1


class Story:
    """One run of the demo; `tell` returns the verdict or raises Failure."""

    def __init__(self, stage: Stage, view: View, rate: float | None, deadline_s: float) -> None:
        self.stage, self.view, self.rate, self.deadline_s = stage, view, rate, deadline_s
        self.scene = Scene(stage.partitions)
        self.started = time.monotonic()

    def tell(self) -> oracle.Verdict:
        """From an empty directory to the verdict."""
        try:
            self._open_topic()
            with Watch(self.stage.bootstrap, GROUP, self.stage.material.topic, self.stage.partitions, self.stage.inbox):
                expected = self._two_share()
                self._third_joins()
                self._second_dies()
                self._broker_dies()
                self._all_is_counted()
            self._all_leave()
            return self._compare(expected)
        finally:
            self.view.close(self.scene)

    def _open_topic(self) -> None:
        stage = self.stage
        stage.start_broker()
        self._happened(f"roster broker starts on {stage.bootstrap}")

        def created() -> bool:
            with contextlib.suppress(ClientError), Admin(stage.bootstrap, request_timeout_ms=2_000) as admin:
                if stage.material.topic not in admin.list_topics():
                    admin.create_topic(stage.material.topic, stage.partitions)
                return True
            return False

        self._wait("the broker answers", created)
        self._happened(f"topic {stage.material.topic} with {stage.partitions} partitions")

    def _two_share(self) -> oracle.Groups:
        self._start("A")
        self._start("B")
        expected = self.stage.material.expected()
        self.scene.total = oracle.total_of(expected)
        if not self.scene.total:
            raise Failure(f"--input: {self.stage.material.path} holds no records")
        self._wait("A and B share the partitions", lambda: self.scene.shared_by({"A", "B"}))
        rate = self.rate or max(1.0, self.scene.total / STREAM_S)
        self.stage.start_loader(rate)
        self._happened(f"{self.scene.total:,} records of {self.stage.material.path.name} at {rate:,.0f} a second")
        return expected

    def _third_joins(self) -> None:
        enough = THIRD_STARTS_AT * self.scene.total
        self._wait(f"{THIRD_STARTS_AT:.0%} are loaded", lambda: self.scene.in_topic >= enough)
        self._start("C")
        self._wait("A, B and C share the partitions", lambda: self.scene.shared_by({"A", "B", "C"}))

    def _second_dies(self) -> None:
        self._wait(f"{SECOND_DIES_AT:.0%} are counted", lambda: self.scene.share >= SECOND_DIES_AT)
        self.stage.children["B"].kill()
        self.scene.applications["B"].status = "killed"
        self._happened(f"B is killed with -9 at {self.scene.share:.0%}")
        self._wait("A and C share the partitions", lambda: self.scene.shared_by({"A", "C"}))

    def _broker_dies(self) -> None:
        self._wait(f"{BROKER_DIES_AT:.0%} are counted", lambda: self.scene.share >= BROKER_DIES_AT)
        self.stage.children["broker"].kill()
        self._happened(f"the broker is killed with -9 at {self.scene.share:.0%}")
        again = time.monotonic() + BROKER_AWAY_S
        self._wait("the broker has been away", lambda: time.monotonic() >= again)
        self.scene.broker = "away"
        self.stage.start_broker()
        self._happened("the broker starts again on the same directory and port")
        self._wait("the broker answers again", lambda: self.scene.broker == "up")

    def _all_is_counted(self) -> None:
        loader = self.stage.children["loader"]
        self._wait("the loader is done", lambda: loader.exit_code == 0)
        self._happened(f"the loader is done: {self.scene.loaded:,} records acknowledged")
        scene = self.scene
        self._wait("all records are counted", lambda: scene.in_topic >= scene.total and not scene.lag)

    def _all_leave(self) -> None:
        leaving = [app for app in self.scene.applications.values() if app.status != "killed"]
        for app in leaving:
            self.stage.children[app.name].terminate()
            app.status = "stopping"
        self._happened(f"{' and '.join(app.name for app in leaving)} are asked to stop")
        for app in leaving:
            self._wait(f"{app.name} has left", lambda app=app: self._left_cleanly(self.stage.children[app.name]))  # type: ignore[misc]
            app.status, app.owned = "stopped", ()
        broker = self.stage.children["broker"]
        broker.terminate()
        self._wait("the broker has stopped", lambda: self._left_cleanly(broker))
        self.scene.broker, self.scene.group_state = "stopped", "-"

    def _compare(self, expected: oracle.Groups) -> oracle.Verdict:
        covered = self.stage.settle_output()
        self._happened(f"the sink covers {covered:,} offsets of {self.scene.in_topic:,} in the topic")
        verdict = oracle.compare(expected, self.stage.material.output(self.stage.output))
        self._happened(f"compared with a plain computation of the file: {verdict.groups:,} groups")
        return verdict

    def _left_cleanly(self, child: Child) -> bool:
        if child.exit_code:
            raise Failure(f"{child.name} stopped with exit code {child.exit_code}: {child.last_words(1)}")
        return child.exit_code == 0

    def _start(self, name: str) -> None:
        self.scene.applications[name] = Application(name)
        self.stage.start_application(name)
        self._happened(f"PySpark application {name} starts")

    def _happened(self, text: str) -> None:
        self.scene.now = time.monotonic() - self.started
        self.scene.happened(text)
        self.view.show(self.scene)

    def _wait(self, what: str, seen: Callable[[], bool]) -> None:
        """Let the demo run until something is seen."""
        while not seen():
            self._listen(_TICK_S)
            self.stage.check_children()
            if self.scene.now > self.deadline_s:
                raise Failure(
                    f"--deadline: {self.deadline_s:g} s passed while waiting until {what} "
                    f"(lag {self.scene.lag}, {self.scene.counted} of {self.scene.total} counted)"
                )

    def _listen(self, seconds: float) -> None:
        """Take in what was said, for some time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                heard = self.stage.inbox.get(timeout=left)
                self.scene.now = time.monotonic() - self.started
                if isinstance(heard, Said):
                    self._hear_child(heard)
                else:
                    self.scene.hear_group(heard)
        self.scene.now = time.monotonic() - self.started
        self.view.show(self.scene)

    def _hear_child(self, said: Said) -> None:
        if said.child == "loader":
            self.scene.hear_loader(said.message)
        elif said.child in self.scene.applications:
            self.scene.hear_application(said.child, said.message)
