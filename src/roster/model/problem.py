"""An assignor's input: members, topics and claims as columns.

Members and topics are indexed in an order that does not depend on the order of the input. Every partition of every
subscribed topic has one flat number: `first[topic] + partition`. All data about partitions are arrays over these
numbers, so an assignor never loops over partitions in Python.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roster.model.arrays import Bool, Int32, Int64
from roster.model.topics import TopicPartition

NO_OWNER = -1
"""Member index for a partition without an owner."""

NO_GENERATION = -1

MAX_PARTITIONS = 10_000_000
"""Most partitions of all topics of one problem: ten times as many as a large Kafka cluster has."""

MAX_CAPACITY = 1 << 20
"""The largest capacity of a member."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member, for `Problem.build`; `owned` is a claim, which the assignor compares with other members' claims."""

    topics: Collection[str] = ()
    owned: Mapping[str, Iterable[int]] = field(default_factory=dict)
    generation: int = NO_GENERATION
    instance: str | None = None
    rack: str | None = None
    capacity: int = 1
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Racks:
    """Racks of members and replicas; the sets of replica racks are stored once each, as there are few.

    `member[m]` is the rack of member m or None. `sets[set_of[p]]` are the racks with a replica of flat partition p.
    """

    member: tuple[str | None, ...]
    sets: tuple[frozenset[str], ...]
    set_of: Int32

    def matter(self, members: Iterable[int], sets: Iterable[int]) -> bool:
        """Return True if racks can change the assignment (KIP-881).

        They can if a member is in a rack with a replica of a partition, and not every partition has replicas in all
        racks. `sets`: numbers of the sets of the partitions in question.
        """
        present = {self.sets[i] for i in sets}
        union = frozenset().union(*present)
        return present != {union} and any(self.member[m] in union for m in members)

    def tells_apart(self, members: Iterable[int]) -> bool:
        """Return the same for all partitions whose replicas have known racks."""
        return self.matter(members, [i for i in np.unique(self.set_of).tolist() if self.sets[i]])

    def suits(self) -> Bool:
        """Return [members, sets]: True where the member matches, or where no replica rack is known, so that all are
        alike.
        """
        unknown = np.array([not replicas for replicas in self.sets])
        return np.asarray(self.matches() | unknown, dtype=np.bool_)

    def matches(self) -> Bool:
        """Return [members, sets]: True where the member has no rack or a replica is in its rack.

        As in Kafka, a member with a rack matches nothing where no replica rack is known.
        """
        racks = {rack: i for i, rack in enumerate(sorted({r for r in self.member if r is not None}))}
        by_rack = np.array([[rack in replicas for replicas in self.sets] for rack in racks] + [[True] * len(self.sets)])
        return np.asarray(by_rack[[len(racks) if r is None else racks[r] for r in self.member]], dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """Claims: in row i, member `member[i]` claims flat partition `partition[i]`; rows are valid and distinct."""

    member: Int32
    partition: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One assignment to be made.

    members: ids; static ones by instance id, then dynamic ones by member id, both in Kafka's (UTF-16) order.
    instances: the members' instance ids, None for dynamic ones.
    topics: names of the existing topics with subscribers, ascending.
    first: [topics + 1] flat number of each topic's partition 0; the last entry is the number of partitions.
    subscriptions: the distinct subscriptions, each as ascending topic indices.
    subscription_of: [members] index of the member's subscription.
    claims: the partitions that members claim to own. generation: [members] the generation of each member's claims, -1
    if none.
    racks: None unless a member is in a rack with a replica; `Racks.matter` tells whether racks can change the plan.
    member_racks: the rack of each member, None if it names none.
    unreadable: ids of members whose subscription could not be decoded; here they are members without topics.
    user_data: [members] user data of the subscriptions, as the members' assignor made it; None where null.
    group_generation: the generation being formed, -1 if not known.

    For assignors that balance lag: lag: [partitions] records still to be read, None if unknown. capacity: [members] how
    many members of capacity 1 each counts for, None if all have capacity 1. settling: members have just given up
    partitions that are now assigned to others, so this is the second round of a rebalance.
    """

    members: tuple[str, ...]
    instances: tuple[str | None, ...]
    topics: tuple[str, ...]
    first: Int64
    subscriptions: tuple[Int32, ...]
    subscription_of: Int32
    claims: Claims
    generation: Int32
    racks: Racks | None = None
    unreadable: frozenset[str] = frozenset()
    lag: Int64 | None = None
    capacity: Int32 | None = None
    settling: bool = False
    user_data: tuple[bytes | None, ...] = ()
    group_generation: int = NO_GENERATION
    member_racks: tuple[str | None, ...] = ()

    @property
    def partition_count(self) -> int:
        """Total number of partitions."""
        return int(self.first[-1])

    @property
    def counts(self) -> Int64:
        """[topics] number of partitions of each topic."""
        return np.asarray(self.first[1:] - self.first[:-1])

    def topics_of(self, member: str) -> frozenset[str]:
        """Return the existing topics that a member subscribes to. Raises ValueError for an unknown member."""
        subscription = self.subscriptions[int(self.subscription_of[self.members.index(member)])]
        return frozenset(self.topics[topic] for topic in subscription.tolist())

    def topic_of(self) -> Int32:
        """Return [partitions] the topic index of each flat partition."""
        return np.repeat(np.arange(len(self.topics), dtype=np.int32), self.counts)

    def number_of(self) -> Int32:
        """Return [partitions] the partition number within its topic."""
        return (np.arange(self.partition_count) - np.repeat(self.first[:-1], self.counts)).astype(np.int32)

    def topic_partition(self, partition: int) -> TopicPartition:
        """Return the topic and number of a flat partition."""
        topic = int(np.searchsorted(self.first, partition, side="right")) - 1
        return TopicPartition(self.topics[topic], partition - int(self.first[topic]))

    @classmethod
    def build(
        cls,
        members: Mapping[str, MemberInfo],
        partitions: Mapping[str, int],
        *,
        replica_racks: Mapping[str, Sequence[Collection[str]]] | None = None,
        group_generation: int = NO_GENERATION,
    ) -> "Problem":
        """Build a problem from a mapping of members; `replica_racks[topic][partition]` are the racks with a replica.

        Claims to partitions that do not exist and subscriptions to topics without partitions are dropped.
        """
        topic_index = {name: i for i, name in enumerate(partitions)}
        distinct: dict[tuple[int, ...], int] = {}
        subscription_of, claim_member, claim_topic, claim_number = [], [], [], []
        for m, info in enumerate(members.values()):
            key = tuple(sorted({topic_index[t] for t in info.topics if t in topic_index}))
            subscription_of.append(distinct.setdefault(key, len(distinct)))
            for topic, numbers in info.owned.items():
                if topic in topic_index:
                    valid = [n for n in numbers if 0 <= n < partitions[topic]]
                    claim_member += [m] * len(valid)
                    claim_topic += [topic_index[topic]] * len(valid)
                    claim_number += valid
        return cls.from_columns(
            members=list(members),
            instances=[info.instance for info in members.values()],
            member_racks=[info.rack or None for info in members.values()],
            topics=list(partitions),
            counts=np.array(list(partitions.values()), dtype=np.int64),
            subscriptions=[np.array(key, dtype=np.int32) for key in distinct],
            subscription_of=np.array(subscription_of, dtype=np.int32),
            generation=np.array([info.generation for info in members.values()], dtype=np.int32),
            claim_member=np.array(claim_member, dtype=np.int32),
            claim_topic=np.array(claim_topic, dtype=np.int32),
            claim_number=np.array(claim_number, dtype=np.int64),
            replica_racks=replica_racks,
            capacity=_capacity([info.capacity for info in members.values()]),
            user_data=[info.user_data for info in members.values()],
            group_generation=group_generation,
        )

    @classmethod
    def from_columns(
        cls,
        *,
        members: Sequence[str],
        instances: Sequence[str | None],
        member_racks: Sequence[str | None],
        topics: Sequence[str],
        counts: Int64,
        subscriptions: Sequence[Int32],
        subscription_of: Int32,
        generation: Int32,
        claim_member: Int32,
        claim_topic: Int32,
        claim_number: Int32 | Int64,
        replica_racks: Mapping[str, Sequence[Collection[str]]] | None = None,
        unreadable: frozenset[str] = frozenset(),
        capacity: Int32 | None = None,
        settling: bool = False,
        user_data: Sequence[bytes | None] | None = None,
        group_generation: int = NO_GENERATION,
    ) -> "Problem":
        """Build a problem from columns in any order.

        `topics` may contain topics without subscribers. `subscriptions` are indices into it and may repeat. Claims may
        have any topic index (-1: unknown) and any partition number, and may repeat; those that do not exist are
        dropped.
        """
        members_order = member_order(members, instances)
        listed = np.concatenate((*subscriptions, np.zeros(0, dtype=np.int32)))
        listing = np.repeat(
            np.arange(len(subscriptions)), np.fromiter(map(len, subscriptions), np.int64, len(subscriptions))
        )
        in_use = np.zeros(len(subscriptions), dtype=np.bool_)
        in_use[subscription_of] = True
        wanted = np.zeros(len(topics), dtype=np.bool_)
        wanted[listed[in_use[listing]]] = True
        wanted &= counts > 0
        kept = np.flatnonzero(wanted)
        names = list(map(topics.__getitem__, kept.tolist()))
        topics_order = kafka_order(names)
        new_topic = np.full(len(topics) + 1, -1, dtype=np.int32)
        new_topic[kept[topics_order]] = np.arange(len(kept), dtype=np.int32)
        first = np.zeros(len(kept) + 1, dtype=np.int64)
        np.cumsum(counts[kept[topics_order]], out=first[1:])

        canonical, merged = _distinct_subscriptions(len(subscriptions), listing, new_topic[listed], in_use)
        by_member = merged[subscription_of][members_order] if len(members) else np.zeros(0, dtype=np.int32)
        appearance, renumber = _by_first_use(by_member, len(canonical))

        topic = new_topic[claim_topic]
        count_of = np.append(counts, 0)[claim_topic]
        valid = (topic >= 0) & (claim_number >= 0) & (claim_number < count_of)
        if not valid.all():
            topic, claim_number, claim_member = topic[valid], claim_number[valid], claim_member[valid]
        new_member = np.empty(len(members), dtype=np.int32)
        new_member[members_order] = np.arange(len(members), dtype=np.int32)
        claims = _claims(new_member[claim_member], first[topic] + claim_number, int(first[-1]))

        ordered = members_order.tolist()
        ordered_topics = tuple(map(names.__getitem__, topics_order.tolist()))
        ordered_racks = tuple(map(member_racks.__getitem__, ordered))
        return cls(
            members=tuple(map(members.__getitem__, ordered)),
            instances=tuple(map(instances.__getitem__, ordered)),
            topics=ordered_topics,
            first=first,
            subscriptions=tuple(canonical[i] for i in appearance.tolist()),
            subscription_of=renumber[by_member],
            claims=claims,
            generation=generation[members_order],
            racks=_racks(ordered_racks, ordered_topics, first, replica_racks),
            unreadable=unreadable,
            capacity=None if capacity is None else capacity[members_order],
            settling=settling,
            user_data=(None,) * len(ordered) if user_data is None else tuple(map(user_data.__getitem__, ordered)),
            group_generation=group_generation,
            member_racks=ordered_racks,
        )


def _capacity(capacities: Sequence[int]) -> Int32 | None:
    """Return [members] the capacities, or None if all are 1; values out of range are clamped."""
    if all(capacity == 1 for capacity in capacities):
        return None
    return np.array([min(max(capacity, 1), MAX_CAPACITY) for capacity in capacities], dtype=np.int32)


def kafka_order(names: Sequence[str]) -> Int64:
    """Return the permutation that sorts names as Java's String.compareTo does: by UTF-16 code units."""
    if "".join(names).isascii():
        return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    units = [name.encode("utf-16-be", "surrogatepass") for name in names]
    return np.array(sorted(range(len(names)), key=units.__getitem__), dtype=np.int64)


def member_order(members: Sequence[str], instances: Sequence[str | None]) -> Int64:
    """Return the order of members: static by instance id, then dynamic by id (AbstractPartitionAssignor.MemberInfo)."""
    order = kafka_order(members)
    if instances.count(None) == len(members):
        return order
    by_id = order.tolist()
    static = [i for i in by_id if instances[i] is not None]
    by_instance = kafka_order([instances[i] or "" for i in static])
    dynamic = [i for i in by_id if instances[i] is None]
    return np.array([static[i] for i in by_instance.tolist()] + dynamic, dtype=np.int64)


def _distinct_subscriptions(size: int, listing: Int64, topic: Int32, in_use: Bool) -> tuple[list[Int32], Int32]:
    """Return the distinct lists in use, each ascending without repetitions, and [lists] the index of each among them.

    In row i, list `listing[i]` (ascending) has topic `topic[i]`; rows with a topic below 0 are ignored.
    """
    listing, topic = listing[topic >= 0], topic[topic >= 0]
    if ((listing[1:] == listing[:-1]) & (topic[1:] <= topic[:-1])).any():
        bound = int(topic.max()) + 1
        listing, topic = np.divmod(np.unique(listing * bound + topic), bound)
    topic = topic.astype(np.int32, copy=False)
    data = topic.tobytes()
    ends = np.cumsum(np.bincount(listing, minlength=size)).tolist()
    distinct: dict[bytes, int] = {}
    canonical: list[Int32] = []
    number_of = np.zeros(max(size, 1), dtype=np.int32)
    for number in np.flatnonzero(in_use).tolist():
        begin, end = ends[number - 1] if number else 0, ends[number]
        known = distinct.setdefault(data[4 * begin : 4 * end], len(canonical))
        number_of[number] = known
        if known == len(canonical):
            canonical.append(topic[begin:end])
    return canonical, number_of


def _by_first_use(codes: Int32, size: int) -> tuple[Int64, Int32]:
    """Return the codes in order of first appearance, and the new number of each code."""
    _, first_at = np.unique(codes, return_index=True)
    appearance = codes[np.sort(first_at)].astype(np.int64)
    renumber = np.zeros(size, dtype=np.int32)
    renumber[appearance] = np.arange(len(appearance), dtype=np.int32)
    return appearance, renumber


def _claims(member: Int32, partition: Int64, partition_count: int) -> Claims:
    """Return claims without repetitions, ordered by partition if a partition is claimed more than once."""
    if len(partition) and int(np.bincount(partition, minlength=partition_count).max()) > 1:
        order = np.lexsort((member, partition))
        member, partition = member[order], partition[order]
        fresh = np.ones(len(member), dtype=np.bool_)
        fresh[1:] = (partition[1:] != partition[:-1]) | (member[1:] != member[:-1])
        member, partition = member[fresh], partition[fresh]
    return Claims(member, partition)


def _racks(
    member_racks: tuple[str | None, ...],
    topics: tuple[str, ...],
    first: Int64,
    replica_racks: Mapping[str, Sequence[Collection[str]]] | None,
) -> Racks | None:
    """Return the rack columns, or None if racks cannot change the plan."""
    if not replica_racks or not any(member_racks):
        return None
    distinct: dict[frozenset[str], int] = {}
    set_of = np.full(int(first[-1]), distinct.setdefault(frozenset(), 0), dtype=np.int32)
    for t, topic in enumerate(topics):
        start = int(first[t])
        replicas = replica_racks.get(topic, ())[: int(first[t + 1]) - start]
        numbers = [distinct.setdefault(frozenset(r for r in racks if r), len(distinct)) for racks in replicas]
        set_of[start : start + len(numbers)] = numbers
    if frozenset().union(*distinct).isdisjoint(r for r in member_racks if r is not None):
        return None
    return Racks(member_racks, tuple(distinct), set_of)
