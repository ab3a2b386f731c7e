"""When a member of a task group asks for the follow-up rebalance: once a store it restores has caught up.

Kafka Streams asks by a clock (`probing.rebalance.interval.ms`, ten minutes), so that a warm-up is used late or found
unready. Here the member that restores knows, and joins again at that moment with the new gap. Source: KIP-429 part II
(progress of standby tasks, reported when joining), KIP-441 (acceptable recovery lag, probing rebalances).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from roster.model.tasks import TaskId


class CatchUp:
    """The tasks that a member restores and has not caught up on since its last assignment.

    acceptable_lag: records up to which a store counts as caught up, as in the leader's `TaskProblem`.
    """

    def __init__(self, acceptable_lag: int) -> None:
        self._acceptable_lag = acceptable_lag
        self._behind: set[TaskId] = set()

    def assigned(self, restoring: Collection[TaskId], joined_with: Mapping[TaskId, int]) -> None:
        """Record a new assignment: its standby and warm-up tasks, and the gaps the member joined with.

        A task that had caught up then is known to the leader; one that was not named has the whole log as its gap.
        """
        self._behind = {task for task in restoring if not 0 <= joined_with.get(task, -1) <= self._acceptable_lag}

    def caught_up(self, gaps: Mapping[TaskId, int]) -> list[TaskId]:
        """Return the tasks that have caught up now, each once; the member joins again if there are any."""
        done = sorted(task for task in self._behind if 0 <= gaps.get(task, -1) <= self._acceptable_lag)
        self._behind.difference_update(done)
        return done
