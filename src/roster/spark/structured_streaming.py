"""Consumer groups of Spark's own Kafka queries: a query's offsets go to a group, a group's offsets to a query."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from roster.client import Admin, ClientError, OffsetAndMetadata
from roster.client.live_group import members_of
from roster.model import OffsetSpec, TopicPartition
from roster.model.options import shown
from roster.model.topics import offsets_by_topic
from roster.pipeline.errors import PipelineError, reason_of
from roster.pipeline.options import check_security, parse_bootstrap
from roster.security import Security
from roster.spark.jobs.spark_jobs import check_session

log = logging.getLogger(__name__)

_KAFKA_SOURCES = ("KafkaV2[", "KafkaSourceV1[", "KafkaSource[")
"""How the descriptions of Spark's Kafka sources begin."""
_REPEAT = 3600.0
"""Seconds after which unchanged offsets are committed again: a cluster forgets the offsets of an empty group."""
_RETRY = 10.0  # seconds between two attempts at a commit that failed
_LOOK = 0.5  # seconds between two looks at the queries


class ProgressCommitter:
    """Commits the offsets of a Structured Streaming query to a group, until `close`; usable as a context manager.

    Made by `commit_progress`. A thread of its own commits, so neither a slow cluster nor an error holds the query up.
    """

    def __init__(self, active: Callable[[], Sequence[StreamingQuery]], group: str, admin: Admin) -> None:
        """`active` returns the queries that may be followed; the first one with Kafka is."""
        self._active, self._group, self._admin = active, group, admin
        self._followed: StreamingQuery | None = None
        self._newest: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._committed_at = self._failed_at = float("-inf")
        self._warned: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"roster-progress-{group}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Commit what the query has done until now, and follow it no longer."""
        self._closing.set()
        self._thread.join()
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        is_closing = False
        while not is_closing:
            is_closing = self._closing.wait(_LOOK)
            try:
                self._read_offsets()
                self._commit(at_once=is_closing)
            except Exception as error:  # whatever it is, the thread goes on with the next batch
                self._warn(f"the query's offsets are not known: {reason_of(error)}")

    def _read_offsets(self) -> None:
        """Read the offsets of the query that is followed; choose another one once those it ended with are committed."""
        active = {query.runId: query for query in self._active()}
        if self._followed is not None:
            self._newest = offsets_of(self._followed) or self._newest
            if self._followed.runId not in active:
                self._followed = None
                return
        for run, query in active.items():
            if not (offsets := offsets_of(query)):
                continue
            if self._followed is None:
                self._followed, self._newest = query, offsets
            elif run != self._followed.runId:
                self._warn(
                    f"query {query.name or query.id} is left out: the group has the offsets of another query. "
                    "Call commit_progress(query, …) with a group for each"
                )

    def _commit(self, *, at_once: bool) -> None:
        now = time.monotonic()
        is_due = now - self._committed_at >= _REPEAT
        changed = {p: at for p, at in self._newest.items() if is_due or self._committed.get(p) != at}
        if not changed or (not at_once and now - self._failed_at < _RETRY):
            return
        try:
            self._admin.commit_group_offsets(self._group, {p: OffsetAndMetadata(at) for p, at in changed.items()})
        except ClientError as error:
            self._failed_at = now
            self._warn(f"the query's offsets are not committed: {error}")
            return
        if is_due:
            self._committed_at = now
        self._committed = self._newest
        self._failed_at = float("-inf")
        self._warned.clear()

    def _warn(self, text: str) -> None:
        """Log a warning once until a commit succeeds."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("group %s: %s", self._group, text)


def commit_progress(
    query: StreamingQuery | SparkSession,
    bootstrap: str | Sequence[str],
    group: str,
    *,
    security: Security | Mapping[str, object] | None = None,
) -> ProgressCommitter:
    """Commit a Structured Streaming query's offsets to a consumer group twice a second, for tools that show lag.

    The checkpoint stays the truth: the group follows it, also after a restart, and the query never reads from the
    group. Only Spark's Kafka sources count; of a topic that the query reads twice, the smaller offset. A commit that
    fails is a warning, and is repeated.

    Args:
        query: the query; or a session, for the first of its queries that reads from Kafka, started before or later.
        bootstrap: brokers of the cluster that it reads from, "host:port", several with commas or as a list.
        group: a group of its own, which has no members.
        security: TLS and SASL, as in `Pipeline`.

    Returns:
        The committer. Close it before the session stops, so that the last batch counts.

    Raises:
        PipelineError: an argument is wrong, the group has members, or the session is none of Spark Classic.
        roster.client.ClientError: the cluster does not answer, or refuses.

    """
    active = _active(query)
    admin = _admin(bootstrap, group, security)
    try:
        _check_empty(admin, group)
        return ProgressCommitter(active, group, admin)
    except BaseException:
        admin.close()
        raise


def starting_offsets(
    bootstrap: str | Sequence[str],
    group: str,
    *,
    topics: Collection[str] | None = None,
    security: Security | Mapping[str, object] | None = None,
) -> str:
    """Return a group's committed offsets as the JSON text of the option `startingOffsets` of Spark's Kafka source.

    It names all partitions of the topics, as Spark demands, with -2 (earliest) for one without an offset.

    Args:
        bootstrap: as in `commit_progress`.
        group: the group.
        topics: names of all topics that the query reads; None: those in which the group has offsets.
        security: TLS and SASL, as in `Pipeline`.

    Raises:
        PipelineError: an argument is wrong, the group has no offsets in these topics, or one of them does not exist.
        roster.client.ClientError: the cluster does not answer, or refuses.

    """
    if isinstance(topics, str):
        raise PipelineError(f"{topics!r} is one name", field="topics", fix=f"Give a list: [{topics!r}]")
    with _admin(bootstrap, group, security) as admin:
        committed = {p: found.offset for p, found in admin.group_offsets(group).items()}
        counts = admin.list_topics(internal=True)
    wanted = {p.topic for p in committed} & counts.keys() if topics is None else set(topics)
    if missing := sorted(wanted - counts.keys()):
        raise PipelineError(f"there is no topic {missing[0]!r}", field="topics", fix="Correct the name")
    if not any(p.topic in wanted for p in committed):
        raise PipelineError(
            f"{group!r} has no committed offsets" + (f" in {', '.join(sorted(wanted))}" if wanted else ""),
            field="group",
            fix="Correct the name (`roster groups list`), or start with 'earliest' or 'latest'",
        )
    partitions = [TopicPartition(topic, number) for topic in wanted for number in range(counts[topic])]
    return json.dumps(offsets_by_topic({p: committed.get(p, int(OffsetSpec.EARLIEST)) for p in partitions}))


def offsets_of(query: StreamingQuery) -> dict[TopicPartition, int] | None:
    """Return the next offset of each partition by the query's checkpoint; None while it has finished no batch."""
    sources = _sources(query)
    if not sources:
        return None
    next_offsets: dict[TopicPartition, int] = {}
    for description, offsets in sources:
        if not offsets or not description.startswith(_KAFKA_SOURCES):
            continue
        for topic, partitions in json.loads(offsets).items():
            for number, offset in partitions.items():
                partition = TopicPartition(topic, int(number))
                next_offsets[partition] = min(next_offsets.get(partition, offset), offset)
    return next_offsets


def _sources(query: StreamingQuery) -> list[tuple[str, str]]:
    """Return description and offsets, as JSON text, of each source of the query, at the last batch that counts."""
    try:
        # Known from the start of a restarted query on, before its first batch.
        pairs = query._jsq.streamingQuery().committedOffsets().iterator()
        sources = []
        while pairs.hasNext():
            pair = pairs.next()
            sources.append((pair._1().toString(), pair._2().json()))
        return sources
    except Py4JError:
        last = query.lastProgress
        return [(source.description, source.endOffset) for source in last.sources] if last else []


def _active(query: StreamingQuery | SparkSession) -> Callable[[], Sequence[StreamingQuery]]:
    """Return what returns the queries that may be followed. Raises PipelineError."""
    if isinstance(query, StreamingQuery):
        return lambda: [query]
    if not hasattr(query, "readStream"):
        raise PipelineError(
            f"{shown(query)} is neither a StreamingQuery nor a SparkSession",
            field="query",
            fix="Pass what writeStream.start() returns, not Spark Connect's, or the session",
        )
    check_session(query)
    return lambda: query.streams.active


def _admin(bootstrap: str | Sequence[str], group: str, security: Security | Mapping[str, object] | None) -> Admin:
    """Return a client for the cluster. Raises PipelineError for a wrong argument."""
    if not isinstance(group, str) or not group:
        raise PipelineError(f"{shown(group)} is not a name", field="group", fix="Pass group='my-group'")
    return Admin(parse_bootstrap(bootstrap), client_id="roster-progress", security=check_security(security))


def _check_empty(admin: Admin, group: str) -> None:
    """Raise PipelineError if the group has members: their offsets are theirs."""
    if members := members_of(admin, group):
        raise PipelineError(
            f"{group!r} has {len(members)} members, which commit offsets of their own",
            field="group",
            fix="Name a group that only this query uses",
        )
