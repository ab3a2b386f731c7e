"""The assignors as classes for aiokafka: `partition_assignment_strategy=[RosterSticky]`.

Give classes or instances. aiokafka calls methods on the class itself, which all consumers of a process share; these
classes find the state of each consumer by the asyncio task that coordinates it.

Give one strategy only: with several, aiokafka joins the group once for each. aiokafka does not support cooperative
rebalancing (aiokafka issue 1126), so this module has no cooperative class.

aiokafka does not pass the generation to an assignor (issue 1176), and KIP-341 needs it to tell an old claim from a new
one. These classes count assignments instead: each assignment adds one, and a leader that uses them stamps its
assignment with one more than the newest claim. The count is never above the group's generation while the group exists,
so it does not supersede claims with real generations. A consumer that missed a rebalance has a lower count, and its
claims yield. Rebalancing is eager, so a wrong decision about a claim costs a move, but no partition has two owners.

aiokafka does not pass instance ids either: static members are ordered by member id here, so `range` and `roundrobin`
may move partitions when one restarts. If a member's subscription cannot be parsed, aiokafka's leader fails before it
calls an assignor.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakKeyDictionary

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor

from roster.assignors import RANGE, ROUNDROBIN, STICKY, Assignor, ClaimSource, JoinContext
from roster.model import NO_GENERATION, TopicPartition
from roster.plugins.group import LAST_STAMP, MemberView, assign_group, resolve_eager, stamp_of
from roster.wire.consumer.messages import Subscription, encode_subscription

__all__ = ["RosterCustom", "RosterRange", "RosterRoundRobin", "RosterSticky"]

_Answer = TypeVar("_Answer")


class _OfConsumer(Generic[_Answer]):
    """A method that, when called on the class, runs on the instance of the consumer whose task is running."""

    def __init__(self, method: Callable[..., _Answer]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: "_RosterAssignor | None", owner: "type[_RosterAssignor]") -> Callable[..., _Answer]:
        if instance is not None:
            return partial(self._method, instance)
        return lambda *arguments: self._method(owner.of_this_consumer(), *arguments)


class _RosterAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka is untyped
    """Base of the classes; its state is the last assignment of one consumer."""

    name: str
    _assignor: Assignor
    _instances: "ClassVar[WeakKeyDictionary[asyncio.Task[Any], _RosterAssignor]]"

    def __init__(self, rack: str | None = None) -> None:
        self._rack = rack
        self._given: frozenset[TopicPartition] = frozenset()
        self._assignments = NO_GENERATION

    def __init_subclass__(cls) -> None:
        cls._instances = WeakKeyDictionary()

    @classmethod
    def of_this_consumer(cls) -> "_RosterAssignor":
        """Return the instance for the running task; aiokafka coordinates each consumer in one task."""
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
        """Return the bytes of the subscription for JoinGroup."""
        join = JoinContext(
            topics=frozenset(topics), last_assignment=self._given, last_generation=self._assignments, rack=self._rack
        )
        user_data = self._assignor.subscription_user_data(join)
        return encode_subscription(Subscription(topics=sorted(topics), user_data=user_data, rack_id=self._rack))

    @_OfConsumer
    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the bytes of every member's assignment; `members` are decoded as version 0 of the subscription."""
        return assign_group(
            self._assignor,
            [
                MemberView(member_id, metadata.subscription, metadata.user_data or None)
                for member_id, metadata in members.items()
            ],
            lambda topic: len(cluster.partitions_for_topic(topic) or ()),
        )

    @_OfConsumer
    def on_assignment(self, assignment: Any) -> None:
        """Store the consumer's assignment, and update the count of assignments."""
        self._given = frozenset(TopicPartition(*partition) for partition in assignment.partitions())
        stamp = NO_GENERATION
        if self._assignor.claim_source is ClaimSource.STICKY_USER_DATA:
            stamp = stamp_of(assignment.user_data)
        self._assignments = min(max(self._assignments + 1, stamp), LAST_STAMP)
        self._assignor.on_assignment(self._given, assignment.user_data or None, self._assignments)


class RosterCustom(_RosterAssignor):
    """An eager assignor of your own: `partition_assignment_strategy=[RosterCustom(MyAssignor())]`.

    Give each consumer an instance of its own. Generations are counts of assignments here. The generation being formed
    and the racks of replicas are not known.
    """

    name = "custom"

    def __init__(self, assignor: Assignor, rack: str | None = None) -> None:
        super().__init__(rack)
        self._assignor = resolve_eager(assignor)
        self.name = assignor.name


class RosterRange(_RosterAssignor):
    """`range`: each topic divided into contiguous ranges."""

    name = RANGE.name
    _assignor = RANGE


class RosterRoundRobin(_RosterAssignor):
    """`roundrobin`: all partitions given to the members in turn."""

    name = ROUNDROBIN.name
    _assignor = ROUNDROBIN


class RosterSticky(_RosterAssignor):
    """`sticky`: as balanced as possible, then the fewest moves."""

    name = STICKY.name
    _assignor = STICKY
