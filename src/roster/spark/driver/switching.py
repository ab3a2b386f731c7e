"""Which tasks of this run write results: their standing in the group's offsets, and the steps of a switch."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping

from roster.client import Admin, AuthorizationError, ClientError
from roster.client.switch_requests import switch_asked
from roster.model import OffsetAndMetadata, TopicPartition
from roster.model.switch import Request, Results, Seen, Standing, common, peer_of, step

log = logging.getLogger("roster.pipeline")

_LOOK = 1.0  # seconds between two looks at what is asked for
_LOOK_AMID = 0.05  # the same, amid a switch
_LOOK_REFUSED = 10.0  # the same, if this client may not look


class Switching:
    """The standings of owned tasks, by partition; call all methods on the pipeline's thread."""

    def __init__(self, group: str, admin: Admin, *, paused: bool) -> None:
        """paused: how tasks stand whose committed offsets say nothing."""
        self._group, self._admin = group, admin
        self._initial = Standing(Results.PAUSED if paused else Results.WRITES)
        self._standings: dict[TopicPartition, Standing] = {}
        self._limits: dict[TopicPartition, int] = {}
        self._next_look = 0.0

    def took(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Take the standings of newly assigned partitions from their committed offsets."""
        found = {p: None if at is None else Standing.of(at.metadata) for p, at in committed.items()}
        for partition in found:
            of_task = (standing for other, standing in found.items() if other.partition == partition.partition)
            standing = self._standings[partition] = common(of_task, self._initial)
            self._limits.pop(partition, None)
            if standing.results is not Results.WRITES and standing.peer:
                self._limits[partition] = -1  # until the first look
        self._next_look = 0.0

    def noted(self, partition: TopicPartition, metadata: str) -> str:
        """Return the metadata of a partition's committed offset, with its standing."""
        return self._standings.get(partition, self._initial).added_to(metadata)

    def paused(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions among these whose records lead to no results."""
        return [p for p in partitions if self._standings.get(p, self._initial).results is not Results.WRITES]

    def limits(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return offsets that must not be passed; one that is not past a position allows no batch of its task."""
        return {p: self._limits[p] for p in positions if p in self._limits}

    def look(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Standing]:
        """Return the standings to commit with these positions, of tasks that take a step now.

        positions: without those of tasks whose results are ahead of their state.
        """
        now = time.monotonic()
        if now < self._next_look:
            return {}
        self._next_look = now + _LOOK
        try:
            return dict(self._steps(positions))
        except AuthorizationError as error:  # usual, unless a switch is on
            log.log(
                logging.WARNING if self._limits else logging.DEBUG, "%s: cannot be switched: %s", self._group, error
            )
            self._next_look = now + _LOOK_REFUSED
        except ClientError as error:
            log.info("%s: cannot look whether a switch is asked for: %s", self._group, error)
        return {}

    def _steps(self, positions: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, Standing]]:
        asked = switch_asked(self._admin, self._group)
        tasks: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in positions.items():
            tasks.setdefault(partition.partition, {})[partition] = offset
        own = {number: self._standings[next(iter(at))] for number, at in tasks.items()}
        seen = self._seen(tasks, own, asked)
        for number, at in tasks.items():
            before = own[number]
            standing, limits = step(self._group, before, at, asked, seen.get(peer_of(self._group, before, asked), {}))
            self._limits = {p: limit for p, limit in self._limits.items() if p not in at} | dict(limits)
            if standing != before:
                yield from dict.fromkeys(at, standing).items()
            if (
                standing != before
                or standing.results in (Results.WAITS, Results.HANDED_OVER)
                or _is_due(asked, standing)
            ):
                self._next_look = time.monotonic() + _LOOK_AMID

    def _seen(
        self,
        tasks: Mapping[int, Mapping[TopicPartition, int]],
        own: Mapping[int, Standing],
        asked: Request | None,
    ) -> dict[str, dict[TopicPartition, Seen]]:
        """Return the other groups' committed offsets of the tasks that depend on them. Raises ClientError."""
        wanted: dict[str, list[TopicPartition]] = {}
        for number, at in tasks.items():
            if peer := peer_of(self._group, own[number], asked):
                wanted.setdefault(peer, []).extend(at)
        found = {peer: self._admin.group_offsets(peer, of, stable=False) for peer, of in wanted.items()}
        return {peer: {p: Seen.of(at) for p, at in of.items()} for peer, of in found.items()}

    def stand(self, standings: Mapping[TopicPartition, Standing]) -> None:
        """Record standings that were committed."""
        self._standings.update(standings)


def _is_due(asked: Request | None, standing: Standing) -> bool:
    """Return True for a task that is to hand over."""
    return asked is not None and standing.results is Results.WRITES and standing.switch != asked.switch
