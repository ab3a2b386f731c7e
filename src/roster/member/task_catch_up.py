"""Requests the follow-up rebalance as soon as a store that the member restores has caught up.

Kafka Streams rebalances every `probing.rebalance.interval.ms` (ten minutes) instead, so a warm-up is used late, or is
not ready yet. Here the restoring member rejoins with the new gap when the store has caught up. Source: KIP-429 part II
(progress of standby tasks, reported when joining), KIP-441 (acceptable recovery lag, probing rebalances).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from roster.model.tasks import TaskId


class CatchUp:
    """The tasks of the last assignment that a member restores and that have not caught up.

    acceptable_lag: a store with a gap of at most so many records has caught up, as in the leader's `TaskProblem`.
    """

    def __init__(self, acceptable_lag: int) -> None:
        self._acceptable_lag = acceptable_lag
        self._behind: set[TaskId] = set()

    def assigned(self, restoring: Collection[TaskId], joined_with: Mapping[TaskId, int]) -> None:
        """Record a new assignment: its standby and warm-up tasks, and the gaps that the member reported when joining.

        The leader knows of tasks that had caught up then. The gap of a task that was not reported is the whole log.
        """
        self._behind = {task for task in restoring if not 0 <= joined_with.get(task, -1) <= self._acceptable_lag}

    def caught_up(self, gaps: Mapping[TaskId, int]) -> list[TaskId]:
        """Return the tasks that have just caught up, each once; the member rejoins if there are any."""
        done = sorted(task for task in self._behind if 0 <= gaps.get(task, -1) <= self._acceptable_lag)
        self._behind.difference_update(done)
        return done
