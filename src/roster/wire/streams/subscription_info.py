"""SubscriptionInfo v1-v5: a task group member's processes and tasks, as the user data of its subscription.

    v1     version int32 · process uuid · previous tasks [task] · standby tasks [task]
    v2     the same · user endpoint
    v3, v4 version int32 · latest supported version int32 · process uuid · [task] · [task] · user endpoint
    v5     version int32 · latest supported version int32 · process uuid · [task, lag int64] · user endpoint

    task   sub-topology int32, partition int32        [..]      int32 count, then as many
    uuid   two int64, most significant first          endpoint  int32 length, then UTF-8 `host:port`; none is empty

All big-endian. v1-v4 are the bytes of Kafka Streams 0.10.0 to 2.3 (SubscriptionInfo; KIP-268 added v3). They have no
lags: what runs there stands among the previous tasks, what there is only a store of among the standby tasks, so these
are read with the lags RUNNING and UNKNOWN.

**v5 is a reading, not a copy.** KIP-429 part II has version 5 replace the two sets of tasks by tasks with their lag,
with a sentinel where a task is stateless; its text on the bytes was not at hand, so the layout above and the
sentinels' values are Roster's. A lag is the records still to be restored (0 or more), RUNNING (-2, Kafka's own value)
where the task runs, STATELESS (-1) where it runs and has no store. A member that holds a store and does not know its
lag leaves the task out.

**Kafka Streams 2.4 and later give the number 5 to another layout**, which is that of v4 (its lags came in v7, KIP-441),
so a task group of Roster's is not mixed with Kafka Streams from 2.4 on; up to 2.3 the versions up to 4 are shared. This
reader never takes Kafka's v5 for its own: read so, either the lengths do not add up, or the endpoint has a NUL in it or
is longer than MOST_ENDPOINT, and all of these are refused here, as are bytes behind the end. Kafka's reader ignores
bytes behind the end and cannot tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from roster.model.arrays import Bool
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError
from roster.wire.streams.java_data import Cursor, int32, rows

LATEST_VERSION = 5
UNKNOWN_VERSION = -1
"""Latest supported version of members on v1 or v2, which do not send it; also the commonly supported version then."""
UNKNOWN = -3
"""Lag of a store whose member speaks a version without lags (Kafka's value); it cannot be written in v5."""
MOST_ENDPOINT = 32767

TASK = np.dtype([("subtopology", ">i4"), ("partition", ">i4")])
TASK_LAG = np.dtype([*TASK.descr, ("lag", ">i8")])


class AssignorErrorCode(IntEnum):
    """The error codes of AssignmentInfo (Kafka's AssignorError); fields hold plain ints.

    VERSION_PROBING is what Kafka's members once noted for themselves; no leader sends it.
    """

    NONE = 0
    INCOMPLETE_SOURCE_TOPIC_METADATA = 1
    VERSION_PROBING = 2
    ASSIGNMENT_ERROR = 3
    SHUTDOWN_REQUESTED = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubscriptionInfo:
    """A member's tasks, for its process: members of one process have the same `process_id` (16 bytes).

    version: version of the encoding. latest_supported: the highest version its sender supports, UNKNOWN_VERSION in
    v1 and v2. user_endpoint: `host:port` where the process answers queries, None if it does not; v1 leaves it out.
    """

    version: int
    latest_supported: int
    process_id: bytes
    tasks: TaskLags
    user_endpoint: str | None = None

    @property
    def future(self) -> bool:
        """True for a member of a later release, of which only the two versions could be read."""
        return self.version > LATEST_VERSION


def decode_subscription_info(data: Buffer) -> SubscriptionInfo:
    """Decode v1 to v5; of a later version only the two versions. Raises WireError for anything else."""
    cursor = Cursor(data, "SubscriptionInfo")
    version = cursor.int32("version")
    if version < 1:
        raise WireError(f"SubscriptionInfo: version: {version}, the first is 1")
    cursor.message = f"SubscriptionInfo v{version}"
    latest = cursor.int32("latest_supported") if version >= 3 else UNKNOWN_VERSION
    if version >= 3 and latest < version:
        raise WireError(f"{cursor.where('latest_supported')}: {latest} is below the version in use")
    if version > LATEST_VERSION:
        return SubscriptionInfo(version=version, latest_supported=latest, process_id=bytes(16), tasks=TaskLags.of({}))
    process_id = cursor.taken("process_id", 16)
    tasks = _read_lags(cursor) if version >= 5 else _read_sets(cursor)
    endpoint = _read_endpoint(cursor, version) if version >= 2 else None
    cursor.end()
    return SubscriptionInfo(
        version=version, latest_supported=latest, process_id=process_id, tasks=tasks, user_endpoint=endpoint
    )


def encode_subscription_info(info: SubscriptionInfo) -> bytes:
    """Encode in `info.version`; raises WireError naming what that version cannot carry.

    v1 to v4 keep of a lag only whether the task runs (RUNNING or STATELESS) or is a store.
    """
    version = info.version
    if not 1 <= version <= LATEST_VERSION:
        raise WireError(f"SubscriptionInfo: version: {version}, there are 1 to {LATEST_VERSION}")
    message = f"SubscriptionInfo v{version}"
    parts = [int32(version, f"{message}: version")]
    if version >= 3:
        if info.latest_supported < version:
            raise WireError(f"{message}: latest_supported: {info.latest_supported} is below the version in use")
        parts.append(int32(info.latest_supported, f"{message}: latest_supported"))
    if not isinstance(info.process_id, bytes) or len(info.process_id) != 16:
        raise WireError(f"{message}: process_id: {info.process_id!r} is not 16 bytes")
    parts.append(info.process_id)
    parts.append(_lags(info.tasks, message) if version >= 5 else _sets(info.tasks))
    if version >= 2:
        parts.append(_endpoint(info.user_endpoint, version, message))
    return b"".join(parts)


def _read_sets(cursor: Cursor) -> TaskLags:
    running = cursor.rows("prev_tasks", TASK)
    stores = cursor.rows("standby_tasks", TASK)
    tasks = np.concatenate((running, stores))
    lag = np.repeat(np.array([RUNNING, UNKNOWN]), [len(running), len(stores)])
    return TaskLags(tasks["subtopology"].astype(np.int32), tasks["partition"].astype(np.int32), lag)


def _sets(tasks: TaskLags) -> bytes:
    runs = (tasks.lag == RUNNING) | (tasks.lag == STATELESS)
    return b"".join(rows((tasks.subtopology[chosen], tasks.partition[chosen]), TASK) for chosen in (runs, ~runs))


def _read_lags(cursor: Cursor) -> TaskLags:
    table = cursor.rows("tasks", TASK_LAG)
    tasks = TaskLags(
        table["subtopology"].astype(np.int32), table["partition"].astype(np.int32), table["lag"].astype(np.int64)
    )
    _check_lags(tasks, cursor.message)
    return tasks


def _lags(tasks: TaskLags, message: str) -> bytes:
    _check_lags(tasks, message)
    return rows((tasks.subtopology, tasks.partition, tasks.lag), TASK_LAG)


def _check_lags(tasks: TaskLags, message: str) -> None:
    below = tasks.lag < RUNNING
    if below.any():
        at = int(np.argmax(below))
        raise WireError(
            f"{message}: tasks: lag {tasks.lag[at]} of task {_name(tasks, at)} is neither a count of records nor"
            f" {STATELESS} (stateless) nor {RUNNING} (running); leave a task of unknown lag out"
        )
    twice = _listed_before(tasks)
    if twice.any():
        raise WireError(f"{message}: tasks: {_name(tasks, int(np.argmax(twice)))} is listed twice, with two lags")


def _listed_before(tasks: TaskLags) -> Bool:
    key = (tasks.subtopology.astype(np.int64) << 32) | (tasks.partition.astype(np.int64) & 0xFFFFFFFF)
    order = np.argsort(key, kind="stable")
    twice = np.zeros(len(key), dtype=np.bool_)
    twice[order[1:]] = key[order[1:]] == key[order[:-1]]
    return twice


def _name(tasks: TaskLags, at: int) -> TaskId:
    return TaskId(int(tasks.subtopology[at]), int(tasks.partition[at]))


def _read_endpoint(cursor: Cursor, version: int) -> str | None:
    data = cursor.sized("user_endpoint")
    where = cursor.where("user_endpoint")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error
    if version >= 5:
        _check_endpoint(data, where)
    return text or None


def _endpoint(text: str | None, version: int, message: str) -> bytes:
    where = f"{message}: user_endpoint"
    if text is not None and not isinstance(text, str):
        raise WireError(f"{where}: {type(text).__name__} instead of text")
    try:
        data = (text or "").encode()
    except UnicodeEncodeError as error:
        raise WireError(f"{where}: {text!r} has no UTF-8 form ({error.reason})") from error
    if version >= 5:
        _check_endpoint(data, where)
    return int32(len(data), where) + data


def _check_endpoint(data: bytes, where: str) -> None:
    if 0 in data or len(data) > MOST_ENDPOINT:
        raise WireError(
            f"{where}: {len(data)} bytes{' with NUL among them' if 0 in data else ''} are no host:port;"
            " so looks a v5 of Kafka Streams 2.4 or later, which is another layout"
        )
