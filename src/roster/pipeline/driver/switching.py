"""Which tasks of this run write results: their standing in the group's offsets, and the steps of a switch."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from roster.client import Admin, AuthorizationError, ClientError
from roster.client.switch_requests import switch_asked
from roster.model import OffsetAndMetadata, TopicPartition
from roster.model.switch import Request, Results, Seen, Standing, peer_of, results_of, step

log = logging.getLogger("roster.pipeline")

_LOOK = 1.0  # seconds between two looks at what is asked for
_LOOK_REFUSED = 10.0  # the same, if this client may not look


class Switching:
    """The standings of owned tasks, by partition; call all methods on the pipeline's thread."""

    def __init__(self, group: str, admin: Admin, *, paused: bool, keeps_state: bool = True) -> None:
        """paused: how tasks stand whose committed offsets say nothing. Without state each partition is a task."""
        self._group, self._admin, self._keeps_state = group, admin, keeps_state
        self._initial = Standing(Results.PAUSED if paused else Results.WRITES)
        self._standings: dict[TopicPartition, Standing] = {}
        self._limits: dict[TopicPartition, int] = {}
        self._silent: Counter[TopicPartition] = Counter()
        self._told: set[str] = set()
        self._next_look = 0.0
        self._owned: Collection[TopicPartition] = ()

    @property
    def results(self) -> str:
        """What becomes of the results of owned partitions, as `results_of` says; from any thread."""
        return results_of(self._standings.get(p, self._initial).added_to("") for p in self._owned)

    @property
    def seconds_to_look(self) -> float:
        """Seconds until the next look is due; 0 or less amid a switch."""
        return self._next_look - time.monotonic()

    def took(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Take the standings of newly assigned partitions from their committed offsets."""
        of_tasks: dict[Any, Standing] = {}
        for partition, at in committed.items():
            if at is not None and (found := Standing.of(at.metadata)) is not None:
                of_tasks.setdefault(self._task(partition), found)
        is_new = any(at is None and self._task(partition) not in of_tasks for partition, at in committed.items())
        of_new = self._of_all() if is_new else self._initial
        for partition, at in committed.items():
            otherwise = of_new if at is None else self._initial
            standing = self._standings[partition] = of_tasks.get(self._task(partition), otherwise)
            self._silent.pop(partition, None)
            self._limits.pop(partition, None)
            if standing.results is not Results.WRITES and standing.peer:
                self._limits[partition] = -1  # until the first look
        self._next_look = 0.0

    def _of_all(self) -> Standing:
        """Return how a partition stands of which the group has no offset: as all others after a switch."""
        found = (Standing.of(at.metadata) for at in self._admin.group_offsets(self._group, stable=False).values())
        switched = [standing for standing in found if standing is not None and standing.switch]
        return switched[0] if len({standing.results for standing in switched}) == 1 else self._initial

    def _task(self, partition: TopicPartition) -> Any:
        return partition.partition if self._keeps_state else partition

    def noted(self, partition: TopicPartition, metadata: str) -> str:
        """Return the metadata of a partition's committed offset, with its standing."""
        return self._standings.get(partition, self._initial).added_to(metadata)

    def paused(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions among these whose records lead to no results."""
        return [p for p in partitions if self._standings.get(p, self._initial).results is not Results.WRITES]

    def limits(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return offsets that must not be passed; one that is not past a position allows no batch of its task."""
        return {p: self._limits[p] for p in positions if p in self._limits}

    def passed_over(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return the partitions among these whose records lead to nothing: neither to results nor to state."""
        return () if self._keeps_state else self.paused(partitions)

    def taking_over(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions among these, with records to read, for which the other group has handed over."""
        return [p for p in partitions if self._standings.get(p, self._initial).results is Results.WAITS]

    def ran(self, partitions: Iterable[TopicPartition]) -> None:
        """Count a batch that was committed."""
        self._silent.update(self.taking_over(partitions))

    def silent(self, partition: TopicPartition) -> int:
        """Return how many batches a partition had since the other group handed over."""
        return self._silent[partition]

    def look(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Standing]:
        """Return the standings to commit with these positions, of tasks that take a step now.

        positions: without those of tasks whose results are ahead of their state.
        """
        now, self._owned = time.monotonic(), tuple(positions)
        if now < self._next_look:
            return {}
        self._next_look = now + _LOOK
        try:
            return dict(self._steps(positions))
        except AuthorizationError as error:  # usual, unless a switch is on
            level = logging.WARNING if self._limits else logging.INFO if str(error) not in self._told else logging.DEBUG
            log.log(level, "%s: cannot be switched: %s", self._group, error)
            self._told.add(str(error))
            self._next_look = now + _LOOK_REFUSED
        except ClientError as error:
            log.info("%s: cannot look whether a switch is asked for: %s", self._group, error)
        return {}

    def _steps(self, positions: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, Standing]]:
        asked = switch_asked(self._admin, self._group)
        if asked is None and all(self._standings[p].results is Results.WRITES for p in positions):
            return  # as almost always
        tasks: dict[Any, dict[TopicPartition, int]] = {}
        for partition, offset in positions.items():
            tasks.setdefault(self._task(partition), {})[partition] = offset
        own = {task: self._standings[next(iter(at))] for task, at in tasks.items()}
        seen = self._seen(tasks, own, asked)
        for task, at in tasks.items():
            before = own[task]
            standing, limits = step(self._group, before, at, asked, seen.get(peer_of(self._group, before, asked), {}))
            for partition in at:
                self._limits.pop(partition, None)
            self._limits |= limits
            if standing.results is Results.HANDED_OVER and not seen.get(standing.peer) and standing == before:
                self._tell_missing(standing.peer)
            if standing != before:
                yield from dict.fromkeys(at, standing).items()
            if (
                standing != before
                or standing.results in (Results.WAITS, Results.HANDED_OVER)
                or _is_due(asked, standing)
            ):
                self._next_look = 0.0

    def _seen(
        self,
        tasks: Mapping[Any, Mapping[TopicPartition, int]],
        own: Mapping[Any, Standing],
        asked: Request | None,
    ) -> dict[str, dict[TopicPartition, Seen]]:
        """Return the other groups' committed offsets of the tasks that depend on them. Raises ClientError."""
        wanted: dict[str, list[TopicPartition]] = {}
        for task, at in tasks.items():
            if peer := peer_of(self._group, own[task], asked):
                wanted.setdefault(peer, []).extend(at)
        found = {peer: self._admin.group_offsets(peer, of, stable=False) for peer, of in wanted.items()}
        return {peer: {p: Seen.of(at) for p, at in of.items()} for peer, of in found.items()}

    def _tell_missing(self, peer: str) -> None:
        """Log once that the group that was to write is gone: how far it has written is not known any more."""
        if peer not in self._told:
            self._told.add(peer)
            log.warning(
                "%s: has handed over to %s, which has no offsets any more, so nobody writes; stop this group, then run "
                "`roster groups reset %s --forget-switch` with the offset to go on from",
                self._group,
                peer,
                self._group,
            )

    def stand(self, standings: Mapping[TopicPartition, Standing]) -> None:
        """Record standings that were committed."""
        self._standings.update(standings)
        for partition in self.taking_over(standings):
            self._silent.pop(partition, None)


def _is_due(asked: Request | None, standing: Standing) -> bool:
    """Return True for a task that is to hand over."""
    return asked is not None and standing.results is Results.WRITES and standing.switch != asked.switch
