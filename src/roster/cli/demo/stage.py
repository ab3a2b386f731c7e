"""What the scripts of the demos share: time, messages of children and looks at groups, waiting with one deadline."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from roster.cli.demo.processes import ChildMessage
from roster.cli.errors import Failure, one_line
from roster.cli.signals import check_told
from roster.client import Admin, ClientError
from roster.console.looking import Looker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roster.cli.demo.environment import Environment
    from roster.cli.demo.processes import Child
    from roster.cli.demo.view import View
    from roster.console import Away, Snapshot
    from roster.model import TopicPartition

_TICK_S = 0.1
_LOOK_EVERY_S, _LOOK_TIMEOUT_S = 0.5, 3.0


class State(Protocol):
    """What a script changes and a view shows; `now` is seconds since the start."""

    now: float
    waiting: str

    def happened(self, text: str) -> None:
        """Note an event."""

    def figures(self) -> str:
        """Say how far it is, for an error."""


S = TypeVar("S", bound=State)
G = TypeVar("G")


class Stage(Generic[S, G]):
    """Runs a demo step by step. G is what the inbox has of groups."""

    def __init__(self, environment: Environment, view: View[S], state: S, deadline_s: float) -> None:
        self.environment, self.view, self.state, self.deadline_s = environment, view, state, deadline_s
        self.started = time.monotonic()

    def _looker(
        self,
        group: str,
        partitions: Sequence[TopicPartition],
        report: Callable[[Snapshot | Away | ClientError], object],
    ) -> Looker:
        return Looker(
            self.environment.bootstrap,
            group,
            report,
            every_s=_LOOK_EVERY_S,
            timeout_s=_LOOK_TIMEOUT_S,
            also=partitions,
        )

    def _open_topics(self, topics: Sequence[str]) -> None:
        environment = self.environment
        environment.start_broker()
        self._happened(f"roster broker starts on {environment.bootstrap}")

        def created() -> bool:
            with contextlib.suppress(ClientError), Admin(environment.bootstrap, request_timeout_ms=2_000) as admin:
                there = admin.list_topics()
                for topic in topics:
                    if topic not in there:
                        admin.create_topic(topic, environment.partitions)
                return True
            return False

        self._wait("the broker answers", created)
        for topic in topics:
            self._happened(f"topic {topic} with {environment.partitions} partitions")

    def _left_cleanly(self, child: Child) -> bool:
        if child.exit_code:
            raise Failure(f"{child.name} stopped with exit code {child.exit_code}: {child.last_words(1)}")
        return child.exit_code == 0

    def _happened(self, text: str) -> None:
        self.state.now = time.monotonic() - self.started
        self.state.happened(text)
        self.view.show(self.state)

    def _wait(self, what: str, seen: Callable[[], bool]) -> None:
        """Let the demo run until something is seen."""
        self.state.waiting = what
        while not seen():
            self._listen(_TICK_S)
            check_told()
            self.environment.check_children()
            if self.state.now > self.deadline_s:
                raise Failure(
                    f"--deadline: {self.deadline_s:g} s passed while waiting until {what} ({self.state.figures()})"
                )

    def _listen(self, seconds: float) -> None:
        """Take in what was said, for some time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                heard = self.environment.inbox.get(timeout=left)
                self.state.now = time.monotonic() - self.started
                if isinstance(heard, ChildMessage):
                    self._hear_child(heard)
                elif isinstance(heard, ClientError):
                    raise Failure(one_line(heard))
                else:
                    self._hear_group(heard)
        self.state.now = time.monotonic() - self.started
        self.view.show(self.state)

    def _hear_child(self, said: ChildMessage) -> None:
        """Take in what a child said."""
        raise NotImplementedError

    def _hear_group(self, seen: G) -> None:
        """Take in a look at a group."""
        raise NotImplementedError
