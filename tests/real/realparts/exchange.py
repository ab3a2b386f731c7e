"""Requests by hand: the same script sent to two brokers, the responses made comparable.

Frames are built and read with kafka-python's message classes, so that the codec is neither broker's own. A scenario is
a function of an `Exchange`; it runs once against each cluster, and the two logs of labelled, normalised responses must
be equal.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import json
import re
import socket
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest

from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

Fields = dict[str, Any]
ANSWER_TIMEOUT = 60.0
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NO_ID = "00000000-0000-0000-0000-000000000000"

IGNORED = {"throttle_time_ms", "error_message", "cluster_id", "port", "tags"}
"""Response fields that may differ between two correct brokers: words for people, and where they live."""

HOSTS = {"client_host"}
"""Addresses as text: Java writes a slash before them."""

PRODUCERS = {"producer_id"}
"""Numbers a broker counts up; they are named by order of appearance."""

CHOSEN = {"session_id"}
"""Numbers a broker chooses at random; zero means none."""


@functools.cache
def message_class(name: str) -> Any:
    """kafka-python's class of that name, e.g. "JoinGroupRequest"."""
    for room in ("consumer", "admin", "metadata", "producer"):
        found = getattr(importlib.import_module(f"kafka.protocol.{room}"), name, None)
        if found is not None:
            return found
    raise LookupError(name)


def build(cls: Any, fields: Mapping[str, Any], version: int) -> Any:
    """An instance of a kafka-python message or structure from nested plain values."""

    def built(name: str, value: Any) -> Any:
        field = cls._struct.fields[name]
        if value is not None and field.is_struct_array():
            return [build(field.data_class, entry, version) for entry in value]
        if value is not None and field.is_struct():
            return build(field.data_class, value, version)
        return value

    return cls(version=version, **{name: built(name, value) for name, value in fields.items()})


def encode_request(api: str, version: int, fields: Fields, correlation: int, client_id: str | None) -> bytes:
    """The frame without its size."""
    request = build(message_class(f"{api}Request"), fields, version)
    request.with_header(correlation_id=correlation, client_id=client_id)
    return bytes(request.encode(header=True))


def decode_response(api: str, version: int, frame: bytes) -> tuple[int, Fields]:
    """Correlation id and the response as nested plain values; AssertionError if bytes are left over."""
    cls = message_class(f"{api}Response")
    reader = io.BytesIO(frame)
    flexible = cls.flexible_version_q(version)
    header = cls.header_class.decode(reader, flexible=flexible and api != "ApiVersions")
    rest = frame[reader.tell() :]
    decode = cls._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=cls)
    response, used = decode(memoryview(rest), 0)
    assert used == len(rest), f"{api} v{version}: {len(rest) - used} bytes after the response"
    return header.correlation_id, response.to_dict(json=False)


class Pending:
    """A request on its way."""

    def __init__(self, connection: Connection, api: str, version: int, correlation: int) -> None:
        self.connection, self.api, self.version, self.correlation = connection, api, version, correlation

    def result(self, timeout: float = ANSWER_TIMEOUT) -> Fields:
        """The response, as nested plain values."""
        frame = self.connection.read_frame(timeout)
        correlation, fields = decode_response(self.api, self.version, frame)
        assert correlation == self.correlation
        return fields

    def answered(self, within: float = 0.0) -> bool:
        """Whether a response is there."""
        return self.connection.readable(within)


class Connection:
    """One socket to a broker."""

    def __init__(self, bootstrap: str, client_id: str | None = "tester") -> None:
        host, _, port = bootstrap.rpartition(":")
        self.client_id = client_id
        self.socket = socket.create_connection((host, int(port)), timeout=ANSWER_TIMEOUT)
        self._correlation = 0

    def send(self, api: str, version: int, fields: Fields) -> Pending:
        """Send without waiting for the response."""
        self._correlation += 1
        self.send_frame(encode_request(api, version, fields, self._correlation, self.client_id))
        return Pending(self, api, version, self._correlation)

    def send_frame(self, frame: bytes) -> None:
        """Send bytes as one frame."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def read_frame(self, timeout: float = ANSWER_TIMEOUT) -> bytes:
        """The next frame; EOFError if the broker hung up, TimeoutError if nothing came."""
        deadline = monotonic() + timeout
        size = struct.unpack(">i", self._read(4, deadline))[0]
        return self._read(size, deadline)

    def _read(self, count: int, deadline: float) -> bytes:
        parts = b""
        while len(parts) < count:
            self.socket.settimeout(max(deadline - monotonic(), 0.001))
            part = self.socket.recv(count - len(parts))
            if not part:
                raise EOFError("the broker closed the connection")
            parts += part
        return parts

    def readable(self, within: float) -> bool:
        """Whether bytes (or an end) arrive within that many seconds."""
        self.socket.settimeout(max(within, 0.001))
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()


class Exchange:
    """A script's side of one broker: requests out, a log of what came back."""

    def __init__(self, cluster: Cluster, stem: str) -> None:
        self.cluster = cluster
        self.group = stem
        self.stem = stem
        self.log: list[tuple[str, Any]] = []
        self._ids: dict[str, str] = {}
        self._producers: dict[int, str] = {}
        self._connections: list[Connection] = []
        self.main = self.connect()

    def connect(self, client_id: str | None = "tester") -> Connection:
        """One more connection."""
        connection = Connection(self.cluster.bootstrap, client_id)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def ask(self, api: str, version: int, /, *, via: Connection | None = None, **fields: Any) -> Fields:
        """Request and response, not logged."""
        return (via or self.main).send(api, version, fields).result()

    def call(self, label: str, api: str, version: int, /, *, via: Connection | None = None, **fields: Any) -> Fields:
        """Request and response, logged under the label; a broker that hangs up is logged as such."""
        connection = via or self.main
        try:
            response = connection.send(api, version, fields).result()
        except (EOFError, ConnectionError):
            self.note(label, "connection closed")
            if connection is self.main:
                self.main = self.connect()
            return {}
        self.note(label, response)
        return response

    def finish(self, label: str, pending: Pending, timeout: float = ANSWER_TIMEOUT) -> Fields:
        """The response of a request sent before, logged."""
        response = pending.result(timeout)
        self.note(label, response)
        return response

    def note(self, label: str, value: Any) -> None:
        """Log anything that must be the same on both brokers."""
        self.log.append((label, self.comparable(value)))

    def comparable(self, value: Any) -> Any:
        """The value with random ids named by order of appearance, lists of structures sorted, noise left out."""
        if isinstance(value, Mapping):
            named = {key: self.comparable(entry) for key, entry in value.items() if key not in IGNORED}
            return {
                key: self._producer(entry) if key in PRODUCERS else _plain(key, entry) for key, entry in named.items()
            }
        if isinstance(value, (list, tuple, set)):
            entries = [self.comparable(entry) for entry in value]
            return sorted(entries, key=lambda entry: json.dumps(entry, sort_keys=True, default=str))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value).hex()
        if isinstance(value, str):
            return UUID.sub(self._name, value)
        if hasattr(value, "hex") and hasattr(value, "bytes"):  # a UUID
            return UUID.sub(self._name, str(value))
        return value

    def _name(self, found: re.Match[str]) -> str:
        if found[0] == NO_ID:
            return "no id"
        return self._ids.setdefault(found[0], f"id {len(self._ids) + 1}")

    def _producer(self, number: int) -> int | str:
        return number if number < 0 else self._producers.setdefault(number, f"producer {len(self._producers) + 1}")

    # What scripts need again and again.
    def state(self, group: str | None = None) -> str:
        """The group's state, in the broker's words."""
        return self.ask("DescribeGroups", 5, groups=[group or self.group])["groups"][0]["group_state"]

    def until_state(self, state: str, members: int | None = None, group: str | None = None) -> None:
        """Wait until the group is in that state (with that many members)."""

        def reached() -> bool:
            told = self.ask("DescribeGroups", 5, groups=[group or self.group])["groups"][0]
            return told["group_state"] == state and members in (None, len(told["members"]))

        until(reached, 60, lambda: self.ask("DescribeGroups", 5, groups=[group or self.group]))

    def coordinator_ready(self) -> None:
        """Wait until the broker coordinates this group (it may have to create its own topic first)."""

        def ready() -> bool:
            found = self.ask("FindCoordinator", 4, key_type=0, coordinator_keys=[self.group])["coordinators"][0]
            probe = self.ask("Heartbeat", 4, group_id=self.group, generation_id=0, member_id="probe")
            return found["error_code"] == 0 and probe["error_code"] == 25

        until(ready, 60, "no coordinator")

    def topic(self, name: str = "t", partitions: int = 2) -> str:
        """Create a topic whose name belongs to this script."""
        full = f"{self.stem}-{name}"
        topic = {"name": full, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        made = self.ask("CreateTopics", 5, topics=[topic], timeout_ms=10_000, validate_only=False)
        assert made["topics"][0]["error_code"] == 0, made
        probes = [
            {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in range(partitions)
        ]
        probe = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": full, "partitions": probes}]}

        def led() -> bool:
            known = self.ask("Metadata", 9, topics=[{"name": full}])["topics"][0]["error_code"] == 0
            told = self.ask("ListOffsets", 7, **probe)["topics"][0]["partitions"]
            return known and all(partition["error_code"] == 0 for partition in told)

        until(led, 60, f"{full} has no leader")
        return full

    def producer(self) -> int:
        """A producer id."""
        asked = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        granted = until(
            lambda: next((t for t in [self.ask("InitProducerId", 4, **asked)] if t["error_code"] == 0), None), 10
        )
        self.note("a producer is granted", {"epoch": granted["producer_epoch"], "id": granted["producer_id"] >= 0})
        return granted["producer_id"]

    def forget_nameless_group(self) -> None:
        """Scripts share the group "" that old clients may commit to: leave none behind."""
        self.ask("DeleteGroups", 2, groups_names=[""])

    def until_forgotten(self, topic: str) -> None:
        """Wait until the topic has left the metadata and the group's offsets."""

        def gone() -> bool:
            told = self.ask("Metadata", 9, topics=[{"name": topic}])["topics"][0]["error_code"]
            offsets = self.ask("OffsetFetch", 7, group_id=self.group, topics=None, require_stable=False)["topics"]
            return told == 3 and all(entry["name"] != topic for entry in offsets)

        until(gone, 60, f"{topic} is still there")


class Actor:
    """A member by hand: it remembers its id and generation and fills in what a request repeats."""

    def __init__(self, x: Exchange, name: str, **join: Any) -> None:
        self.x = x
        self.name = name
        self.version = join.pop("version", 9)
        self.group = join.pop("group", x.group)
        self.connection = x.connect(join.pop("client_id", name))
        self.member_id = ""
        self.generation = -1
        self.leader = False
        self.join_fields: Fields = {
            "group_id": self.group,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": protocols("range"),
            **join,
        }

    @property
    def instance(self) -> str | None:
        return self.join_fields.get("group_instance_id")

    def start_join(self, **changed: Any) -> Pending:
        """Send JoinGroup; the response may wait for others."""
        fields = {**self.join_fields, "member_id": self.member_id, **changed}
        return self.connection.send("JoinGroup", changed_version(fields, self.version), fields)

    def finish_join(self, label: str, pending: Pending) -> Fields:
        """Take the JoinGroup response, log it, remember id and generation."""
        told = self.x.finish(f"{self.name}: {label}", pending)
        if told["error_code"] in (0, 79):
            self.member_id = told["member_id"]
        if told["error_code"] == 0:
            self.generation = told["generation_id"]
            self.leader = told["leader"] == self.member_id
        return told

    def join(self, label: str = "join", **changed: Any) -> Fields:
        """JoinGroup and its response; the id that MEMBER_ID_REQUIRED gives is used at once."""
        told = self.finish_join(label, self.start_join(**changed))
        if told["error_code"] == 79:
            told = self.finish_join(f"{label} with the id given", self.start_join(**changed))
        return told

    def begin(self) -> Pending:
        """Get a member id, then send the JoinGroup that may wait; it has arrived: the first to arrive leads."""
        if not self.member_id and self.instance is None and self.version >= 4:
            self.finish_join("asks for an id", self.start_join())
        join = self.start_join()
        if self.member_id:
            until(self._is_member, 60, f"{self.member_id} is no member")
        return join

    def _is_member(self) -> bool:
        told = self.x.ask("DescribeGroups", 5, groups=[self.group])["groups"][0]
        return any(member["member_id"] == self.member_id for member in told["members"])

    def sync_fields(self, assignments: Mapping[str, bytes] | None = None, **changed: Any) -> Fields:
        fields: Fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "assignments": [{"member_id": who, "assignment": what} for who, what in (assignments or {}).items()],
        }
        if self.instance is not None:
            fields["group_instance_id"] = self.instance
        return {**fields, **changed}

    def start_sync(self, assignments: Mapping[str, bytes] | None = None, version: int = 3, **changed: Any) -> Pending:
        """Send SyncGroup; the response may wait for the leader's."""
        return self.connection.send("SyncGroup", version, self.sync_fields(assignments, **changed))

    def sync(
        self, label: str, assignments: Mapping[str, bytes] | None = None, version: int = 3, **changed: Any
    ) -> Fields:
        """SyncGroup and its response."""
        return self.x.finish(f"{self.name}: {label}", self.start_sync(assignments, version, **changed))

    def heartbeat(self, label: str, version: int = 4, **changed: Any) -> Fields:
        fields = {"group_id": self.group, "generation_id": self.generation, "member_id": self.member_id}
        if self.instance is not None and version >= 3:
            fields["group_instance_id"] = self.instance
        return self.x.call(f"{self.name}: {label}", "Heartbeat", version, **{**fields, **changed})

    def leave(self, label: str = "leave", version: int = 4, **changed: Any) -> Fields:
        entry: Fields = {"member_id": self.member_id, "group_instance_id": self.instance, **changed}
        if version < 3:
            return self.x.call(
                f"{self.name}: {label}", "LeaveGroup", version, group_id=self.group, member_id=entry["member_id"]
            )
        return self.x.call(f"{self.name}: {label}", "LeaveGroup", version, group_id=self.group, members=[entry])

    def commit(self, label: str, topic: str, offset: int = 7, version: int = 8, **changed: Any) -> Fields:
        fields: Fields = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "topics": commit_topics(topic, {0: offset}),
        }
        if self.instance is not None and version >= 7:
            fields["group_instance_id"] = self.instance
        return self.x.call(f"{self.name}: {label}", "OffsetCommit", version, **{**fields, **changed})


def _plain(key: str, value: Any) -> Any:
    if key in CHOSEN and value != 0:
        return "some"
    return value.removeprefix("/") if key in HOSTS else value


def changed_version(fields: Fields, version: int) -> int:
    """The version of a request whose fields may name another one (taken out)."""
    return fields.pop("version", version)


def subscription(*topics: str, version: int = 0) -> bytes:
    """A consumer protocol subscription: topics, no user data, nothing owned."""
    data = struct.pack(">hi", version, len(topics))
    for topic in topics:
        data += struct.pack(">h", len(topic)) + topic.encode()
    data += struct.pack(">i", -1)
    return data + (struct.pack(">i", 0) if version >= 1 else b"")


def protocols(*names: str, topics: Iterable[str] = ("t",)) -> list[Fields]:
    """A JoinGroup protocol list, each with the same subscription."""
    return [{"name": name, "metadata": subscription(*topics)} for name in names]


def commit_topics(topic: str, offsets: Mapping[int, int], metadata: str | None = "") -> list[Fields]:
    """The topics of an OffsetCommit."""
    parts = [
        {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        for partition, offset in offsets.items()
    ]
    return [{"name": topic, "partitions": parts}]


@dataclass(frozen=True)
class Difference:
    """Two brokers that disagree on a step."""

    label: str
    apache: Any
    roster: Any

    def __str__(self) -> str:
        leaves = "; ".join(f"{path} {mine!r} but {theirs!r}" for path, mine, theirs in unlike(self.apache, self.roster))
        return f"{self.label}: {leaves}"


def unlike(mine: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The innermost values that differ, with the way to them."""
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for key in mine:
            yield from unlike(mine[key], theirs[key], f"{path}.{key}" if path else key)
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for index, pair in enumerate(zip(mine, theirs, strict=True)):
            yield from unlike(*pair, f"{path}[{index}]")
    elif mine != theirs:
        yield path, mine, theirs


def run(script: Callable[[Exchange], None], cluster: Cluster, stem: str) -> list[tuple[str, Any]]:
    """The log of one run; a script that broke leaves its exception as the last entry."""
    x = Exchange(cluster, stem)
    try:
        x.coordinator_ready()
        script(x)
    except (AssertionError, TimeoutError, EOFError, OSError, LookupError) as e:
        x.log.append(("the script broke", f"{type(e).__name__}: {e}"))
    finally:
        x.close()
    return x.log


def differences(apache: list[tuple[str, Any]], roster: list[tuple[str, Any]]) -> list[Difference]:
    """The steps on which the two logs disagree."""
    found = [
        Difference(label if label == other else f"{label} | {other}", mine, theirs)
        for (label, mine), (other, theirs) in zip(apache, roster, strict=False)
        if (label, mine) != (other, theirs)
    ]
    longer = apache[len(roster) :] or roster[len(apache) :]
    if longer:
        found.append(Difference("one script went further", len(apache), len(roster)))
    return found


Known = Mapping[str, str]
"""Steps on which the brokers may differ, by a pattern on "label: difference", with the reason."""
ACCIDENTAL = "accidental: "
"""Begins the reason of a difference that Apache Kafka does not have each time."""

RUNS = 3
"""A difference counts if it is there each time: delays and timeouts of a group run beside a script, on one broker only
where the machine stood still for a moment."""


def disagreement(mine: list[tuple[str, Any]], theirs: list[tuple[str, Any]], known: Known) -> str:
    """What is wrong with two runs of a script, on Apache Kafka and on Roster's broker; "" if nothing is."""
    broken = [value for label, value in mine if label == "the script broke"]
    if broken:
        return f"on Apache Kafka itself: {broken}"
    if not mine:
        return "the script logged nothing"
    found = [str(difference) for difference in differences(mine, theirs)]
    for pattern, reason in known.items():
        matching = [line for line in found if re.search(pattern, line)]
        if not matching and not reason.startswith(ACCIDENTAL):
            return f"no longer different, take it off the list: {pattern} ({reason})"
        found = [line for line in found if line not in matching]
    return "\n".join(["Apache Kafka answers this, but Roster's broker that:", *found]) if found else ""


def scenario(script: Callable[[Exchange], None] | None = None, *, known: Known | None = None) -> Callable[..., Any]:
    """Turn a script into a test: Apache Kafka and Roster's broker must answer it alike, `known` differences aside."""
    if script is None:
        return functools.partial(scenario, known=known)

    def test(apache_kafka: Cluster, roster_broker: Cluster) -> None:
        for left in reversed(range(RUNS)):
            stem = unique("script")
            mine, theirs = run(script, apache_kafka, stem), run(script, roster_broker, stem)
            wrong = disagreement(mine, theirs, known or {})
            if not wrong:
                return
            if left:
                warnings.warn(f"{script.__name__} is run again: {wrong}", stacklevel=1)
        pytest.fail(wrong, pytrace=False)

    test.__name__ = script.__name__
    test.__doc__ = inspect.getdoc(script)
    test.__module__ = script.__module__
    test.script = script  # type: ignore[attr-defined]
    return test
