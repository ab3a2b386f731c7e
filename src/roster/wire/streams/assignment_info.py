"""AssignmentInfo v1-v5: the user data of an assignment in a group of tasks, from the leader to a member.

    v1   version int32 · active [task] · standby [task, [topic, partition]]
    v2   the same · by host [HostInfo, [topic, partition]]
    v3   version int32 · commonly supported version int32 · active · standby · by host
    v4   the same · error code int32
    v5   version int32 · latest supported version int32 · active [task] · standby [task] · by host [HostInfo, [task]]
         · error code int32
    v5 of Kafka Streams 2.4
         version int32 · commonly supported version int32 · active · standby [task, [topic, partition]] · topics [index
         int32, name text] · by host [HostInfo, [index int32, partition int32]] · error code int32

    task   sub-topology int32, partition int32        [..]   int32 count, then as many
    topic, partition   name text, number int32        text   Java's, see `roster.wire.streams.java_data`
    HostInfo   host text, port int32

All big-endian. v1-v4 are the bytes of Kafka Streams 0.10.0 to 2.3 (AssignmentInfo; KIP-268 added v3), v5 is the
document's (KIP-429 part II). What Kafka Streams 2.4 ships under the number 5 (KAFKA-7149) is read and written as well,
as `Layout.KAFKA_STREAMS`; see `roster.wire.streams.layout` for how the two are told apart. The table by host is the
same for every member, so its bytes are made once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from roster.model import TopicPartition
from roster.model.arrays import Int32
from roster.model.tasks import TaskId
from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError
from roster.wire.streams.java_data import Cursor, int32, rows, utf
from roster.wire.streams.layout import TASK, HostInfo, Layout, host_bytes, read_either, read_host
from roster.wire.streams.subscription_info import LATEST_VERSION, UNKNOWN_VERSION, AssignorErrorCode

INDEXED = np.dtype([("topic", ">i4"), ("partition", ">i4")])

_LEAST_PARTITION = 2 + 4
_LEAST_HOST = 2 + 4 + 4
_LEAST_STANDBY = 8 + 4
_LEAST_TOPIC = 4 + 2


@dataclass(frozen=True, eq=False)
class HostPartitions:
    """Partitions by host, as columns: row i gives partition `number[i]` of `topics[topic[i]]`.

    first: [hosts + 1] where the rows of each host begin, and where the last ones end.
    """

    hosts: Sequence[HostInfo]
    topics: Sequence[str]
    first: Sequence[int]
    topic: Int32
    number: Int32

    @classmethod
    def of(cls, by_host: Mapping[HostInfo, Collection[TopicPartition]]) -> HostPartitions:
        """Return a mapping as columns, in its order. Raises ValueError for a partition number beyond int32."""
        flat = [entry for partitions in by_host.values() for entry in partitions]
        index = {topic: i for i, topic in enumerate(dict.fromkeys(topic for topic, _ in flat))}
        if wide := [entry for entry in flat if not -(2**31) <= entry.partition < 2**31]:
            raise ValueError(f"{wide[0]}: a partition number must be from -2^31 to 2^31 - 1")
        first = np.cumsum([0, *map(len, by_host.values())]).tolist()
        topic = np.fromiter((index[topic] for topic, _ in flat), dtype=np.int32, count=len(flat))
        number = np.fromiter((partition for _, partition in flat), dtype=np.int32, count=len(flat))
        return cls(tuple(by_host), tuple(index), first, topic, number)

    def __len__(self) -> int:
        return len(self.hosts)

    def as_dict(self) -> dict[HostInfo, list[TopicPartition]]:
        """Return {host: its partitions}, in the order of the rows."""
        named = zip((self.topics[t] for t in self.topic.tolist()), self.number.tolist(), strict=True)
        flat = [TopicPartition(topic, number) for topic, number in named]
        return {host: flat[a:b] for host, (a, b) in zip(self.hosts, pairwise(self.first), strict=True)}

    @cached_property
    def spelt_out(self) -> bytes:
        """The bytes of v2 to v4: each partition with its topic's name."""
        names = [utf(topic, "partitions_by_host[].topic") for topic in self.topics]
        numbers = self.number.astype(">i4").tobytes()
        entries = [names[t] + numbers[4 * i : 4 * i + 4] for i, t in enumerate(self.topic.tolist())]
        return self._by_host(lambda a, b: int32(b - a, "partitions_by_host") + b"".join(entries[a:b]))

    @cached_property
    def by_dictionary(self) -> bytes:
        """The bytes of Kafka's v5: the topics' names once, each partition with its topic's index."""
        names = [int32(i, "topics") + utf(topic, "topics[].name") for i, topic in enumerate(self.topics)]
        by_host = self._by_host(lambda a, b: rows((self.topic[a:b], self.number[a:b]), INDEXED))
        return b"".join((int32(len(names), "topics"), *names, by_host))

    def _by_host(self, partitions: Any) -> bytes:
        parts = [int32(len(self.hosts), "partitions_by_host")]
        for host, (a, b) in zip(self.hosts, pairwise(self.first), strict=True):
            parts.append(host_bytes(host, "partitions_by_host[]"))
            parts.append(partitions(a, b))
        return b"".join(parts)


@dataclass(frozen=True, eq=False)
class HostTasks:
    """Tasks by host, as columns: row i is task `subtopology[i]`_`partition[i]`.

    first: [hosts + 1] where the rows of each host begin, and where the last ones end.
    """

    hosts: Sequence[HostInfo]
    first: Sequence[int]
    subtopology: Int32
    partition: Int32

    @classmethod
    def of(cls, by_host: Mapping[HostInfo, Collection[TaskId]]) -> HostTasks:
        """Return a mapping as columns, in its order. Raises ValueError for a number beyond int32."""
        flat = [task for tasks in by_host.values() for task in tasks]
        try:
            ids = np.array(flat, dtype=np.int32).reshape(-1, 2)
        except OverflowError as error:
            raise ValueError(f"tasks_by_host: a number beyond int32 ({error})") from error
        first = np.cumsum([0, *map(len, by_host.values())]).tolist()
        return cls(tuple(by_host), first, ids[:, 0], ids[:, 1])

    def __len__(self) -> int:
        return len(self.hosts)

    def as_dict(self) -> dict[HostInfo, list[TaskId]]:
        """Return {host: its tasks}, in the order of the rows."""
        flat = list(map(TaskId, self.subtopology.tolist(), self.partition.tolist()))
        return {host: flat[a:b] for host, (a, b) in zip(self.hosts, pairwise(self.first), strict=True)}

    @cached_property
    def encoded(self) -> bytes:
        """The bytes of v5."""
        parts = [int32(len(self.hosts), "partitions_by_host")]
        for host, (a, b) in zip(self.hosts, pairwise(self.first), strict=True):
            if not host.host:
                raise WireError("partitions_by_host[].host: is empty")
            parts += (
                host_bytes(host, "partitions_by_host[]"),
                rows((self.subtopology[a:b], self.partition[a:b]), TASK),
            )
        return b"".join(parts)


def no_hosts() -> HostPartitions:
    """Return an empty table: no process answers queries."""
    return HostPartitions.of({})


def no_tasks() -> HostTasks:
    """Return an empty table: no process answers queries."""
    return HostTasks.of({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssignmentInfo:
    """The tasks a member is to run and to replicate, and what every host has.

    version: version of the encoding. commonly_supported: the highest version that the whole group
    speaks, UNKNOWN_VERSION in v1 and v2. active: the tasks to run; before the document's v5 the task of each partition
    of the assignment beside it, in that order, so a task of several partitions stands there several times. standby: the
    partitions of each task that is replicated, none in the document's v5. partitions_by_host: before the document's v5;
    tasks_by_host: there. error: an `AssignorErrorCode`, since v4. layout: whose layout v5 has.
    """

    version: int
    commonly_supported: int
    active: Sequence[TaskId] = ()
    standby: Mapping[TaskId, Collection[TopicPartition]] = field(default_factory=dict)
    partitions_by_host: HostPartitions = field(default_factory=no_hosts)
    tasks_by_host: HostTasks = field(default_factory=no_tasks)
    error: int = AssignorErrorCode.NONE
    layout: Layout = Layout.KIP_429


def decode_assignment_info(data: Buffer) -> AssignmentInfo:
    """Decode v1 to v5; raises WireError naming the field for anything else."""
    cursor = Cursor(data, "AssignmentInfo")
    version = cursor.int32("version")
    if not 1 <= version <= LATEST_VERSION:
        raise WireError(f"AssignmentInfo: version: {version}, there are 1 to {LATEST_VERSION}")
    cursor.message = f"AssignmentInfo v{version}"
    commonly = cursor.int32("commonly_supported") if version >= 3 else UNKNOWN_VERSION
    fields: dict[str, Any] = {"version": version, "commonly_supported": commonly}
    fields["active"] = _read_tasks(cursor, "active")
    if version < 5:
        fields |= _read_kafka(cursor, version)
    else:
        fields |= read_either(cursor, lambda: _read_kip_429(cursor), lambda: _read_kafka(cursor, version))
    return AssignmentInfo(**fields)


def encode_assignment_info(info: AssignmentInfo) -> bytes:
    """Encode in `info.version`; raises WireError naming what that version cannot carry. v1 leaves the hosts out."""
    version = info.version
    if not 1 <= version <= LATEST_VERSION:
        raise WireError(f"AssignmentInfo: version: {version}, there are 1 to {LATEST_VERSION}")
    message = f"AssignmentInfo v{version}"
    if version < 4 and info.error != AssignorErrorCode.NONE:
        raise WireError(f"{message}: error: {info.error} cannot be told before v4; send an empty assignment instead")
    parts = [int32(version, f"{message}: version")]
    if version >= 3:
        parts.append(int32(info.commonly_supported, f"{message}: commonly_supported"))
    parts.append(int32(len(info.active), f"{message}: active"))
    parts += [_task(task, f"{message}: active") for task in info.active]
    kip_429 = version >= 5 and info.layout is Layout.KIP_429
    try:
        parts += _kip_429(info) if kip_429 else _kafka(info)
    except WireError as error:
        raise WireError(f"{message}: {error}") from error
    if version >= 4:
        parts.append(int32(info.error, f"{message}: error"))
    return b"".join(parts)


def _kip_429(info: AssignmentInfo) -> list[bytes]:
    if wrong := [task for task, partitions in info.standby.items() if partitions]:
        raise WireError(f"standby: task {wrong[0]} has partitions, and v5 has no place for them")
    if len(info.partitions_by_host):
        raise WireError("partitions_by_host: v5 has the tasks of each host; give tasks_by_host")
    standby = [_task(task, "standby") for task in info.standby]
    return [int32(len(standby), "standby"), *standby, info.tasks_by_host.encoded]


def _kafka(info: AssignmentInfo) -> list[bytes]:
    parts = _standby(info.standby, "standby")
    if info.version >= 2:
        parts.append(info.partitions_by_host.by_dictionary if info.version >= 5 else info.partitions_by_host.spelt_out)
    return parts


def _read_kip_429(cursor: Cursor) -> dict[str, Any]:
    standby = _read_tasks(cursor, "standby")
    if len(set(standby)) < len(standby):
        raise WireError(f"{cursor.where('standby')}: a task is listed twice")
    tables = [np.empty(0, TASK)]
    hosts, first = [], [0]
    for _ in range(cursor.count("partitions_by_host", _LEAST_HOST)):
        hosts.append(read_host(cursor, "partitions_by_host[]"))
        if not hosts[-1].host:
            raise WireError(f"{cursor.where('partitions_by_host[].host')}: is empty")
        tables.append(cursor.rows("partitions_by_host[].tasks", TASK))
        first.append(first[-1] + len(tables[-1]))
    table = np.concatenate(tables)
    by_host = HostTasks(hosts, first, table["subtopology"].astype(np.int32), table["partition"].astype(np.int32))
    error = cursor.int32("error")
    cursor.end()
    return {"standby": dict.fromkeys(standby, ()), "tasks_by_host": by_host, "error": error, "layout": Layout.KIP_429}


def _read_kafka(cursor: Cursor, version: int) -> dict[str, Any]:
    standby = _read_standby(cursor)
    hosts = no_hosts()
    if version >= 2:
        hosts = _read_spelt_out(cursor) if version < 5 else _read_by_dictionary(cursor)
    error = cursor.int32("error") if version >= 4 else AssignorErrorCode.NONE
    cursor.end()
    layout = Layout.KAFKA_STREAMS if version >= 5 else Layout.KIP_429
    return {"standby": standby, "partitions_by_host": hosts, "error": error, "layout": layout}


def _read_tasks(cursor: Cursor, field: str) -> list[TaskId]:
    return [TaskId(*row) for row in cursor.rows(field, TASK).tolist()]


def _task(task: TaskId, where: str) -> bytes:
    subtopology, partition = task
    return int32(subtopology, where) + int32(partition, where)


def _read_standby(cursor: Cursor) -> dict[TaskId, list[TopicPartition]]:
    standby = {}
    for _ in range(cursor.count("standby", _LEAST_STANDBY)):
        task = TaskId(cursor.int32("standby[].subtopology"), cursor.int32("standby[].partition"))
        standby[task] = [
            TopicPartition(cursor.utf("standby[].partitions[].topic"), cursor.int32("standby[].partitions[].partition"))
            for _ in range(cursor.count("standby[].partitions", _LEAST_PARTITION))
        ]
    return standby


def _standby(standby: Mapping[TaskId, Collection[TopicPartition]], where: str) -> list[bytes]:
    parts = [int32(len(standby), where)]
    for task, partitions in standby.items():
        parts += (_task(task, where), int32(len(partitions), where))
        parts += [utf(topic, where) + int32(number, where) for topic, number in partitions]
    return parts


def _read_spelt_out(cursor: Cursor) -> HostPartitions:
    index: dict[str, int] = {}
    topic, number = [], []
    hosts, first = [], [0]
    for _ in range(cursor.count("partitions_by_host", _LEAST_HOST)):
        hosts.append(read_host(cursor, "partitions_by_host[]"))
        for _ in range(cursor.count("partitions_by_host[].partitions", _LEAST_PARTITION)):
            topic.append(index.setdefault(cursor.utf("partitions_by_host[].partitions[].topic"), len(index)))
            number.append(cursor.int32("partitions_by_host[].partitions[].partition"))
        first.append(len(number))
    return HostPartitions(hosts, tuple(index), first, np.array(topic, dtype=np.int32), np.array(number, dtype=np.int32))


def _read_by_dictionary(cursor: Cursor) -> HostPartitions:
    names: dict[int, str] = {}
    for _ in range(cursor.count("topics", _LEAST_TOPIC)):
        index = cursor.int32("topics[].index")
        if index in names:
            raise WireError(f"{cursor.where('topics')}: index {index} is there twice")
        names[index] = cursor.utf("topics[].name")
    tables = [np.empty(0, INDEXED)]
    hosts, first = [], [0]
    for _ in range(cursor.count("partitions_by_host", _LEAST_HOST)):
        hosts.append(read_host(cursor, "partitions_by_host[]"))
        tables.append(cursor.rows("partitions_by_host[].partitions", INDEXED))
        first.append(first[-1] + len(tables[-1]))
    table = np.concatenate(tables)
    topic = _places(table["topic"], list(names), cursor.where("partitions_by_host[].partitions[].topic"))
    return HostPartitions(hosts, tuple(names.values()), first, topic, table["partition"].astype(np.int32))


def _places(indices: npt.NDArray[Any], known: Sequence[int], where: str) -> Int32:
    """Return the position of each index in the dictionary, whose indices may be any numbers in any order."""
    dictionary = np.array(known, dtype=np.int32)
    order = np.argsort(dictionary, kind="stable").astype(np.int32)
    place = np.searchsorted(dictionary[order], indices)
    found = np.append(dictionary[order], 0)[place] == indices
    found &= place < len(dictionary)
    if not found.all():
        raise WireError(f"{where}: index {indices[np.argmin(found)]} is not in the dictionary")
    return order[place]
