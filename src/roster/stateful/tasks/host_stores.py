"""Stores of one changelog topic on this host: their progress, and the id of the applications that share them."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from roster._clock import wall_ms
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.errors import PipelineError
from roster.state.store import StateError
from roster.state.store_files import unusable
from roster.stateful.tasks.catch_up import LONGEST_BEHIND, Fetch, StoreTarget, catch_up
from roster.stateful.tasks.store_location import Place, on_sound, open_store, opened

_PROCESS = "process"
"""File with the process id of all applications that share these stores, as in Kafka Streams' state directory."""


class RestoreJob(NamedTuple):
    """A store to restore: its task, and how far."""

    task: TaskId
    target: StoreTarget

    @property
    def changelog(self) -> TopicPartition:
        """The changelog partition."""
        return self.target.changelog


class Restored(NamedTuple):
    """Result of a restore job: the changelog offset reached, None with a `problem`; records, bytes and seconds."""

    changelog: TopicPartition
    position: int | None
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    problem: str = ""


def check_state_dir(named: str | None, on_each_host: Callable[[Callable[[], str]], Sequence[str]]) -> None:
    """Raise PipelineError if an executor host cannot keep stores in this directory; None: the default directory."""
    for problem in filter(None, on_each_host(partial(unusable, named))):
        fix = "Name a folder on a local disk of the executors' hosts, which they can write to"
        raise PipelineError(problem, field="State.dir", fix=fix)


def stores_found(place: Place) -> dict[TaskId, int]:
    """Return {task: changelog offset} of usable stores."""
    offsets = {}
    for path in place.root.iterdir() if place.root.is_dir() else ():
        with contextlib.suppress(StateError, ValueError, OSError):
            task = TaskId.parse(path.name)
            with open_store(path, is_ordered=place.is_ordered, read_only=True) as store:
                if store.written_at >= wall_ms() / 1000 - LONGEST_BEHIND:
                    offsets[task] = store.position().changelog
    return offsets


def found_here(places: Mapping[str, Place]) -> dict[str, dict[TopicPartition, int]]:
    """Return {process id: {log partition: offset}} of the usable stores on this host; {} without places.

    places: by the topic that the stores are made of.
    """
    offsets = {
        TopicPartition(topic, task.partition): at
        for topic, place in places.items()
        for task, at in stores_found(place).items()
    }
    return {process_id(next(iter(places.values()))): offsets} if places else {}


def process_id(place: Place) -> str:
    """Return the process id of the applications that share these stores, 32 hex digits; create it if missing."""
    path = place.root / _PROCESS
    if not path.exists():
        place.root.mkdir(parents=True, exist_ok=True)
        new_file = Path(f"{path}.{uuid.uuid4().hex}")
        new_file.write_text(uuid.uuid4().hex)
        with contextlib.suppress(FileExistsError):
            os.link(new_file, path)  # if another process was first, its id is used
        new_file.unlink()
    return path.read_text().strip()


def restore_copy(place: Place, job: RestoreJob, fetch: Fetch, until: float) -> Restored:
    """Apply the changelog to a copy until it catches up or monotonic `until`; a failing copy delays no other work."""
    began = time.monotonic()
    try:
        with opened(place.path(str(job.task)), is_ordered=place.is_ordered) as store:
            applied = on_sound(store, partial(catch_up, store, job.target, fetch, until))
    except Exception as error:
        return Restored(
            job.changelog, None, seconds=time.monotonic() - began, problem=f"{type(error).__name__}: {error}"
        )
    return Restored(job.changelog, *applied, seconds=time.monotonic() - began)
