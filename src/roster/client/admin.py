"""Administration of topics and groups from plain blocking code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Self

from roster.client.cluster import Cluster
from roster.client.coordinators import Coordinators
from roster.client.errors import ClosedError, OptionError
from roster.client.group_admin import GroupAdmin
from roster.client.loop import LoopThread
from roster.client.offsets import committed_offsets, delete_records, list_offsets, log_offsets, pending_offsets
from roster.client.security_admin import SecurityAdmin
from roster.client.topic_admin import TopicAdmin
from roster.client.transaction_admin import TransactionAdmin
from roster.client.types import (
    GroupDescription,
    GroupListing,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from roster.model import OffsetAndMetadata, TopicPartition
from roster.model.acl import AclBinding, AclFilter
from roster.model.offsets import OffsetSpec
from roster.security import Security
from roster.wire.messages import CreateTopicsRequest


class Admin:
    """Administration of any Kafka-compatible cluster; thread-safe and blocking, usable as a context manager.

    Connects with the first call. Every call can raise UnreachableError (no broker answered), RequestTimeoutError,
    UnsupportedError (the broker is too old for the request), AuthorizationError and BrokerError.

    Args:
        bootstrap: brokers to ask first, "host:port", several with commas or as a list; the default port is 9092.
        client_id: name in the brokers' logs.
        request_timeout_ms: ms to wait for a response, and to retry a request that may succeed later.
        security: TLS and SASL: settings by their names in Kafka's clients, as in {"security.protocol": "SSL"}, or what
            `roster.security.load_properties` read; None: PLAINTEXT.

    Raises:
        OptionError: an argument has an invalid value; `option` is its name.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "roster-admin",
        request_timeout_ms: int = 30_000,
        security: Security | Mapping[str, object] | None = None,
    ) -> None:
        if isinstance(request_timeout_ms, bool) or not isinstance(request_timeout_ms, int) or request_timeout_ms < 1:
            raise OptionError("request_timeout_ms", f"must be a positive number of ms, not {request_timeout_ms!r}")
        chance = Random()  # no secret
        self._cluster = Cluster(bootstrap, client_id, request_timeout_ms / 1000, chance, security)
        self._coordinators = Coordinators(self._cluster)
        self._topics = TopicAdmin(self._cluster)
        self._groups = GroupAdmin(self._cluster, self._coordinators)
        self._transactions = TransactionAdmin(self._cluster)
        self._security = SecurityAdmin(self._cluster)
        self._loop: LoopThread | None = None
        self._closed = False

    @property
    def _run(self) -> LoopThread:
        if self._closed:
            raise ClosedError("the admin client is closed")
        if self._loop is None:
            self._loop = LoopThread("roster-admin")
        return self._loop

    def close(self) -> None:
        """Close the connections; calls raise ClosedError from then on."""
        if self._loop is not None and not self._closed:
            self._loop.call(self._cluster.close())
            self._loop.stop()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Topics.

    def create_topic(
        self, name: str, partitions: int = 1, *, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until the metadata shows it.

        Args:
            name: its name.
            partitions: how many, from 1 up.
            replication: replicas of each partition; -1 for the cluster's default.
            configs: settings of the topic, as in {"cleanup.policy": "compact"}.

        Raises:
            TopicExistsError: there is a topic of this name.
            InvalidTopicError: the cluster does not allow the name, a number or a setting.
            OptionError: `partitions` is less than 1.
        """
        if partitions < 1:
            raise OptionError("partitions", f"must be at least 1, not {partitions}")
        topic = CreateTopicsRequest.Topic(name=name, num_partitions=partitions, replication_factor=replication)
        topic.configs = [CreateTopicsRequest.Config(name=key, value=value) for key, value in (configs or {}).items()]
        self._run.call(self._topics.create(topic))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, and wait until it is gone from the metadata.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        self._run.call(self._topics.delete(name))

    def create_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions of a topic to `total`, and wait until the metadata shows them.

        Raises:
            UnknownTopicError: the topic does not exist.
            InvalidTopicError: `total` is not more than the topic has.
        """
        self._run.call(self._topics.grow(name, total))

    def cluster_id(self) -> str | None:
        """Return the cluster's id; None from brokers before Kafka 0.10.1."""
        return self._run.call(self._cluster.metadata(())).cluster_id

    def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        """Return {name: number of partitions}, sorted by name; with `internal` also the cluster's own topics."""
        return self._run.call(self._topics.list_topics(internal=internal))

    def topic_ids(self) -> dict[str, bytes]:
        """Return {name: id} of all topics with ids, which Kafka has since 2.8."""
        return self._run.call(self._topics.topic_ids())

    def describe_topic(self, name: str) -> TopicDescription:
        """Return the partitions of a topic, their leaders and replicas.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        return self._run.call(self._topics.describe(name))

    def topic_configs(self, name: str) -> dict[str, str | None]:
        """Return the settings of a topic, defaults included; None for a value that the broker does not reveal.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        return self._run.call(self._topics.configs(name))

    def replica_racks(self, topics: Collection[str]) -> dict[str, list[frozenset[str]]]:
        """Return racks[topic][partition]: the racks of the brokers that hold a replica.

        Topics that do not exist, or that this client may not see, are left out.
        """
        return self._run.call(self._topics.replica_racks(topics))

    # Offsets of logs.

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return self._run.call(log_offsets(self._cluster, partitions, OffsetSpec.EARLIEST))

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offset of each partition: the offset of its next record."""
        return self._run.call(log_offsets(self._cluster, partitions, OffsetSpec.LATEST))

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition, where the first open transaction begins."""
        return self._run.call(log_offsets(self._cluster, partitions, OffsetSpec.LATEST, is_committed=True))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset of each partition, -1 for all; return the first offset left.

        Raises:
            UnknownTopicError: the topic or partition does not exist.
            BrokerError: an offset is past the end of its partition, or the topic is compacted.
        """
        return self._run.call(delete_records(self._cluster, before))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each time, in ms since the epoch; None if all records are older."""
        return self._run.call(list_offsets(self._cluster, dict(times)))

    # Groups.

    def list_groups(self) -> list[GroupListing]:
        """List the groups of the cluster, sorted by name."""
        return self._run.call(self._groups.list_groups())

    def describe_group(self, group: str) -> GroupDescription:
        """Describe a classic or a consumer group: its state and members.

        Raises:
            UnknownGroupError: the group does not exist.
            GroupTypeError: the group is of another type, such as share.
        """
        return self._run.call(self._groups.describe(group))

    def group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, all or of `partitions`; partitions without one are left out.

        With `stable`, waits for the end of transactions that hold offsets of these partitions.
        """
        return self._run.call(committed_offsets(self._coordinators, group, partitions, stable=stable))

    def pending_offsets(self, group: str, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions among these for which an open transaction holds an offset of the group."""
        return self._run.call(pending_offsets(self._coordinators, group, partitions))

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members.

        Raises:
            GroupNotEmptyError: the group has members.
            CommitError: not all of the partitions exist.
        """
        if offsets:
            self._run.call(self._groups.commit(group, offsets))

    def delete_group(self, group: str) -> None:
        """Delete a group and its offsets.

        Raises:
            UnknownGroupError: the group does not exist.
            GroupNotEmptyError: the group has members.
        """
        self._run.call(self._groups.delete(group))

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete committed offsets of a group.

        Raises:
            GroupNotEmptyError: a member subscribes to the topic of one of them.
        """
        self._run.call(self._groups.delete_offsets(group, partitions))

    # Transactions.

    def list_transactions(self, states: Collection[str] = ()) -> list[TransactionListing]:
        """List the transactional ids of the cluster, all or those in `states`, sorted by name."""
        return self._run.call(self._transactions.listed(states))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Describe a transactional id: its state, producer and partitions.

        Raises:
            UnknownTransactionError: the transactional id does not exist.
        """
        return self._run.call(self._transactions.describe(transactional_id))

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id, and fence its producer.

        Raises:
            UnknownTransactionError: the transactional id does not exist.
        """
        self._run.call(self._transactions.abort(transactional_id))

    # Users and ACLs.

    def list_users(self) -> dict[str, dict[str, int]]:
        """Return the users with SCRAM credentials as {user: {mechanism: iterations}}, sorted by name."""
        return self._run.call(self._security.users())

    def set_password(self, user: str, password: str) -> None:
        """Create a user, or change the password; the brokers get its salted hashes, one for each SCRAM mechanism."""
        self._run.call(self._security.set_password(user, password))

    def remove_user(self, user: str) -> None:
        """Delete the credentials of a user; open connections stay.

        Raises:
            UnknownUserError: the user does not exist.
        """
        self._run.call(self._security.remove_user(user))

    def create_acls(self, acls: Collection[AclBinding]) -> None:
        """Create ACLs; those that are there already stay as they are."""
        self._run.call(self._security.create_acls(acls))

    def list_acls(self, wanted: AclFilter | None = None) -> list[AclBinding]:
        """Return ACLs, all or those that a filter matches, sorted."""
        return self._run.call(self._security.acls(wanted or AclFilter()))

    def delete_acls(self, wanted: AclFilter) -> list[AclBinding]:
        """Delete the ACLs that a filter matches, and return them."""
        return self._run.call(self._security.delete_acls(wanted))
