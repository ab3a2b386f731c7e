"""The demo with state: two applications keep copies of each other's state; one dies, the other takes over with them."""

import http.client
import json
import urllib.request
from urllib.parse import urlencode

from roster._json import JsonObject
from roster.cli.demo.engine import Demo
from roster.cli.demo.jobs import totals_of
from roster.cli.errors import Failure
from roster.client import Admin
from roster.model import Address, TopicPartition

HEIR, VICTIM = "A", "B"
DIES_AT = 0.4
_ANSWER_TIMEOUT_S = 30.0
"""More than the time for which an application waits for a task that moves."""


class TakeoverDemo(Demo):
    """A and B share the tasks of each job; B dies."""

    def play(self) -> None:
        """See Demo."""
        both = {HEIR, VICTIM}
        self.start(HEIR, VICTIM)
        # The stream begins when there are tasks: a slow machine would have all of it in the topics before.
        self.wait("A and B share the tasks", lambda: self.state.shared_by(both))
        self.happened("A and B share the tasks of both groups")
        self.stream()
        aircraft = self._ask_across()
        self._one_dies()
        self.all_is_counted()
        self._ask_again(aircraft)

    def _ask(self, name: str, path: str, **query: str) -> JsonObject | None:
        job = self.jobs[0]
        return ask(self.environment.server(name, job.group), f"/stores/{job.store}/{path}", **query)

    def _ask_across(self) -> str:
        """Ask one application for an aircraft whose task runs in the other; return the aircraft."""
        job, row = self.jobs[0], JsonObject()
        (column,) = job.key

        def answered() -> bool:
            there = self._ask(VICTIM, "prefix", limit="1", local="true")
            if not there or not there["rows"]:
                return False
            (before,) = there["rows"]
            key = before[column]
            answer = self._ask(HEIR, "get", key=key)
            if answer is None or self._ask(HEIR, "get", key=key, local="true") is not None:
                return False
            row.update(answer["row"])
            if row[column] != key or row["flights"] < before["flights"]:
                raise Failure(f"{HEIR} answers {row}, {VICTIM} had {before} before")
            return True

        self.wait(f"{HEIR} answers for a task of {VICTIM}", answered)
        address = f"http://{self.environment.server(HEIR, job.group)}/stores/{job.store}/get?key={row[column]}"
        self.happened(f"{address}: {row['flights']} flights so far, asked of {HEIR}, kept in {VICTIM}")
        return str(row[column])

    def _ask_again(self, aircraft: str) -> None:
        """Ask the survivor for the same aircraft, whose task it runs now."""
        answers: list[JsonObject] = []

        def answered() -> bool:
            if (answer := self._ask(HEIR, "get", key=aircraft)) is not None:
                answers.append(answer["row"])
            return bool(answers)

        self.wait(f"{HEIR} answers", answered)
        if not totals_of([json.dumps(answers[0]).encode()]).items() <= self.expected.groups[self.jobs[0].group].items():
            raise Failure(f"{HEIR} answers {answers[0]}, which is not what a plain computation gives")
        self.happened(f"asked again, {HEIR} says {answers[0]['flights']} flights, as the plain computation")

    def _one_dies(self) -> None:
        state, heir = self.state, self.state.applications[HEIR]
        self.wait(
            f"{DIES_AT:.0%} are counted and each task has a copy that has caught up",
            lambda: state.share >= DIES_AT and state.is_covered() and state.shared_by({HEIR, VICTIM}),
        )
        moving = state.tasks_of(VICTIM)
        gaps = sum(state.copies(group, number).get(HEIR, 0) for group, number in moving)
        before = heir.restored
        self.environment.children[VICTIM].kill()
        state.killed(VICTIM)
        self.happened(
            f"{VICTIM} is killed with -9 at {state.share:.0%}: it ran {len(moving)} tasks, whose copies in {HEIR} were"
            f" {gaps:,} changelog records behind"
        )
        self.wait(f"{HEIR} runs all tasks", lambda: state.shared_by({HEIR}))
        offsets_then = {task: self._position(*task)[0] for task in moving}
        self.happened(f"the session of {VICTIM} has ended: {HEIR} goes on with its copies")

        def has_gone_on() -> bool:
            positions = [(self._position(*task), then) for task, then in offsets_then.items()]
            return all(committed > then or not lag for (committed, lag), then in positions)

        self.wait(f"{HEIR} has results of all of them", has_gone_on)
        self.happened(
            f"{HEIR} has results of all of them: {heir.restored - before:,} of {self._changes():,} changelog records"
            " replayed"
        )

    def _position(self, group: str, number: int) -> tuple[int, int]:
        """Return a task's committed offset and its lag."""
        by_number = {tp.partition: position for tp, position in self.state.groups[group].history.positions.items()}[
            number
        ]
        return by_number.committed or 0, by_number.lag or 0

    def _changes(self) -> int:
        """Records of all changelogs."""
        numbers = range(self.environment.partitions)
        partitions = [TopicPartition(job.changelog, number) for job in self.jobs for number in numbers]
        with Admin(self.environment.bootstrap) as admin:
            return sum(admin.end_offsets(partitions).values())


def ask(server: Address, path: str, **query: str) -> JsonObject | None:
    """Return an application's answer, None if it has none: it is starting, a task moves, or the key does not exist."""
    try:
        with urllib.request.urlopen(f"http://{server}{path}?{urlencode(query)}", timeout=_ANSWER_TIMEOUT_S) as response:
            document: JsonObject = json.load(response)
            return document
    except (OSError, http.client.HTTPException):
        return None
