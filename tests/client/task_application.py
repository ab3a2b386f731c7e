"""Applications with a member that runs tasks, for tests on brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from roster.client import HeldTasks, OffsetAndMetadata, Subtopology, TaskId, TaskMember, TaskOptions

TIMES = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6_000}
PATIENCE = 60.0
TASKS = [TaskId(0, number) for number in range(4)]


class Application:
    """A process with a member; its stores are caught up when it is told to `restore`."""

    def __init__(self, bootstrap: str, group: str, topic: str, gaps: dict[TaskId, int] | None = None) -> None:
        self.gaps = dict(gaps or {})
        self.seen: list[HeldTasks] = []
        self.stop = threading.Event()
        options = TaskOptions(
            subtopologies=[Subtopology(0, [topic], ["totals"])], standbys=1, acceptable_lag=10, host="h:1"
        )
        self.member = TaskMember(bootstrap, group, options, gaps=lambda: self.gaps, on_tasks=self.seen.append, **TIMES)
        self.member.start()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while not self.stop.is_set():
            ownership = self.member.ownership()
            if ownership.revoking:
                self.member.commit(dict.fromkeys(ownership.revoking, OffsetAndMetadata(1)), ownership)
                self.member.release(ownership.revoking)
            self.member.wait(ownership.epoch, 0.1)

    def restore(self) -> None:
        held = self.member.tasks()
        self.gaps |= dict.fromkeys(held.active | held.standby, 0)
        self.member.report_gaps(self.gaps)

    def close(self, leave: bool = True) -> None:
        self.stop.set()
        self.thread.join(30)
        self.member.close(leave)


@contextmanager
def applications() -> Iterator[list[Application]]:
    running: list[Application] = []
    try:
        yield running
    finally:
        for application in running:
            application.close()
