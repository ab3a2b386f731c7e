"""A cluster: its brokers, the connections to them, and what its metadata says."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from roster.client.connection import Connection
from roster.client.errors import (
    AuthorizationError,
    OptionError,
    RequestTimeoutError,
    UnknownTopicError,
    UnreachableError,
    no_such_topics,
)
from roster.client.retry import Retry
from roster.member.types import Channel, Node
from roster.model import Address, AddressError, parse_addresses
from roster.security import Security, SettingError, parse_security
from roster.wire import ErrorCode, Message
from roster.wire.errors import error_code
from roster.wire.messages import MetadataRequest, MetadataResponse

M = TypeVar("M", bound=Message)

CONNECT_TIMEOUT = 10.0
PROPAGATION_TIME = 1.5
"""Seconds to retry metadata for an unknown topic or partition: new ones take time to propagate."""
DEFAULT_PORT = 9092


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Address]:
    """Addresses from "host:port,host:port" or a sequence of such; without a port, 9092. OptionError names a bad one."""
    try:
        return parse_addresses(bootstrap, default_port=DEFAULT_PORT)
    except AddressError as error:
        raise OptionError("bootstrap", str(error)) from error


def check_security(given: Security | Mapping[str, object] | None) -> Security:
    """Check security settings and return them. Raises OptionError that names the wrong one."""
    try:
        return parse_security(given)
    except SettingError as error:
        raise OptionError("security", str(error)) from None


@dataclass(slots=True)
class Topic:
    """A topic by the newest metadata; leaders[p] is the broker id, -1 for none."""

    name: str
    topic_id: bytes
    internal: bool
    leaders: list[int] = field(default_factory=list)


class Cluster:
    """Connections to brokers, opened on demand, one per address and channel, and reopened after they broke.

    Everything runs on one event loop. Times are seconds.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        client_id: str,
        request_timeout: float,
        chance: Random,
        security: Security | Mapping[str, object] | None = None,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self._security = check_security(security)
        self._client_id = client_id
        self.timeout = request_timeout
        """The request timeout in seconds."""
        self._chance = chance
        self._brokers: dict[int, tuple[str, int]] = {}
        self._topics: dict[str, Topic] = {}
        self._connections: dict[tuple[str, int, Channel], asyncio.Task[Connection]] = {}
        self.controller = -1

    # Connections.

    async def _connection(self, host: str, port: int, channel: Channel) -> Connection:
        key = (host, port, channel)
        opening = self._connections.get(key)
        if opening is None or (opening.done() and not _is_usable(opening)):
            timeout = min(CONNECT_TIMEOUT, self.timeout)
            opening = asyncio.create_task(Connection.open(host, port, self._client_id, timeout, self._security))
            self._connections[key] = opening
        return await asyncio.shield(opening)

    async def request(
        self,
        node: Node | tuple[str, int],
        message: Message,
        timeout: float | None = None,
        channel: Channel = Channel.ANY,
        highest: int | None = None,
    ) -> Message:
        """Ask one broker, in version `highest` at most. UnreachableError, RequestTimeoutError or UnsupportedError."""
        host, port = node[-2:]
        connection = await self._connection(host, port, channel)
        return await connection.request(message, self.timeout if timeout is None else timeout, highest)

    async def request_any(self, message: Message, timeout: float | None = None) -> Message:
        """Ask any broker, those known first, each once; UnreachableError names them all when none answers."""
        known = list(dict.fromkeys([*self._brokers.values(), *self._bootstrap]))
        self._chance.shuffle(known)
        known.sort(key=lambda address: not self._is_open(*address))
        failures = []
        for address in known:
            try:
                return await self.request(address, message, timeout)
            except (UnreachableError, RequestTimeoutError) as error:
                failures.append(str(error))
        causes = "; ".join(failures)
        stop = "" if causes.endswith((".", "?")) else "."
        raise UnreachableError(f"no broker answered: {causes}{stop} Check the bootstrap address and the broker")

    def _is_open(self, host: str, port: int) -> bool:
        opening = self._connections.get((host, port, Channel.ANY))
        return opening is not None and _is_usable(opening)

    def disconnect(self, node: Node) -> None:
        """Close the connections that this broker had as a coordinator."""
        for channel in (Channel.PARKED, Channel.PROMPT):
            opening = self._connections.pop((node.host, node.port, channel), None)
            if opening is not None:
                self._drop(opening)

    @staticmethod
    def _drop(opening: asyncio.Task[Connection]) -> None:
        if not opening.done():
            opening.cancel()
        elif not opening.cancelled() and opening.exception() is None:
            opening.result().close("not needed any more")

    async def close(self) -> None:
        """Close every connection."""
        for opening in self._connections.values():
            self._drop(opening)
        await asyncio.gather(*self._connections.values(), return_exceptions=True)
        self._connections.clear()

    # Metadata.

    async def metadata(self, topics: Collection[str] | None = None) -> MetadataResponse:
        """Fetch metadata for these topics, or all of them when None, and remember it."""
        wanted = None if topics is None else [MetadataRequest.Topic(name=name) for name in sorted(topics)]
        response = await self.request_any(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        assert isinstance(response, MetadataResponse)  # decoded as such
        self.learn(response)
        return response

    def learn(self, response: MetadataResponse) -> None:
        """Remember brokers and topics of a metadata answer."""
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self.controller = response.controller_id
        for topic in response.topics:
            if topic.name is None:
                continue
            if topic.error_code != ErrorCode.NONE:
                self._topics.pop(topic.name, None)
                continue
            known = Topic(topic.name, topic.topic_id, topic.is_internal)
            known.leaders = [p.leader_id for p in sorted(topic.partitions, key=lambda p: p.partition_index)]
            self._topics[topic.name] = known

    def forget(self, topics: Collection[str]) -> None:
        """Drop cached metadata of these topics."""
        for topic in topics:
            self._topics.pop(topic, None)

    async def topics(self, names: Collection[str], timeout: float = PROPAGATION_TIME) -> dict[str, Topic]:
        """Return topics by name, from cached metadata if possible.

        Metadata of an unknown topic is retried for `timeout` seconds, since new topics take time to propagate; then
        UnknownTopicError.
        """
        retry = Retry(timeout)
        while missing := sorted(name for name in names if name not in self._topics):
            response = await self.metadata(missing)
            check_refused(response)
            missing = [name for name in missing if name not in self._topics]
            if missing and retry.expired:
                raise no_such_topics(missing)
            if missing:
                await retry.pause()
        return {name: self._topics[name] for name in names}

    def address(self, broker: int) -> tuple[str, int] | None:
        """Return the address of a broker; None if the metadata does not list it."""
        return self._brokers.get(broker)

    @property
    def brokers(self) -> dict[int, tuple[str, int]]:
        """{broker id: address} of every broker in the metadata."""
        return dict(self._brokers)


def _is_usable(opening: asyncio.Task[Connection]) -> bool:
    """True while the connection is open."""
    return opening.done() and not opening.cancelled() and opening.exception() is None and not opening.result().closed


def check_refused(response: MetadataResponse) -> None:
    """Raise UnknownTopicError or AuthorizationError for a topic that waiting does not bring."""
    for name, code in ((topic.name, error_code(topic.error_code)) for topic in response.topics):
        if code is ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise UnknownTopicError(f"the broker refuses {name!r} as a topic name", topics=[name or ""], code=code)
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise AuthorizationError(f"this client may not read topic {name}; grant it DESCRIBE and READ", code=code)


def expect(response: Message, kind: type[M]) -> M:
    """Narrow a response to its class."""
    assert isinstance(response, kind)  # decoded as such
    return response
