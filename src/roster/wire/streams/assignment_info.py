"""AssignmentInfo v5: user data of an assignment in a group that runs tasks, from the leader to a member.

    version int32 · latest supported version int32 · active [task] · standby [task] · by host [HostInfo, [task]]
    · error code int32

All big-endian, in the document's layout (KIP-429 part II); see `roster.wire.streams.subscription_info` for the values.
The table by host is the same for every member, so it is encoded only once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from roster.model.address import Address
from roster.model.arrays import Int32
from roster.model.tasks import TaskId
from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError
from roster.wire.streams.java_data import Cursor, int32, rows
from roster.wire.streams.subscription_info import (
    EARLIEST_VERSION,
    LATEST_VERSION,
    TASK,
    AssignorErrorCode,
    host_bytes,
    read_host,
)

_LEAST_HOST = 2 + 4 + 4


@dataclass(frozen=True, eq=False)
class HostTasks:
    """Tasks by host, as columns: row i is task `subtopology[i]`_`partition[i]`.

    first: [hosts + 1] first row of each host, and the number of rows.
    """

    hosts: Sequence[Address]
    first: Sequence[int]
    subtopology: Int32
    partition: Int32

    @classmethod
    def of(cls, by_host: Mapping[Address, Collection[TaskId]]) -> "HostTasks":
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

    def as_dict(self) -> dict[Address, list[TaskId]]:
        """Return {host: its tasks}, in the order of the rows."""
        flat = list(map(TaskId, self.subtopology.tolist(), self.partition.tolist()))
        return {host: flat[a:b] for host, (a, b) in zip(self.hosts, pairwise(self.first), strict=True)}

    @cached_property
    def encoded(self) -> bytes:
        """Return the bytes of the table. Raises WireError for a host without a name."""
        parts = [int32(len(self.hosts), "partitions_by_host")]
        for host, (a, b) in zip(self.hosts, pairwise(self.first), strict=True):
            if not host.host:
                raise WireError("partitions_by_host[].host: is empty")
            parts += (
                host_bytes(host, "partitions_by_host[]"),
                rows((self.subtopology[a:b], self.partition[a:b]), TASK),
            )
        return b"".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssignmentInfo:
    """The tasks that a member runs and replicates, and the tasks of every host.

    version: version of the encoding. commonly_supported: the highest version that the whole group supports (the
    document's LatestSupportedVersionId). active: the tasks to run. standby: the tasks to replicate, each once.
    tasks_by_host: the document's PartitionsByHost. error: an `AssignorErrorCode`.
    """

    version: int
    commonly_supported: int
    active: Sequence[TaskId] = ()
    standby: Sequence[TaskId] = ()
    tasks_by_host: HostTasks = field(default_factory=lambda: HostTasks.of({}))
    error: int = AssignorErrorCode.NONE


def decode_assignment_info(data: Buffer) -> AssignmentInfo:
    """Decode v5. Raises WireError that names the invalid field."""
    cursor = Cursor(data, "AssignmentInfo")
    version = _checked(cursor.int32("version"))
    cursor.message = f"AssignmentInfo v{version}"
    commonly = cursor.int32("commonly_supported")
    active, standby = _read_tasks(cursor, "active"), _read_tasks(cursor, "standby")
    if len(set(standby)) < len(standby):
        raise WireError(f"{cursor.where('standby')}: a task is listed twice")
    by_host = _read_hosts(cursor)
    error = cursor.int32("error")
    cursor.end()
    return AssignmentInfo(
        version=version, commonly_supported=commonly, active=active, standby=standby, tasks_by_host=by_host, error=error
    )


def encode_assignment_info(info: AssignmentInfo) -> bytes:
    """Encode. Raises WireError that names the field that cannot be encoded."""
    message = f"AssignmentInfo v{_checked(info.version)}"
    try:
        return b"".join(
            (
                int32(info.version, "version"),
                int32(info.commonly_supported, "commonly_supported"),
                _tasks(info.active, "active"),
                _tasks(info.standby, "standby"),
                info.tasks_by_host.encoded,
                int32(info.error, "error"),
            )
        )
    except WireError as error:
        raise WireError(f"{message}: {error}") from error


def _checked(version: int) -> int:
    if not EARLIEST_VERSION <= version <= LATEST_VERSION:
        raise WireError(f"AssignmentInfo: version: {version}, there is {LATEST_VERSION}")
    return version


def _read_hosts(cursor: Cursor) -> HostTasks:
    tables = [np.empty(0, TASK)]
    hosts, first = [], [0]
    for _ in range(cursor.count("partitions_by_host", _LEAST_HOST)):
        hosts.append(read_host(cursor, "partitions_by_host[]"))
        if not hosts[-1].host:
            raise WireError(f"{cursor.where('partitions_by_host[].host')}: is empty")
        tables.append(cursor.rows("partitions_by_host[].tasks", TASK))
        first.append(first[-1] + len(tables[-1]))
    table = np.concatenate(tables)
    return HostTasks(hosts, first, table["subtopology"].astype(np.int32), table["partition"].astype(np.int32))


def _read_tasks(cursor: Cursor, field: str) -> list[TaskId]:
    return [TaskId(*row) for row in cursor.rows(field, TASK).tolist()]


def _tasks(tasks: Sequence[TaskId], where: str) -> bytes:
    parts = [int32(len(tasks), where)]
    parts += [int32(subtopology, where) + int32(partition, where) for subtopology, partition in tasks]
    return b"".join(parts)
