"""Administration of topics and groups from plain blocking code."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Self

from roster.client.cluster import Cluster
from roster.client.coordinators import Coordinators
from roster.client.errors import ClosedError, OptionError
from roster.client.group_admin import GroupAdmin
from roster.client.loop import LoopThread, blocking
from roster.client.offsets import LogOffsets, delete_records
from roster.client.topic_admin import TopicAdmin
from roster.model import TopicPartition
from roster.security import Security


class Admin(TopicAdmin, LogOffsets, GroupAdmin):
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
        self._loop: LoopThread | None = None
        self._closed = False

    def _running(self) -> LoopThread:
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

    @blocking
    async def cluster_id(self) -> str | None:
        """Return the cluster's id; None from brokers before Kafka 0.10.1."""
        return (await self._cluster.metadata(())).cluster_id

    @blocking
    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset of each partition, -1 for all; return the first offset left.

        Raises:
            UnknownTopicError: the topic or partition does not exist.
            BrokerError: an offset is past the end of its partition, or the topic is compacted.
        """
        return await delete_records(self._cluster, before)
