"""The assignors as classes for aiokafka: `partition_assignment_strategy=[RosterSticky]`.

Give classes or instances. aiokafka calls a class directly, so that all consumers of a process would share its state;
these classes tell consumers apart by the task that coordinates each, and share nothing.

Give one strategy: aiokafka joins a group once for each of several. It knows no cooperative rebalancing (aiokafka issue
1126), so there is no cooperative class here.

aiokafka never passes the generation (issue 1176), and KIP-341 needs it to tell an old claim from a new one. Instead
claims are dated by a clock of assignments: each assignment counts one up, and a leader of Roster's plug-ins stamps what
it assigns with one above the newest claim it saw. The clock never runs ahead of the group's generation while the group
lives, so claims that carry real generations are not displaced by it; a consumer that missed a rebalance is behind, and
its claims yield. Rebalancing is eager, so a misjudged claim costs a move, never a partition owned twice.

aiokafka does not pass on instance ids either: static members are ordered by member id here, so `range` and `roundrobin`
may move partitions when one restarts. Members whose subscription cannot be parsed make aiokafka's leader fail before it
asks an assignor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakKeyDictionary

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor

from roster.assignors import RANGE, ROUNDROBIN, STICKY, Assignor, ClaimSource, JoinContext
from roster.model import NO_GENERATION, TopicPartition
from roster.plugins.group import LAST_STAMP, Seen, assign_group, resolve_eager, stamp_of
from roster.wire.consumer.messages import Subscription, encode_subscription

__all__ = ["RosterCustom", "RosterRange", "RosterRoundRobin", "RosterSticky"]

_Answer = TypeVar("_Answer")


class _OfConsumer(Generic[_Answer]):
    """A method that, called on the class, goes to the instance that belongs to the consumer whose task is running."""

    def __init__(self, method: Callable[..., _Answer]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: _RosterAssignor | None, owner: type[_RosterAssignor]) -> Callable[..., _Answer]:
        if instance is not None:
            return partial(self._method, instance)
        return lambda *arguments: self._method(owner.of_this_consumer(), *arguments)


class _RosterAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka is untyped
    """Common base; its state is the last assignment of one consumer."""

    name: str
    _assignor: Assignor
    _instances: ClassVar[WeakKeyDictionary[asyncio.Task[Any], _RosterAssignor]]

    def __init__(self, rack: str | None = None) -> None:
        self._rack = rack
        self._given: frozenset[TopicPartition] = frozenset()
        self._clock = NO_GENERATION

    def __init_subclass__(cls) -> None:
        cls._instances = WeakKeyDictionary()

    @classmethod
    def of_this_consumer(cls) -> _RosterAssignor:
        """The instance for the running task, which for aiokafka's calls is the one task that coordinates a consumer."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is None:
            raise RuntimeError(f"{cls.__name__} is called outside a task; use an instance: {cls.__name__}()")
        if task not in cls._instances:
            cls._instances[task] = cls()
        return cls._instances[task]

    @_OfConsumer
    def metadata(self, topics: Collection[str]) -> bytes:
        """The subscription to join with, in bytes."""
        join = JoinContext(
            topics=frozenset(topics), last_assignment=self._given, last_generation=self._clock, rack=self._rack
        )
        user_data = self._assignor.subscription_user_data(join)
        return encode_subscription(Subscription(topics=sorted(topics), user_data=user_data, rack_id=self._rack))

    @_OfConsumer
    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, bytes]:
        """Every member's assignment, in bytes; `members` are decoded as version 0 of the subscription."""
        return assign_group(
            self._assignor,
            [
                Seen(member_id, metadata.subscription, metadata.user_data or None)
                for member_id, metadata in members.items()
            ],
            lambda topic: len(cluster.partitions_for_topic(topic) or ()),
        )

    @_OfConsumer
    def on_assignment(self, assignment: Any) -> None:
        """Remember the consumer's assignment, and advance the clock."""
        self._given = frozenset(TopicPartition(*partition) for partition in assignment.partitions())
        stamp = NO_GENERATION
        if self._assignor.claim_source is ClaimSource.STICKY_USER_DATA:
            stamp = stamp_of(assignment.user_data)
        self._clock = min(max(self._clock + 1, stamp), LAST_STAMP)
        self._assignor.on_assignment(self._given, assignment.user_data or None, self._clock)


class RosterCustom(_RosterAssignor):
    """An assignor of your own, eager: `partition_assignment_strategy=[RosterCustom(MyAssignor())]`.

    Give each consumer an instance of its own. Generations are counts of assignments here; neither the generation being
    formed nor racks of replicas are known.
    """

    name = "custom"

    def __init__(self, assignor: Assignor, rack: str | None = None) -> None:
        super().__init__(rack)
        self._assignor = resolve_eager(assignor)
        self.name = assignor.name


class RosterRange(_RosterAssignor):
    """`range`, each topic cut into contiguous ranges."""

    name = RANGE.name
    _assignor = RANGE


class RosterRoundRobin(_RosterAssignor):
    """`roundrobin`, all partitions dealt in turn."""

    name = ROUNDROBIN.name
    _assignor = ROUNDROBIN


class RosterSticky(_RosterAssignor):
    """`sticky`: as balanced as can be, then the fewest moves."""

    name = STICKY.name
    _assignor = STICKY
