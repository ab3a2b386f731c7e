"""SubscriptionInfo v5: a member's process and tasks, as user data of its subscription in a group that runs tasks.

    version int32 · latest supported version int32 · process uuid · [task, gap int32] · end point HostInfo

    task   sub-topology int32, partition int32        [..]      int32 count, then as many
    uuid   two int64, most significant first          HostInfo  host text, port int32; none is an empty host, port -1

All big-endian; the layout is the document's (KIP-429 part II). Versions 1 to 4 of Kafka Streams have no gaps, and its
version 5 is another layout. None of these is read, since its members are in groups with a protocol of their own.

A gap is the sum of (log end - restored offset) over a task's stores, at most the largest int32. RUNNING is written as
0; which member runs a task follows from the partitions it owns. STATELESS (-1) is for a task without a store, and only
the member that runs it names it. The gap of a task that is not named is the whole log.

A process with several threads adds its capacity as int32 and the four bytes `RCAP`; no other message ends with these
bytes. The document has no field for the capacity.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from roster.model.address import MOST_PORT, Address
from roster.model.arrays import Bool, Int64
from roster.model.problem import MAX_CAPACITY
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError
from roster.wire.streams.java_data import Cursor, int32, rows, utf

EARLIEST_VERSION = LATEST_VERSION = 5
"""Versions that are read and written. Of later ones, only the two version numbers at the beginning are read."""
MOST_GAP = 2**31 - 1
"""The largest gap; larger ones are written as this."""

NO_PORT = -1
CAPACITY_MAGIC = b"RCAP"
_CAPACITY_SIZE = 4 + len(CAPACITY_MAGIC)

TASK = np.dtype([("subtopology", ">i4"), ("partition", ">i4")])
TASK_GAP = np.dtype([*TASK.descr, ("gap", ">i4")])


class AssignorErrorCode(IntEnum):
    """The error codes of AssignmentInfo (Kafka's AssignorError); fields hold plain ints.

    VERSION_PROBING was used within Kafka's members; no leader sends it.
    """

    NONE = 0
    INCOMPLETE_SOURCE_TOPIC_METADATA = 1
    VERSION_PROBING = 2
    ASSIGNMENT_ERROR = 3
    SHUTDOWN_REQUESTED = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubscriptionInfo:
    """The tasks of a member; members of one process have the same `process_id` (16 bytes).

    version: version of the encoding. latest_supported: the highest version that the sender supports. user_endpoint:
    `host:port` at which the process answers queries, None if it does not. capacity: number of threads (cores) of the
    member, from 1 to 2^20.
    """

    version: int
    latest_supported: int
    process_id: bytes
    tasks: TaskLags
    user_endpoint: str | None = None
    capacity: int = 1

    @classmethod
    def empty(cls, version: int, latest_supported: int | None = None) -> "SubscriptionInfo":
        """Return an info with only the versions known."""
        latest = version if latest_supported is None else latest_supported
        return cls(version=version, latest_supported=latest, process_id=bytes(16), tasks=TaskLags.of({}))

    @property
    def future(self) -> bool:
        """True for a member of a later release; only its two version numbers could be read."""
        return self.version > LATEST_VERSION


def decode_subscription_info(data: Buffer) -> SubscriptionInfo:
    """Decode v5, or only the two version numbers of a later version. Raises WireError for other data."""
    body, capacity = _split_capacity(bytes(data))
    cursor = Cursor(body, "SubscriptionInfo")
    version = cursor.int32("version")
    if version < EARLIEST_VERSION:
        raise WireError(f"SubscriptionInfo: version: {version}, the first is {EARLIEST_VERSION}")
    cursor.message = f"SubscriptionInfo v{version}"
    latest = cursor.int32("latest_supported")
    if latest < version:
        raise WireError(f"{cursor.where('latest_supported')}: {latest} is below the version in use")
    if version > LATEST_VERSION:
        return SubscriptionInfo.empty(version, latest)
    process_id = cursor.read("process_id", 16)
    tasks = _read_gaps(cursor)
    endpoint = _read_end_point(cursor)
    cursor.end()
    return SubscriptionInfo(
        version=version,
        latest_supported=latest,
        process_id=process_id,
        tasks=tasks,
        user_endpoint=endpoint,
        capacity=capacity,
    )


def encode_subscription_info(info: SubscriptionInfo) -> bytes:
    """Encode, with RUNNING as 0. Raises WireError that names the field that cannot be encoded."""
    version = info.version
    if not EARLIEST_VERSION <= version <= LATEST_VERSION:
        raise WireError(f"SubscriptionInfo: version: {version}, there is {LATEST_VERSION}")
    message = f"SubscriptionInfo v{version}"
    if info.latest_supported < version:
        raise WireError(f"{message}: latest_supported: {info.latest_supported} is below the version in use")
    if not isinstance(info.process_id, bytes) or len(info.process_id) != 16:
        raise WireError(f"{message}: process_id: {info.process_id!r} is not 16 bytes")
    parts = [
        int32(version, f"{message}: version"),
        int32(info.latest_supported, f"{message}: latest_supported"),
        info.process_id,
        _gaps(info.tasks, message),
        _end_point(info.user_endpoint, message),
    ]
    if info.capacity != 1:
        if not 1 <= info.capacity <= MAX_CAPACITY:
            raise WireError(f"{message}: capacity: {info.capacity}, it is from 1 to {MAX_CAPACITY}")
        parts += (int32(info.capacity, f"{message}: capacity"), CAPACITY_MAGIC)
    return b"".join(parts)


def _split_capacity(data: bytes) -> tuple[bytes, int]:
    if not data.endswith(CAPACITY_MAGIC) or len(data) < _CAPACITY_SIZE:
        return data, 1
    capacity = int.from_bytes(data[-_CAPACITY_SIZE : -len(CAPACITY_MAGIC)], "big", signed=True)
    return data[:-_CAPACITY_SIZE], min(max(capacity, 1), MAX_CAPACITY)


def _read_gaps(cursor: Cursor) -> TaskLags:
    table = cursor.rows("prev_tasks", TASK_GAP)
    subtopology, partition = table["subtopology"].astype(np.int32), table["partition"].astype(np.int32)
    tasks = TaskLags(subtopology, partition, table["gap"].astype(np.int64))
    _check(tasks, tasks.lag < STATELESS, cursor.message)
    return tasks


def _gaps(tasks: TaskLags, message: str) -> bytes:
    _check(tasks, tasks.lag < RUNNING, message)
    gap: Int64 = np.minimum(np.where(tasks.lag == RUNNING, 0, tasks.lag), MOST_GAP)
    return rows((tasks.subtopology, tasks.partition, gap), TASK_GAP)


def _check(tasks: TaskLags, wrong: Bool, message: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise WireError(
            f"{message}: prev_tasks: gap {tasks.lag[row]} of task {_name(tasks, row)} is neither a count of records nor"
            f" {STATELESS} (stateless); leave a task of unknown gap out"
        )
    twice = _listed_before(tasks)
    if twice.any():
        raise WireError(f"{message}: prev_tasks: {_name(tasks, int(np.argmax(twice)))} is listed twice, with two gaps")


def _listed_before(tasks: TaskLags) -> Bool:
    key = (tasks.subtopology.astype(np.int64) << 32) | (tasks.partition.astype(np.int64) & 0xFFFFFFFF)
    order = np.argsort(key, kind="stable")
    twice = np.zeros(len(key), dtype=np.bool_)
    twice[order[1:]] = key[order[1:]] == key[order[:-1]]
    return twice


def _name(tasks: TaskLags, row: int) -> TaskId:
    return TaskId(int(tasks.subtopology[row]), int(tasks.partition[row]))


def _read_end_point(cursor: Cursor) -> str | None:
    host = read_host(cursor, "end_point")
    if host.host:
        return str(parse_host(str(host), cursor.where("end_point")))
    if not NO_PORT <= host.port <= MOST_PORT:
        raise WireError(f"{cursor.where('end_point.port')}: {host.port} is not a port")
    return None


def _end_point(text: str | None, message: str) -> bytes:
    where = f"{message}: user_endpoint"
    if text is not None and not isinstance(text, str):
        raise WireError(f"{where}: {type(text).__name__} instead of text")
    return host_bytes(parse_host(text, where) if text else Address("", NO_PORT), f"{message}: end_point")


def parse_host(text: str, where: str) -> Address:
    """Parse `host:port` of a HostInfo. Raises WireError for text without a host or without a port from 0 to 65535."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "\0" in host or not (port.isascii() and port.isdecimal() and int(port) <= MOST_PORT):
        raise WireError(f"{where}: {text!r} is not host:port")
    return Address(host, int(port))


def read_host(cursor: Cursor, field: str) -> Address:
    """Read a HostInfo: Java's `utf` and an int32."""
    return Address(cursor.utf(f"{field}.host"), cursor.int32(f"{field}.port"))


def host_bytes(host: Address, field: str) -> bytes:
    """Encode a HostInfo."""
    return utf(host.host, f"{field}.host") + int32(host.port, f"{field}.port of {host.host}")
