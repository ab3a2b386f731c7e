"""Values that the client returns."""

from dataclasses import dataclass, field

from roster.client.errors import ClientError
from roster.model import TopicPartition
from roster.wire.consumer import CLASSIC


@dataclass(frozen=True, slots=True)
class Ownership:
    """Partitions of a member at one moment.

    `partitions` may be worked on; `revoking` must be finished, committed and released before `revoke_deadline`
    (time.monotonic seconds); `lost` were owned until the last change and are gone: commits for them fail. The three are
    disjoint. `epoch` grows with every change, `generation` is -1 and `member_id` "" outside the group. `error` is set
    once, when the member cannot go on.
    """

    generation: int = -1
    member_id: str = ""
    partitions: frozenset[TopicPartition] = frozenset()
    revoking: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()
    revoke_deadline: float | None = None
    epoch: int = 0
    error: ClientError | None = None


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """Event of a member, for logs and views.

    `kind` is one of coordinator, joining, joined, leading, assigned, revoking, lost, rejoin, retry, left, failed.
    `cause` says why the generation that was joined began, as far as this member knows: join, leave, replaced, expired,
    partitions, subscription, revoked, own, unknown.
    """

    kind: str
    text: str
    generation: int = -1
    member_id: str = ""
    partitions: frozenset[TopicPartition] = frozenset()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster's metadata has it; `topic_id` is None on brokers without topic ids."""

    name: str
    topic_id: bytes | None
    internal: bool
    partitions: "tuple[PartitionDescription, ...]"


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition: the broker id of its leader (-1: none), its replicas and the in-sync ones."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as ListGroups has it.

    `group_type` is classic, consumer (KIP-848), share or streams; "" from brokers before Kafka 3.8, which have classic
    groups only. `state` is "" from brokers before Kafka 2.6.
    """

    group_id: str
    protocol_type: str
    state: str
    group_type: str = ""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group, with the partitions its assignment holds.

    `metadata` are the bytes of the subscription it last joined with, under the group's protocol; a coordinator shows
    them only while the group is stable. `user_data` is what the group's leader sent beside the assignment.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition] = field(default_factory=list)
    metadata: bytes = b""
    user_data: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator sees it; `coordinator` is host:port.

    `group_type` is classic or consumer (KIP-848). In a consumer group `protocol` is the assignor of the broker, `epoch`
    the group epoch, and members have no metadata; in a classic group `epoch` is None.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: list[MemberDescription]
    coordinator: str
    group_type: str = CLASSIC
    epoch: int | None = None
