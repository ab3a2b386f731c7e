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
from roster.cli.errors import Failure, one_line
from roster.client import Admin, ClientError
from roster.console.looking import Looker
from roster.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.cli.demo.processes import Child
    from roster.cli.demo.stage import Stage
    from roster.cli.demo.view import View

STREAM_S = 60.0
LOADER_WAITS_AT, BROKER_DIES_AT = 0.25, 0.65
SHARED_S = 15.0
"""Three share for at least so long before one of them is killed."""
BROKER_AWAY_S = 2.0
_TICK_S = 0.1
_LOOK_EVERY_S, _LOOK_TIMEOUT_S = 0.5, 3.0


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
            with self._looker():
                expected = self._two_share()
                self._third_joins()
                self._second_dies()
                self._broker_dies()
                self._all_is_counted()
            self._all_leave()
            return self._compare(expected)
        finally:
            self.view.close(self.scene)

    def _looker(self) -> Looker:
        stage = self.stage
        partitions = [TopicPartition(stage.material.topic, number) for number in range(stage.partitions)]
        return Looker(
            stage.bootstrap,
            GROUP,
            stage.inbox.put,
            every_s=_LOOK_EVERY_S,
            timeout_s=_LOOK_TIMEOUT_S,
            also=partitions,
        )

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
        """Start C beside the stream, and let it in once there is work going on to share."""
        self._start("C")
        scene, loader = self.scene, self.stage.children["loader"]
        paused = False

        def held_up(seen: Callable[[], bool]) -> Callable[[], bool]:
            """Keep most of the stream for the three: a slow machine would have counted it all before C is there."""

            def look() -> bool:
                nonlocal paused
                done = seen()
                if not done and not paused and scene.loaded >= LOADER_WAITS_AT * scene.total:
                    paused = True
                    loader.pause()
                    self._happened(f"the loader pauses at {LOADER_WAITS_AT:.0%} until three share the partitions")
                return done

            return look

        self._wait("records are counted", held_up(lambda: scene.counted > 0))
        self._wait("C is ready to join", held_up(lambda: scene.applications["C"].status != "starting"))
        self.stage.let_in("C")
        self._happened("PySpark application C joins the group")
        self._wait("A, B and C share the partitions", held_up(lambda: scene.shared_by({"A", "B", "C"})))
        if paused:
            loader.resume()
            self._happened("the loader goes on")

    def _second_dies(self) -> None:
        scene, three = self.scene, {"A", "B", "C"}
        third = scene.applications["C"]

        def shared_long_enough() -> bool:
            worked = third.batches > 0 or scene.counted >= scene.total
            return scene.shared_for(three) >= SHARED_S and worked

        self._wait(f"A, B and C have shared for {SHARED_S:.0f} s", shared_long_enough)
        self.stage.children["B"].kill()
        second = scene.applications["B"]
        second.status, second.killed_at = "killed", scene.now
        self._happened(f"B is killed with -9 at {scene.share:.0%}")
        self._wait("A and C share the partitions", lambda: scene.shared_by({"A", "C"}))

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
        self.scene.broker, self.scene.waiting = "stopped", ""

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
        self.stage.start_application(name, held=name == "C")
        self._happened(f"PySpark application {name} starts")

    def _happened(self, text: str) -> None:
        self.scene.now = time.monotonic() - self.started
        self.scene.happened(text)
        self.view.show(self.scene)

    def _wait(self, what: str, seen: Callable[[], bool]) -> None:
        """Let the demo run until something is seen."""
        self.scene.waiting = what
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
                elif isinstance(heard, ClientError):
                    raise Failure(one_line(heard))
                else:
                    self.scene.hear_group(heard)
        self.scene.now = time.monotonic() - self.started
        self.view.show(self.scene)

    def _hear_child(self, said: Said) -> None:
        if said.child == "loader":
            self.scene.hear_loader(said.message)
        elif said.child in self.scene.applications:
            self.scene.hear_application(said.child, said.message)
