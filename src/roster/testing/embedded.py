"""A broker inside the test's process, with scripted faults, a clock, and the history of its groups."""

import contextlib
import itertools
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

from roster._clock import wall_ms
from roster.broker.call import Call
from roster.broker.dispatch import HANDLERS
from roster.broker.hooks import Hooks
from roster.broker.services import Services
from roster.broker.topic_config import check_settings
from roster.broker.topics import Topic
from roster.coordinator import Coordinator
from roster.coordinator.events import TimerKind, TimerName
from roster.coordinator.group import Group, Member
from roster.coordinator.states import GroupState
from roster.model import TopicPartition
from roster.testing.broker import BrokerThread, quick_config
from roster.testing.errors import KitArgumentError, KitTimeoutError, unknown
from roster.testing.faults import Fault, Faults, Phase, Reply, api_of, phase_of, reply_of
from roster.testing.rebalances import Rebalance, RebalanceHistory
from roster.testing.stored import StoredRecord, as_record, committed_records, partition_for
from roster.wire import API_VERSIONS, ApiKey, ErrorCode, Message
from roster.wire.frames import RequestHeader
from roster.wire.messages import OffsetFetchRequest, OffsetFetchResponse, ProduceRequest, ProduceResponse
from roster.wire.records import build_batch

Produced: TypeAlias = (
    "str | bytes | Mapping[str, Any] | tuple[str | bytes | None, str | bytes | Mapping[str, Any] | None]"
)

WAIT_SECONDS = 60.0
"""Default timeout of the methods that wait; on a loaded machine a rebalance can take seconds."""
_LOOK_AGAIN_SECONDS = 0.2
_DEFAULTS = {"min_session_timeout_ms": 1}


@dataclass(frozen=True, slots=True)
class GroupView:
    """State of a group; `members` are client ids, or instance ids of static members, in the order of joining."""

    state: str
    generation: int
    protocol: str
    members: tuple[str, ...]

    def __str__(self) -> str:
        members = f" ({', '.join(self.members)})" if self.members else ""
        return f"{self.state}, generation {self.generation}, {len(self.members)} members{members}"


class EmbeddedBroker:
    """A Kafka broker for tests, in a thread; any Kafka client connects to `bootstrap`.

    `settings` are the broker's, by their names in the table of the reference. Unless they say otherwise, groups do not
    wait for late joiners, and short session timeouts are allowed. Without `data_dir` a temporary directory is used. Use
    it as a context manager, or call `start` and `stop`. Raises KitArgumentError for invalid settings.
    """

    __test__ = False

    def __init__(self, data_dir: Path | None = None, **settings: Any) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="roster-broker-") if data_dir is None else None
        self.data_dir = Path(self._temporary.name) if self._temporary is not None else Path(str(data_dir))
        self._config = quick_config(self.data_dir, **{**_DEFAULTS, **settings})
        self._changes = threading.Condition()
        self._faults = Faults(self._changed, self._wait, self._topic_name)
        self._history = RebalanceHistory(self._changed)
        self._thread: BrokerThread | None = None
        self._names = itertools.count(1)
        self._held: socket.socket | None = None
        """Keeps the port while the broker is down; otherwise another process could get it."""

    # Life

    @property
    def bootstrap(self) -> str:
        """The address for clients' `bootstrap.servers`; a restart does not change it."""
        return (
            self._running.broker.bootstrap if self._thread is not None else f"{self._config.host}:{self._config.port}"
        )

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop` or `kill`."""
        return self._thread is not None

    @property
    def _running(self) -> BrokerThread:
        if self._thread is None:
            raise KitArgumentError("the broker is not running: call start()")
        return self._thread

    def start(self) -> Self:
        """Start the broker with its data and wait until its groups are loaded; no effect if it runs."""
        if self._thread is None:
            self._history.restarted()
            thread = BrokerThread(self._config, Hooks(self._faults.intercept, self._history.observe))
            self._release_port()
            thread.__enter__()
            self._thread = thread
            self._config = replace(self._config, port=thread.broker.address[1])
            thread.run(thread.broker.services.group_coordinator.loaded())
        return self

    def stop(self) -> None:
        """Stop as on SIGTERM: flush what was written. Stopping twice is no error."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.__exit__(None, None, None)
            self._hold_port()

    def kill(self) -> None:
        """End as in a crash: connections break and no request is answered; the data stays."""
        thread, self._thread = self._running, None
        thread.kill()
        self._hold_port()

    def _hold_port(self) -> None:
        self._held = socket.socket(socket.AF_INET6 if ":" in self._config.host else socket.AF_INET)
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # clients are refused in any case
            self._held.bind((self._config.host, self._config.port))

    def _release_port(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def restart(self) -> None:
        """Kill the broker and start it with the same port and data; clients reconnect by themselves."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._release_port()
            if self._temporary is not None:
                self._temporary.cleanup()

    # Faults

    def fault(
        self,
        api: str | int,
        *,
        group: str | None = None,
        topic: str | None = None,
        member: str | None = None,
        client_id: str | None = None,
        node: int | None = None,
        times: int | None = 1,
        after: int = 0,
        delay: float = 0.0,
        reply: str | int | Reply | None = None,
        drop: bool | Phase = False,
        disconnect: bool | Phase = False,
    ) -> Fault:
        """Script a fault for future requests. Raises KitArgumentError for invalid arguments.

        api: name in the protocol guide ("JoinGroup") or API key.
        group, topic, member, client_id: only requests with this group, topic, member id or instance id, client id.
        node: id of the broker; there is one.
        times: how many requests it affects, None for all until it is removed. after: how many pass before the first.
        delay: seconds to wait before the request is handled.
        reply: an error code by name or number, a response, or a function from the request to one. The request is not
        carried out.
        drop: True or "request": the request is not carried out and never answered, as if the network lost it;
        "reply": it is carried out, but not answered.
        disconnect: likewise, and the connection is closed.
        """
        if node is not None and node != self._config.node_id:
            raise KitArgumentError(f"node={node}: this broker is node {self._config.node_id}, the only one")
        key = api_of(api)
        error, whole = reply_of(key, reply)
        where, when = (group, topic, member, client_id), (times, after, delay)
        silent, closing = phase_of("drop", drop), phase_of("disconnect", disconnect)
        fault = Fault(key, *where, *when, error, whole, silent, closing, self._faults)
        self._faults.add(fault)
        return fault

    # Time

    def advance(self, seconds: float) -> None:
        """Advance the broker's clock: sessions, rebalance timeouts and waits that end by then end now.

        Clients have their own clocks: a session shorter than `seconds` ends although its client is alive; the client
        then rejoins. Wall-clock times (of records, retention) do not change.
        """
        if seconds < 0:
            raise KitArgumentError(f"seconds={seconds}: a monotonic clock does not go back")
        thread = self._running

        async def put_forward() -> None:
            thread.loop.advance(seconds)

        thread.run(put_forward())

    def expire_session(self, group: str, member: str) -> None:
        """End the session of one member, as if its heartbeats had stopped. Raises KitArgumentError if there is none.

        member: its client id, instance id or member id. As in Kafka, a member cannot expire while its JoinGroup or
        SyncGroup waits; the method waits for that.
        """

        async def expire() -> bool:
            shell = self._services.group_coordinator
            of_group = _member(shell.coordinator, group, member)
            if of_group.parked_join is not None or of_group.parked_sync is not None:
                return False
            of_group.deadline = 0
            shell.timer_expired(TimerName(TimerKind.SESSION, group, of_group.member_id))
            return True

        self._wait(
            lambda: self._running.run(expire()),
            WAIT_SECONDS,
            lambda: f"{member!r} waits for the rebalance of {group!r}",
        )

    # Groups

    def group(self, group: str) -> GroupView:
        """Return the present state of a group; a group that does not exist is Dead, as in Kafka."""

        async def view() -> GroupView:
            return _view(self._services.group_coordinator.coordinator.group(group))

        return self._running.run(view())

    def wait_for_group(
        self,
        group: str,
        state: str = "Stable",
        *,
        members: int | None = None,
        generation: int | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> GroupView:
        """Wait until a group is in `state`, with `members` members and at least `generation`; return the group.

        Raises KitTimeoutError after `timeout` seconds, with the group's state and its last rebalance.
        """
        states = [known_state.value for known_state in GroupState]
        if state not in states:
            raise unknown("group state", state, states)
        view = GroupView("Dead", 0, "", ())

        def there() -> bool:
            nonlocal view
            view = self.group(group)
            return (
                view.state == state
                and (members is None or len(view.members) == members)
                and (generation is None or view.generation >= generation)
            )

        def missing() -> str:
            wanted = f"{state}" + (f" with {members} members" if members is not None else "")
            last = self.rebalances(group)[-1:]
            after = f"; its last rebalance: {last[0]}" if last else "; it has not rebalanced"
            return f"group {group!r} is {view}, not {wanted}{after}"

        self._wait(there, timeout, missing)
        return view

    def wait_for_assignments(
        self, group: str, *, members: int | None = None, timeout: float = WAIT_SECONDS
    ) -> Rebalance:
        """Wait until every member of the newest generation has its assignment; return the rebalance.

        A group is Stable earlier, when the leader's assignment is stored. Raises KitTimeoutError after `timeout`
        seconds.
        """

        def there() -> bool:
            last = self.rebalances(group)[-1:]
            return (
                bool(last)
                and last[0].is_complete
                and members in (None, len(last[0].members))
                and self.group(group).generation == last[0].generation
            )

        self._wait(there, timeout, lambda: f"group {group!r} is {self.group(group)}; {self.rebalances(group)[-1:]}")
        return self.rebalances(group)[-1]

    def rebalances(self, group: str) -> list[Rebalance]:
        """Return every rebalance of a group since the first start, oldest first."""
        return self._history.of(group)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=None)])
        response = self._ask(request, OffsetFetchResponse)
        return {
            TopicPartition(topic.name, partition.partition_index): partition.committed_offset
            for answer in response.groups
            for topic in answer.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    def wait_for_commit(
        self, group: str, topic: str, offset: int, *, partition: int = 0, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until a group has committed at least `offset`. Raises KitTimeoutError after `timeout` seconds."""
        log = TopicPartition(topic, partition)
        self._wait(
            lambda: self.committed(group).get(log, -1) >= offset,
            timeout,
            lambda: f"group {group!r} committed {self.committed(group).get(log)} of {log}, not {offset}",
        )

    # Topics and records

    def create_topic(self, name: str | None = None, partitions: int = 1, **settings: str | int) -> str:
        """Create a topic and return its name, a new one if none is given.

        settings: Kafka's topic settings with underscores: `max_message_bytes=100`. Raises RefusedError with Kafka's
        reason.
        """
        chosen = f"topic-{next(self._names)}" if name is None else name

        async def create() -> None:
            checked = check_settings({key.replace("_", "."): str(value) for key, value in settings.items()})
            await self._services.topics.create(chosen, partitions, checked)

        self._running.run(create())
        return chosen

    def produce(self, topic: str, records: Iterable[Produced], *, partition: int | None = None) -> None:
        """Write records, durably; a record is a value, or a key and a value. Text is UTF-8, a mapping becomes JSON.

        Without `partition` the key decides, as in Kafka's clients (murmur2); records without a key go to the partitions
        in turn.
        """
        rows = [as_record(record, wall_ms()) for record in records]
        count = len(self._running.run(self._topic(topic)).logs)
        if partition is not None and not 0 <= partition < count:
            raise KitArgumentError(f"partition={partition}: topic {topic!r} has {count} partitions")
        by_partition: dict[int, list[Any]] = {}
        for number, row in enumerate(rows):
            by_partition.setdefault(partition_for(row, number, count) if partition is None else partition, []).append(
                row
            )
        data = [
            ProduceRequest.Topic.Partition(index=index, records=build_batch(batch))
            for index, batch in by_partition.items()
        ]
        if not data:
            return
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[ProduceRequest.Topic(name=topic, partition_data=data)]
        )
        response = self._ask(request, ProduceResponse, version=9)
        for answer in response.responses[0].partition_responses:
            if answer.error_code:
                raise KitArgumentError(
                    f"{topic}-{answer.index}: {ErrorCode(answer.error_code).name} {answer.error_message}"
                )

    def records(self, topic: str, partition: int | None = None) -> list[StoredRecord]:
        """Return the committed records of a topic, by partition and offset."""

        async def read() -> list[StoredRecord]:
            stored = await self._topic(topic)
            return [
                record
                for number, log in enumerate(stored.logs)
                if partition in (None, number)
                for record in committed_records(log, number)
            ]

        return self._running.run(read())

    def wait_for_records(self, topic: str, count: int, *, timeout: float = WAIT_SECONDS) -> list[StoredRecord]:
        """Wait until a topic has at least `count` committed records; return them.

        Raises KitTimeoutError after `timeout` seconds.
        """
        stored: list[StoredRecord] = []

        def there() -> bool:
            stored[:] = self.records(topic)
            return len(stored) >= count

        self._wait(there, timeout, lambda: f"topic {topic!r} has {len(stored)} records, not {count}")
        return stored

    # Inside

    @property
    def _services(self) -> Services:
        return self._running.broker.services

    async def _topic(self, name: str) -> Topic:
        topic = self._services.topics.get(name)
        if topic is None:
            raise unknown("topic", name, (known.name for known in self._services.topics if not known.is_internal))
        return topic

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self._services.topics.by_id(topic_id)
        return None if topic is None else topic.name

    def _ask(self, request: Message, kind: type[Any], version: int | None = None) -> Any:
        """Let the broker handle a request without a connection; faults do not affect it."""
        key = ApiKey(request.__table__.key or 0)
        header = RequestHeader(key, API_VERSIONS[key].high if version is None else version, 0, "roster.testing")
        response = self._running.run(HANDLERS[key](self._services, Call(header, request, "127.0.0.1")))
        assert isinstance(response, kind)  # the handler's contract
        return response

    def _changed(self) -> None:
        with self._changes:
            self._changes.notify_all()

    def _wait(self, there: Callable[[], bool], timeout: float, missing: Callable[[], str]) -> None:
        """Wait until `there` returns True; it is called whenever a group or a fault changes."""
        end = time.monotonic() + timeout
        while not there():
            left = end - time.monotonic()
            if left <= 0:
                raise KitTimeoutError(f"{missing()} after {timeout:g} s")
            with self._changes:
                self._changes.wait(min(left, _LOOK_AGAIN_SECONDS))


def _member(coordinator: Coordinator, group_id: str, name: str) -> Member:
    """Return the member with a client id, instance id or member id. Raises KitArgumentError if there is none."""
    group = coordinator.group(group_id)
    if group is None:
        raise unknown("group", group_id, coordinator.group_ids())
    members = {
        known: member
        for member in group.members.values()
        for known in (member.client_id, member.instance_id, member.member_id)
        if known is not None
    }
    if name not in members:
        raise unknown(f"member of group {group_id!r}", name, members)
    return members[name]


def _view(group: Group | None) -> GroupView:
    if group is None:
        return GroupView(GroupState.DEAD.value, 0, "", ())
    members = tuple(member.instance_id or member.client_id for member in group.members.values())
    return GroupView(group.state.value, group.generation, group.protocol or "", members)
