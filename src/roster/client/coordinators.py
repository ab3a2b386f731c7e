"""Coordinators of groups and of transactional ids: lookup, cache, requests."""

from collections.abc import Callable

from roster.client.cluster import Cluster, M, expect
from roster.client.errors import BrokerError, RequestTimeoutError, UnreachableError, group_error, transaction_error
from roster.client.retry import Retry
from roster.member.types import Node
from roster.wire import ErrorCode, Message
from roster.wire.errors import error_code
from roster.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""

FENCE_TIMEOUT_MS = 60_000
"""Transaction timeout of a producer that takes over an id only to abort its transaction."""

STALE_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
RETRIABLE = STALE_COORDINATOR | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class Coordinators:
    """Sends requests to the coordinators of groups or transactional ids; finds and caches them."""

    def __init__(self, cluster: Cluster, key_type: int = GROUP) -> None:
        self._cluster = cluster
        self._key_type = key_type
        self._coordinators: dict[str, Node] = {}

    @property
    def timeout(self) -> float:
        """Seconds within which a request is answered, with its repetitions."""
        return self._cluster.timeout

    async def coordinator(self, group: str) -> Node:
        """Find the group's coordinator with FindCoordinator, retried within the request timeout while there is none."""
        if group in self._coordinators:
            return self._coordinators[group]
        retry = Retry(self._cluster.timeout)
        while True:
            request = FindCoordinatorRequest(key_type=self._key_type, coordinator_keys=[group])
            response = expect(await self._cluster.request_any(request), FindCoordinatorResponse)
            coordinator = response.coordinators[0] if response.coordinators else None
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if coordinator is None else error_code(coordinator.error_code)
            if coordinator is not None and code is ErrorCode.NONE:
                self._coordinators[group] = Node(coordinator.node_id, coordinator.host, coordinator.port)
                return self._coordinators[group]
            if code not in RETRIABLE:
                if self._key_type == TRANSACTION:
                    raise transaction_error(code, group, "its coordinator cannot be found")
                raise group_error(code, group, "its coordinator cannot be found")
            kind = "group" if self._key_type == GROUP else "transactional id"
            await retry.pause_or_fail(f"finding the coordinator of {kind} {group!r}", code.name)

    async def ask(self, group: str, request: Message, highest: int | None = None) -> Message:
        """Ask the group's coordinator, finding it again once if it cannot be reached."""
        for attempt in range(2):
            node = await self.coordinator(group)
            try:
                return await self._cluster.request(node, request, highest=highest)
            except (UnreachableError, RequestTimeoutError):
                self.forget(group)
                if attempt:
                    raise
        raise AssertionError("unreachable")

    async def ask_until_ready(
        self, group: str, request: Message, kind: type[M], code_of: Callable[[M], int], purpose: str
    ) -> tuple[M, ErrorCode]:
        """Ask until the coordinator is ready; return its response and the error code, which is none that passes."""
        retry = Retry(self.timeout)
        while True:
            response = expect(await self.ask(group, request), kind)
            code = error_code(code_of(response))
            if code not in RETRIABLE:
                return response, code
            if code in STALE_COORDINATOR:
                self.forget(group)
            await retry.pause_or_fail(purpose, code.name)

    def forget(self, group: str) -> None:
        """Drop the cached coordinator of a group."""
        self._coordinators.pop(group, None)


async def ask_each_broker(cluster: Cluster, request: Message, kind: type[M], what: str) -> dict[int, M]:
    """Return the answer of each broker about the groups or transactions that it coordinates, once it is ready.

    what: groups or transactions. Raises BrokerError.
    """
    await cluster.metadata(())
    answers: dict[int, M] = {}
    for broker, address in cluster.brokers.items():
        retry = Retry(cluster.timeout)
        while broker not in answers:
            response = expect(await cluster.request(address, request), kind)
            code = error_code(response.error_code)  # type: ignore[attr-defined]
            if code is ErrorCode.NONE:
                answers[broker] = response
            elif code not in RETRIABLE:
                raise BrokerError(f"broker {broker} cannot list {what}: {code.name}", code=code)
            else:
                await retry.pause_or_fail(f"listing {what}", code.name)
    return answers
