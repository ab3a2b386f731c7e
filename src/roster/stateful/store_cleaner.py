"""Cleans the stores on the executors' hosts: removes unkept stores, and enforces a limit of bytes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from roster._clock import wall_ms
from roster.model.tasks import TaskId
from roster.pipeline.errors import PipelineError
from roster.state.cleaning import clean, give_up, keep, sizes, task_name
from roster.stateful.restore_schedule import Copies
from roster.stateful.tasks.host_stores import process_id
from roster.stateful.tasks.store_location import Place

log = logging.getLogger("roster.spark")

_MOST_PAUSE = 60.0
"""Seconds between two marks that stores are kept: well below the delay after which others remove them."""
_LIMIT_PAUSE = 10.0
"""Seconds between two looks at sizes where these need a Spark job."""


class Wanted(NamedTuple):
    """Instructions for cleaning one host.

    kept: the application's tasks. standby: the tasks among them that it only has copies of. delay: seconds after which
    stores that no application keeps are removed, None: not now. limit: bytes that stores may take.
    """

    kept: Collection[str]
    standby: Collection[str]
    delay: float | None
    limit: int | None


class Cleaned(NamedTuple):
    """Result of cleaning a host: names of stores removed, bytes of copies given up by task, and bytes left."""

    place: str
    removed: Sequence[str]
    given_up: Mapping[str, int]
    bytes: int


def clean_host(places: Sequence[Place], wanted: Wanted) -> Cleaned:
    """Clean the stores of all changelogs on this host."""
    now, given_up, removed = wall_ms() / 1000, {}, list[str]()
    roots = [place.root for place in places]
    for root in roots:
        if wanted.delay is None:
            keep(root, wanted.kept, now)
        else:
            removed += [path.name for path in clean(root, wanted.kept, wanted.delay, now)]
    used = sum(sum(sizes(root).values()) for root in roots) if wanted.limit is not None else 0
    if wanted.limit is not None and used > wanted.limit:
        given_up = give_up(roots, wanted.standby, used - wanted.limit)
        used -= sum(given_up.values())
    return Cleaned(process_id(places[0]), removed, given_up, used)


OnHosts = Callable[[Wanted], Sequence[Cleaned]]
"""Cleans each host, some more than once, and returns what was done."""


class StoreCleaner:
    """Cleans the stores of one application; call all methods on the pipeline's thread."""

    def __init__(
        self,
        copies: Copies,
        delay: float,
        limit: int | None,
        on_hosts: OnHosts,
        *,
        is_local: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`delay` and `now` in seconds, `limit` in bytes for each host. is_local: looking needs no Spark job."""
        self._copies, self._delay, self._limit, self._on_hosts, self._now = copies, delay, limit, on_hosts, now
        self._pause = min(_MOST_PAUSE, delay / 4)
        self._limit_pause = 0.0 if is_local else _LIMIT_PAUSE
        self._cleans_from = now() + delay
        """Do not clean before this: after a restart the group returns the old tasks first."""
        self._done = now()
        self.due_at = self._done + self._pause if limit is None else float("-inf")
        """When to clean next, by `now`."""

    def clean(self) -> None:
        """Clean the stores, which are due. Raises PipelineError if active tasks' stores are beyond the limit."""
        now = self._now()
        if is_due := now >= self._done + self._pause:
            self._done = now
        delay = self._delay if is_due and now >= self._cleans_from else None
        active, standby = self._copies.kept()
        self.due_at = self._done + self._pause
        if self._limit is not None:
            self.due_at = min(self.due_at, now + self._limit_pause)
        done = self._on_hosts(Wanted(_texts(active | standby), _texts(standby), delay, self._limit))
        for place in {cleaned.place: cleaned for cleaned in done}.values():
            self._note(place)

    def _note(self, place: Cleaned) -> None:
        self._copies.record_lost(_tasks(place.removed))
        if place.given_up:
            self._copies.record_given_up(_tasks(place.given_up))
            log.warning(
                "State.max_bytes %s: gave up the standby copies of %s (%d bytes); other applications may keep them",
                *(self._limit, ", ".join(sorted(place.given_up)), sum(place.given_up.values())),
            )
        if self._limit is not None and place.bytes > self._limit:
            raise PipelineError(
                f"the stores of the tasks that run here take {place.bytes} bytes, the limit is {self._limit}",
                field="State.max_bytes",
                fix="Raise it, or add applications or hosts that take a part of the tasks",
            )


def _texts(tasks: Collection[TaskId]) -> frozenset[str]:
    return frozenset(map(str, tasks))


def _tasks(names: Collection[str]) -> frozenset[TaskId]:
    """Return the tasks of these stores; other names are those of copies that a user made."""
    tasks = set()
    for name in names:
        with contextlib.suppress(ValueError):
            tasks.add(TaskId.parse(task_name(Path(name))))
    return frozenset(tasks)
