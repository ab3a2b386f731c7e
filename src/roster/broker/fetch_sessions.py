"""Fetch sessions (KIP-227): a consumer names the partitions it reads once, and then only what changes.

A session remembers its client's partitions and the last answer for each, so that an incremental response
leaves out the partitions without news. Sessions are in memory only; a client whose session is gone begins another.
A session belongs to a principal, and ends with the connection that used it last.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from roster.broker.request_limits import MAX_ITEMS
from roster.wire import ZERO_UUID, ErrorCode
from roster.wire.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

NO_SESSION = 0
FINAL_EPOCH = -1
FIRST_EPOCH = 0
EVICTABLE_AFTER_SECONDS = 120.0
"""A session used within this time gives way only to a larger one that is older (KIP-227's eviction)."""
MAX_PARTITIONS = 500_000
"""Partitions of all sessions together; beyond it no session begins or grows."""
TOPIC_IDS_SINCE = 13
_LAST_EPOCH = (1 << 31) - 1

Topic: TypeAlias = str | bytes
"""A topic by name, or from v13 of the request by id."""
Key: TypeAlias = tuple[Topic, int]
"""Topic and partition."""


@dataclass(slots=True)
class SessionPartition:
    """A partition as last requested, and the last answer; -1 forces an answer."""

    asked: FetchRequest.Topic.Partition
    high_watermark: int = -1
    log_start_offset: int = -1

    def has_news(self, answer: FetchResponse.Topic.Partition) -> bool:
        """Return True if an answer must be sent, and remember it as sent."""
        news = (
            bool(answer.records)
            or answer.error_code != ErrorCode.NONE
            or (answer.high_watermark, answer.log_start_offset) != (self.high_watermark, self.log_start_offset)
        )
        self.high_watermark, self.log_start_offset = answer.high_watermark, answer.log_start_offset
        if answer.error_code != ErrorCode.NONE:
            self.high_watermark = -1  # its end is news too
        return news


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends a request: a principal, over a connection."""

    principal: str
    connection: Hashable


@dataclass(slots=True)
class FetchSession:
    """One client's session; `epoch` is that of the next request."""

    id: int
    client: Client
    by_topic_id: bool
    partitions: OrderedDict[Key, SessionPartition]
    created: float
    used: float
    epoch: int = 1

    def update(self, request: FetchRequest) -> None:
        """Add and change the partitions of a request, and forget those it wants forgotten."""
        for key, asked in _asked(request.topics, by_id=self.by_topic_id):
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = SessionPartition(asked)
            else:
                known.asked = asked
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                self.partitions.pop((topic.topic_id if self.by_topic_id else topic.topic, partition), None)


@dataclass(slots=True)
class FetchContext:
    """What one request reads: `topics` in the order to read them; `finish` turns the answers into the response."""

    topics: list[FetchRequest.Topic]
    finish: Callable[[FetchResponse], None] = field(default=lambda response: None)


class FetchSessions:
    """The sessions of a broker, at most `slots`."""

    def __init__(self, slots: int, new_id: Callable[[], int], now: Callable[[], float]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._now = now
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._of_connection: dict[Hashable, set[int]] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def context(self, request: FetchRequest, version: int, client: Client) -> FetchContext | ErrorCode:
        """Return what a request reads, or the error for the whole of it."""
        by_id = version >= TOPIC_IDS_SINCE
        session = self._sessions.get(request.session_id)
        if session is not None and session.client.principal != client.principal:
            session = None
        if request.session_epoch in (FINAL_EPOCH, FIRST_EPOCH):
            if session is not None:
                self._remove(session)
            if request.session_epoch == FINAL_EPOCH:
                return FetchContext(request.topics)
            return FetchContext(request.topics, lambda response: self._begin(request, response, client, by_id=by_id))
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_topic_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        before = len(session.partitions)
        session.update(request)
        self._partitions += len(session.partitions) - before
        if len(session.partitions) > MAX_ITEMS or self._partitions > MAX_PARTITIONS:
            self._remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # the client sends all of its partitions, in one request
        if not session.partitions:
            self._remove(session)
            return FetchContext([])
        self._used_by(session, client)
        session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
        session.used = self._now()
        self._sessions.move_to_end(session.id)
        return FetchContext(_topics(session), lambda response: _leave_out_old(session, response))

    def connection_ended(self, connection: Hashable) -> None:
        """End the sessions that a connection used last: clients begin anew on their next one."""
        for session_id in list(self._of_connection.get(connection, ())):
            self._remove(self._sessions[session_id])

    def _used_by(self, session: FetchSession, client: Client) -> None:
        if session.client != client:
            self._leave(session)
            session.client = client
        self._of_connection.setdefault(client.connection, set()).add(session.id)

    def _leave(self, session: FetchSession) -> None:
        connection = session.client.connection
        self._of_connection[connection].discard(session.id)
        if not self._of_connection[connection]:
            del self._of_connection[connection]

    def _begin(self, request: FetchRequest, response: FetchResponse, client: Client, *, by_id: bool) -> None:
        """Begin a session with the partitions of a full request, if there is room for it."""
        asked = OrderedDict((key, SessionPartition(each)) for key, each in _asked(request.topics, by_id=by_id))
        if not self._make_room(len(asked)):
            return
        now = self._now()
        number = self._new_id()
        while number in self._sessions or number == NO_SESSION:
            number = self._new_id()
        session = self._sessions[number] = FetchSession(number, client, by_id, asked, now, now)
        self._used_by(session, client)
        self._partitions += len(asked)
        for key, answer in _answers(response, by_id=by_id):
            if key in session.partitions:
                session.partitions[key].has_news(answer)
        response.session_id = number

    def _make_room(self, size: int) -> bool:
        """Return True if a session with this many partitions may begin; evict another one if necessary."""
        if self._slots <= 0 or self._partitions + size > MAX_PARTITIONS:
            return False
        if len(self._sessions) < self._slots:
            return True
        now = self._now()
        oldest = next(iter(self._sessions.values()))
        if now - oldest.used <= EVICTABLE_AFTER_SECONDS:
            smallest = min(self._sessions.values(), key=lambda session: len(session.partitions))
            if len(smallest.partitions) >= size or now - smallest.created <= EVICTABLE_AFTER_SECONDS:
                return False
            oldest = smallest
        self._remove(oldest)
        return True

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._leave(session)
        self._partitions -= len(session.partitions)


def _asked(topics: list[FetchRequest.Topic], *, by_id: bool) -> Iterator[tuple[Key, FetchRequest.Topic.Partition]]:
    for topic in topics:
        for each in topic.partitions:
            yield (topic.topic_id if by_id else topic.topic, each.partition), each


def _answers(response: FetchResponse, *, by_id: bool) -> Iterator[tuple[Key, FetchResponse.Topic.Partition]]:
    for topic in response.responses:
        for each in topic.partitions:
            yield (topic.topic_id if by_id else topic.topic, each.partition_index), each


def _topics(session: FetchSession) -> list[FetchRequest.Topic]:
    """Return the partitions of a session as a request, in its order; neighbours of one topic together."""
    topics: list[FetchRequest.Topic] = []
    last: Topic | None = None
    for (topic, _), known in session.partitions.items():
        if topic != last:
            named = isinstance(topic, str)
            topics.append(
                FetchRequest.Topic(topic=topic if named else "", topic_id=ZERO_UUID if named else topic)  # type: ignore[arg-type]
            )
            last = topic
        topics[-1].partitions.append(known.asked)
    return topics


def _leave_out_old(session: FetchSession, response: FetchResponse) -> None:
    """Leave out what the client knows; partitions with records go behind the others, which are served first next."""
    response.session_id = session.id
    for topic in response.responses:
        identity: Topic = topic.topic_id if session.by_topic_id else topic.topic
        news = []
        for answer in topic.partitions:
            key = (identity, answer.partition_index)
            known = session.partitions.get(key)
            if known is None or known.has_news(answer):
                news.append(answer)
            if known is not None and answer.records:
                session.partitions.move_to_end(key)
        topic.partitions = news
    response.responses = [topic for topic in response.responses if topic.partitions]
