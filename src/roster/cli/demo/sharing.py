"""The demo: two applications share a topic, a third joins, one is killed, the broker is killed and restarted."""

import time
from collections.abc import Callable

from roster.cli.demo.engine import Demo
from roster.cli.demo.processes import Child

LOADER_WAITS_AT, BROKER_DIES_AT = 0.5, 0.65
SHARED_S = 5.0
"""Seconds for which three applications share before one is killed."""
BROKER_AWAY_S = 2.0


class SharingDemo(Demo):
    """A, B and C share a topic; B and the broker die."""

    def play(self) -> None:
        """See Demo."""
        self._two_share()
        self._third_joins()
        self._second_dies()
        self._broker_dies()
        self.wait("the loader is done", lambda: self.loader.exit_code == 0)
        self.happened(f"the loader is done: {sum(self.state.loaded.values()):,} records acknowledged")
        self.all_is_counted()

    def before_comparison(self) -> None:
        """Publish the files that a killed application committed but did not rename."""
        covered = self.environment.settle_output()
        self.happened(f"the sink covers {covered:,} offsets of {self.state.in_topics:,} in the topic")

    def _two_share(self) -> None:
        state = self.state
        self.start("A", "B")
        (self.loader,) = self.stream()
        up = lambda: all(state.applications[name].status != "starting" for name in "AB")  # noqa: E731
        self._wait_held_up("Spark is up in A and B", up)
        self.start("C", held="C")  # three JVMs that start at a time would take longer for the first
        self._wait_held_up("A and B share the partitions", lambda: state.shared_by({"A", "B"}))

    def _third_joins(self) -> None:
        """Let C in once its Spark is up and there is work going on to share."""
        state = self.state
        self._wait_held_up("records are counted", lambda: state.counted > 0 and state.assigned_at is not None)
        self.happened(f"records are counted, {state.since_assignment:.1f} s after the first assignment")
        self._wait_held_up("C is ready to join", lambda: state.applications["C"].status != "starting")
        self.environment.let_in("C")
        self.happened("PySpark application C joins the group")
        self._wait_held_up("A, B and C share the partitions", lambda: state.shared_by({"A", "B", "C"}))
        if self._paused:
            self.loader.resume()
            self.happened("the loader goes on")

    loader: Child
    _paused = False

    def _wait_held_up(self, what: str, is_seen: Callable[[], bool]) -> None:
        """Keep most of the stream for the three: a slow machine would have counted it all before C is there."""

        def pause_when_near() -> bool:
            done = is_seen()
            if not done and not self._paused and sum(self.state.loaded.values()) >= LOADER_WAITS_AT * self.state.total:
                self._paused = True
                self.loader.pause()
                self.happened(f"the loader pauses at {LOADER_WAITS_AT:.0%} until three share the partitions")
            return done

        self.wait(what, pause_when_near)

    def _second_dies(self) -> None:
        state, three = self.state, {"A", "B", "C"}
        third = state.applications["C"]

        def shared_long_enough() -> bool:
            worked = third.batches > 0 or state.counted >= state.total
            return state.shared_for(three) >= SHARED_S and worked

        self.wait(f"A, B and C have shared for {SHARED_S:.0f} s", shared_long_enough)
        self.environment.children["B"].kill()
        state.killed("B")
        self.happened(f"B is killed with -9 at {state.share:.0%}")
        self.wait("A and C share the partitions", lambda: state.shared_by({"A", "C"}))

    def _broker_dies(self) -> None:
        self.wait(f"{BROKER_DIES_AT:.0%} are counted", lambda: self.state.share >= BROKER_DIES_AT)
        self.environment.children["broker"].kill()
        self.happened(f"the broker is killed with -9 at {self.state.share:.0%}")
        again = time.monotonic() + BROKER_AWAY_S
        self.wait("the broker has been away", lambda: time.monotonic() >= again)
        self.state.broker = "away"
        self.environment.start_broker()
        self.happened("the broker starts again on the same directory and port")
        self.wait("the broker answers again", lambda: self.state.broker == "up")
