"""Which tasks of this run write results: their standing in the group's offsets, and the steps of a switch."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from typing_extensions import override

from roster.client import Admin, AuthorizationError, ClientError
from roster.client.switch_requests import switch_asked
from roster.model import OffsetAndMetadata, TopicPartition
from roster.model.switch import Request, Results, Seen, Standing, peer_of, results_of, step

log = logging.getLogger("roster.pipeline")

TaskKey: TypeAlias = TopicPartition | int
"""A task: the number of its partitions, or without state the partition."""
_USUAL = Standing()
_LOOK = 1.0  # seconds between two looks at what is asked for
_LOOK_REFUSED = 10.0  # the same, if this client may not look


class Restrictions(NamedTuple):
    """What a switch asks of the next batch.

    limits: offsets that must not be passed; one that is not past a position allows no batch of its task. taking_over:
    partitions for which the other group has handed over. passed_over: those whose records produce neither results nor
    state.
    """

    limits: Mapping[TopicPartition, int] = {}
    taking_over: frozenset[TopicPartition] = frozenset()
    passed_over: frozenset[TopicPartition] = frozenset()


class Unswitched:
    """The standings of owned tasks in a group that takes part in no switch: their results are written."""

    next_look = math.inf
    """When the next look is due, in monotonic seconds; 0 amid a switch."""
    restrictions = Restrictions()
    is_on = False
    """True if a task may stand in another way than usual."""

    @property
    def results(self) -> str:
        """What becomes of the results of owned partitions, as `results_of` says; from any thread."""
        return ""

    @property
    def is_paused(self) -> bool:
        """True if no owned partition's results are written; from any thread."""
        return False

    def assigned(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Take the standings of newly assigned partitions from their committed offsets."""

    def with_standings(self, partitions: Iterable[TopicPartition], metadata: str) -> dict[TopicPartition, str]:
        """Return the metadata of each partition's committed offset, with its standing."""
        return dict.fromkeys(partitions, metadata)

    def paused(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return the partitions among these whose records lead to no results."""
        return ()

    def count_batch(self, partitions: Iterable[TopicPartition]) -> None:
        """Count a committed batch of partitions that are taken over."""

    def batches_between(self, partition: TopicPartition) -> int:
        """Return how many batches a partition had since the other group handed over."""
        return 0

    def next_steps(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Standing]:
        """Return the standings to commit with these positions, of tasks that take a step now.

        positions: without those of tasks whose results are ahead of their state.
        """
        return {}

    def record(self, standings: Mapping[TopicPartition, Standing]) -> None:
        """Record standings that were committed."""


class Switching(Unswitched):
    """The standings of owned tasks, by partition; call all methods on the pipeline's thread."""

    def __init__(self, group: str, admin: Admin, *, paused: bool, keeps_state: bool = True) -> None:
        """paused: how tasks stand whose committed offsets say nothing. Without state each partition is a task."""
        self._group, self._admin, self._keeps_state = group, admin, keeps_state
        self._initial = Standing(Results.PAUSED if paused else Results.WRITES)
        self._standings: dict[TopicPartition, Standing] = {}
        self._limits: dict[TopicPartition, int] = {}
        self._batches_between: Counter[TopicPartition] = Counter()
        self._reported: set[str] = set()
        self.next_look = 0.0
        self._owned: Collection[TopicPartition] = ()

    @property
    @override
    def results(self) -> str:
        return results_of(self._standings.get(p, self._initial).added_to("") for p in self._owned)

    @property
    @override
    def is_paused(self) -> bool:
        standings = [self._standings.get(partition, self._initial) for partition in self._owned]
        return bool(standings) and all(standing.results is not Results.WRITES for standing in standings)

    @override
    def assigned(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        of_tasks: dict[TaskKey, Standing] = {}
        for partition, offset in committed.items():
            if offset is not None and (standing_then := Standing.of(offset.metadata)) is not None:
                of_tasks.setdefault(self._task(partition), standing_then)
        is_new = any(
            offset is None and self._task(partition) not in of_tasks for partition, offset in committed.items()
        )
        of_new = self._standing_after_switch() if is_new else self._initial
        for partition, offset in committed.items():
            otherwise = of_new if offset is None else self._initial
            standing = self._standings[partition] = of_tasks.get(self._task(partition), otherwise)
            self._batches_between.pop(partition, None)
            self._limits.pop(partition, None)
            if standing.results is not Results.WRITES and standing.peer:
                self._limits[partition] = -1  # until the first look
        self.next_look = 0.0
        self._restrict()

    def _restrict(self) -> None:
        """Find the restrictions anew, after standings or limits have changed."""
        self.is_on = any(standing != _USUAL for standing in (self._initial, *self._standings.values()))
        waiting = frozenset(p for p, standing in self._standings.items() if standing.results is Results.WAITS)
        passed_over = () if self._keeps_state else self.paused(self._standings)
        self.restrictions = Restrictions(dict(self._limits), waiting, frozenset(passed_over))

    def _standing_after_switch(self) -> Standing:
        """Return the standing of a partition without a committed offset: that of the others after a switch."""
        standings = (
            Standing.of(offset.metadata) for offset in self._admin.group_offsets(self._group, stable=False).values()
        )
        switched = [standing for standing in standings if standing is not None and standing.switch]
        return switched[0] if len({standing.results for standing in switched}) == 1 else self._initial

    def _task(self, partition: TopicPartition) -> TaskKey:
        return partition.partition if self._keeps_state else partition

    @override
    def with_standings(self, partitions: Iterable[TopicPartition], metadata: str) -> dict[TopicPartition, str]:
        standings = {p: self._standings.get(p, self._initial) for p in partitions}
        texts = {standing: standing.added_to(metadata) for standing in {*standings.values()} - {_USUAL}}
        texts[_USUAL] = metadata
        return {p: texts[standing] for p, standing in standings.items()}

    @override
    def paused(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        return [p for p in partitions if self._standings.get(p, self._initial).results is not Results.WRITES]

    @override
    def count_batch(self, partitions: Iterable[TopicPartition]) -> None:
        self._batches_between.update(partitions)

    @override
    def batches_between(self, partition: TopicPartition) -> int:
        return self._batches_between[partition]

    @override
    def next_steps(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Standing]:
        now, self._owned = time.monotonic(), tuple(positions)
        if now < self.next_look:
            return {}
        self.next_look = now + _LOOK
        steps = dict[TopicPartition, Standing]()
        try:
            steps = dict(self._steps(positions))
        except AuthorizationError as error:  # usual, unless a switch is on
            level = (
                logging.WARNING if self._limits else logging.INFO if str(error) not in self._reported else logging.DEBUG
            )
            log.log(level, "%s: cannot be switched: %s", self._group, error)
            self._reported.add(str(error))
            self.next_look = now + _LOOK_REFUSED
        except ClientError as error:
            log.info("%s: cannot look whether a switch is asked for: %s", self._group, error)
        self._restrict()
        return steps

    def _steps(self, positions: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, Standing]]:
        request = switch_asked(self._admin, self._group)
        if request is None and all(self._standings[p].results is Results.WRITES for p in positions):
            return  # as almost always
        tasks: dict[TaskKey, dict[TopicPartition, int]] = {}
        for partition, offset in positions.items():
            tasks.setdefault(self._task(partition), {})[partition] = offset
        own = {task: self._standings[next(iter(offsets))] for task, offsets in tasks.items()}
        in_peers = self._in_peers(tasks, own, request)
        for task, offsets in tasks.items():
            before = own[task]
            standing, limits = step(
                self._group, before, offsets, request, in_peers.get(peer_of(self._group, before, request), {})
            )
            for partition in offsets:
                self._limits.pop(partition, None)
            self._limits |= limits
            if standing.results is Results.HANDED_OVER and not in_peers.get(standing.peer) and standing == before:
                self._report_missing(standing.peer)
            if standing != before:
                yield from dict.fromkeys(offsets, standing).items()
            if (
                standing != before
                or standing.results in (Results.WAITS, Results.HANDED_OVER)
                or _is_due(request, standing)
            ):
                self.next_look = 0.0

    def _in_peers(
        self,
        tasks: Mapping[TaskKey, Mapping[TopicPartition, int]],
        own: Mapping[TaskKey, Standing],
        request: Request | None,
    ) -> dict[str, dict[TopicPartition, Seen]]:
        """Return the other groups' committed offsets of the tasks that depend on them. Raises ClientError."""
        wanted: dict[str, list[TopicPartition]] = {}
        for task, offsets in tasks.items():
            if peer := peer_of(self._group, own[task], request):
                wanted.setdefault(peer, []).extend(offsets)
        offsets_of_peers = {
            peer: self._admin.group_offsets(peer, partitions, stable=False) for peer, partitions in wanted.items()
        }
        return {
            peer: {p: Seen.of(offset) for p, offset in offsets.items()} for peer, offsets in offsets_of_peers.items()
        }

    def _report_missing(self, peer: str) -> None:
        """Log once that the group that was to write is gone: how far it has written is not known any more."""
        if peer not in self._reported:
            self._reported.add(peer)
            log.warning(
                "%s: has handed over to %s, which has no offsets any more, so no group writes; stop this group, then"
                " run `roster groups reset %s --forget-switch` with the offset to go on from",
                self._group,
                peer,
                self._group,
            )

    @override
    def record(self, standings: Mapping[TopicPartition, Standing]) -> None:
        self._standings.update(standings)
        self._restrict()
        for partition in self.restrictions.taking_over.intersection(standings):
            self._batches_between.pop(partition, None)


def _is_due(request: Request | None, standing: Standing) -> bool:
    """Return True for a task that is to hand over."""
    return request is not None and standing.results is Results.WRITES and standing.switch != request.switch
