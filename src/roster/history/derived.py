"""The tables that are made of a recorded history, group by group: rebalances, moves, ownership, lag, weights."""

import contextlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.history.consumer_groups import as_classic
from roster.history.positions import Lags, Positions, Series
from roster.history.tables import COMMITS, GROUPS
from roster.history.timeline import OPEN, WHYS, CauseSeen, timeline
from roster.model import TopicPartition
from roster.model.arrays import Int64
from roster.wire import WireError
from roster.wire.offsets_topic import GroupMetadataKey, GroupMetadataValue, decode_value

Columns: TypeAlias = dict[str, object]
"""Columns of a table by name: lists, or arrays of Arrow or NumPy."""
ENDS = "ends"
TIME = pa.timestamp("us", "UTC")
EVENTS = pa.schema(
    [
        ("table", pa.string()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic_id", pa.binary()),
        ("at", TIME),
        ("log_offset", pa.int64()),
    ]
)
"""What is known of one group, in any order: its commits and records, and the ends of the partitions it commits."""

_COLUMNS = {
    COMMITS: ["topic", "partition", "offset", "at", "log_offset"],
    GROUPS: ["key", "value", "at", "log_offset"],
    ENDS: ["topic", "partition", "offset", "at", "topic_id"],
}
_PARTITION = [("topic", pa.string()), ("partition", pa.int32())]
REBALANCE = [("group", pa.string()), ("generation", pa.int32()), ("ended_at", TIME)]
_MEMBER = [(name, pa.string()) for name in ("member_id", "instance_id", "client_id", "host")]
AROUND = {"before": -60_000, "": 0, "after": 60_000}
"""When lag is looked at beside the end of a rebalance, in ms."""
TABLES: Mapping[str, pa.Schema] = {
    "rebalances": pa.schema(
        [
            *REBALANCE,
            ("assignor", pa.string()),
            ("leader", pa.string()),
            ("members", pa.int32()),
            ("partitions", pa.int32()),
            ("causes", pa.list_(pa.struct([("kind", pa.string()), *_MEMBER, ("detail", pa.string())]))),
            ("moved", pa.int32()),
            ("unowned", pa.int32()),
            ("unowned_partition_ms", pa.int64()),
            ("missing_generations", pa.int32()),
            ("sync_ms", pa.int64()),
            ("standstill_partition_seconds", pa.float64()),
            ("standstill_longest_seconds", pa.float64()),
            *((f"lag_{unit}{when and '_'}{when}", pa.int64()) for when in AROUND for unit in ("records", "ms")),
        ]
    ),
    "moves": pa.schema(
        [
            *REBALANCE,
            *_PARTITION,
            *((name, pa.string()) for name in ("source", "target", "why")),
            ("lag_records", pa.int64()),
        ]
    ),
    "ownership": pa.schema([("group", pa.string()), *_PARTITION, *_MEMBER, ("from", TIME), ("until", TIME)]),
    "lag": pa.schema([("group", pa.string()), *_PARTITION, ("at", TIME), ("records", pa.int64()), ("ms", pa.int64())]),
    "weights": pa.schema(
        [
            ("group", pa.string()),
            *_PARTITION,
            ("records_per_second", pa.float64()),
            ("seconds_per_record", pa.float64()),
        ]
    ),
}
"""The derived tables. None stands for what is not known; `ownership.until` for an interval that has not ended.

sync_ms: from the end of the join phase until the coordinator stored the assignment, or from a consumer group's new
epoch until every member had reached it.
"""


class GroupHistory:
    """The history of one group, of its rows with the columns of EVENTS."""

    def __init__(self, rows: pa.Table, group: str | None = None) -> None:
        self.group = rows["group"][0].as_py() if group is None else group
        rows_of = {
            table: rows.select(names).filter(pc.equal(rows["table"], table)) for table, names in _COLUMNS.items()
        }
        records = rows_of[GROUPS].sort_by("log_offset")
        stored = (ms_of(records["at"]).tolist(), records["key"].to_pylist(), records["value"].to_pylist())
        self._records = list(as_classic(zip(*stored, strict=True), _names(rows_of[ENDS])))
        self.timeline = timeline(self._records)
        group_of = self.timeline.group
        pairs = zip(group_of.topic.tolist(), group_of.number.tolist(), strict=True)
        self.owned = [TopicPartition(group_of.topics[topic], number) for topic, number in pairs]
        commits = rows_of[COMMITS].filter(pc.is_valid(rows_of[COMMITS]["offset"])).sort_by("log_offset")
        self.positions = Positions(_series(commits), _series(rows_of[ENDS].sort_by("at")))
        self.moments = np.array([rebalance.now.at_ms for rebalance in self.timeline.rebalances], np.int64)

    def table(self, name: str) -> pa.Table:
        """Return a derived table of the group."""
        columns = getattr(self, f"_{name}")()
        every = {"group": pa.repeat(self.group, len(next(iter(columns.values())))), **columns}
        return pa.table([column(every[field.name], field.type) for field in TABLES[name]], schema=TABLES[name])

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield all of them, each with its name."""
        return ((name, self.table(name)) for name in TABLES)

    def records(self) -> Iterator[GroupMetadataValue]:
        """Yield the records of the group that can be read, without removals."""
        for _, value in self._records:
            if value is not None:
                with contextlib.suppress(WireError):
                    decoded = decode_value(GroupMetadataKey(group=self.group), value)
                    assert isinstance(decoded, GroupMetadataValue)  # by the key
                    yield decoded

    def counts(self) -> Int64:
        """Return [rebalances, topics] the partitions known at each rebalance: assigned, claimed, or with ends."""
        group, rebalances = self.timeline.group, self.timeline.rebalances
        counts = np.zeros((len(rebalances), len(group.topics)), np.int64)
        for row, rebalance in zip(counts, rebalances, strict=True):
            partitions = np.concatenate((rebalance.now.owned, rebalance.now.claimed))
            np.maximum.at(row, group.topic[partitions], group.number[partitions].astype(np.int64) + 1)
        number_of = {topic: number for number, topic in enumerate(group.topics)}
        for (topic, number), ends in self.positions.ends.items():
            if topic in number_of:
                begin = np.searchsorted(self.moments, ends.times[0])
                counts[begin:, number_of[topic]] = np.maximum(counts[begin:, number_of[topic]], number + 1)
        return np.maximum.accumulate(counts, axis=0)

    def offsets(self, counts: Mapping[str, int], at_ms: int) -> dict[str, dict[int, tuple[int, int, int | None]]]:
        """Return (0, end, committed) of the partitions of topics at a time, by partitions whose lag is known."""
        offsets: dict[str, dict[int, tuple[int, int, int | None]]] = {}
        tps = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        for tp, lag in zip(tps, self.positions.lags(tps, np.array([at_ms])).records[:, 0].tolist(), strict=True):
            if not np.isnan(lag):
                commits = self.positions.commits[tp]
                committed = int(commits.offsets[np.searchsorted(commits.times, at_ms, "right") - 1])
                offsets.setdefault(tp.topic, {})[tp.partition] = (0, committed + round(lag), committed)
        return offsets

    def _rebalances(self) -> Columns:
        rebalances = self.timeline.rebalances
        stills = self.positions.standstills(self.moments)
        lags: Columns = {}
        for when, offset in AROUND.items():
            of_group = self.positions.lags(list(self.positions.commits), self.moments + offset).of_group()
            lags |= dict(zip((f"lag_{unit}{when and '_'}{when}" for unit in ("records", "ms")), of_group, strict=True))
        return {
            "generation": [rebalance.now.number for rebalance in rebalances],
            "ended_at": self.moments,
            "assignor": [rebalance.now.assignor for rebalance in rebalances],
            "leader": [rebalance.now.leader for rebalance in rebalances],
            "members": [len(rebalance.now.member) for rebalance in rebalances],
            "partitions": [len(rebalance.now.owned) for rebalance in rebalances],
            "causes": [[_cause(cause) for cause in rebalance.causes] for rebalance in rebalances],
            "moved": [len(rebalance.moved) for rebalance in rebalances],
            "unowned": [int(((rebalance.target < 0) & (rebalance.source >= 0)).sum()) for rebalance in rebalances],
            "unowned_partition_ms": [rebalance.unowned_ms for rebalance in rebalances],
            "missing_generations": [rebalance.missing for rebalance in rebalances],
            "sync_ms": [rebalance.sync_ms for rebalance in rebalances],
            **{f"standstill_{name}": values for name, values in stills._asdict().items()},
            **lags,
        }

    def _moves(self) -> Columns:
        rebalances = self.timeline.rebalances
        moved = np.concatenate([rebalance.moved for rebalance in rebalances] or [np.zeros(0, np.int64)])
        index = np.repeat(np.arange(len(rebalances)), [len(rebalance.moved) for rebalance in rebalances])
        names = pa.array([*self.timeline.names, None], pa.string())
        places, number = np.unique(moved, return_inverse=True)
        lags = self.positions.lags([self.owned[place] for place in places.tolist()], self.moments).records
        return {
            "generation": pa.array([rebalance.now.number for rebalance in rebalances], pa.int32()).take(index),
            "ended_at": self.moments[index],
            **_listed(self.owned, moved),
            **{
                end: names.take(
                    np.concatenate([getattr(rebalance, end) for rebalance in rebalances] or [index]) % len(names)
                )
                for end in ("source", "target")
            },
            "why": pa.array(WHYS).take(np.concatenate([rebalance.why for rebalance in rebalances] or [index])),
            "lag_records": lags[number, index],
        }

    def _ownership(self) -> Columns:
        owned, members = self.timeline.ownership, self.timeline.group.members
        columns = pa.Table.from_pylist([member._asdict() for member in members], pa.schema(_MEMBER)).take(owned.member)
        return {
            **_listed(self.owned, owned.partition),
            **{name: columns[name].combine_chunks() for name in columns.column_names},
            "from": owned.since,
            "until": pa.array(owned.until, mask=owned.until == OPEN),
        }

    def _lag(self) -> Columns:
        """Return the lag at each recording of the ends."""
        moments = np.unique(np.concatenate([series.times for series in self.positions.ends.values()] or [self.moments]))
        partitions = sorted(self.positions.commits)
        lags = self.positions.lags(partitions, moments)
        row, moment = np.nonzero(~np.isnan(lags.records))
        columns = Lags(*(values[row, moment] for values in lags))
        return {**_listed(partitions, row), "at": moments[moment], **columns._asdict()}

    def _weights(self) -> Columns:
        """Return columns: what usually arrives in a partition, and how long a record of it usually takes."""
        partitions = sorted(self.positions.commits)
        return {
            **_listed(partitions, np.arange(len(partitions))),
            "records_per_second": [self.positions.arriving(tp) for tp in partitions],
            "seconds_per_record": [self.positions.seconds_per_record(tp) for tp in partitions],
        }


def ms_of(times: pa.ChunkedArray) -> Int64:
    """Return a column of times in wall-clock ms."""
    moments: Int64 = times.cast(TIME).cast(pa.int64()).to_numpy() // 1000
    return moments


def column(values: Any, kind: pa.DataType) -> pa.Array:
    """Return numbers or objects as a column; nan is null, and times are in ms."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        is_known = np.isfinite(values)
        rounded = np.rint(np.where(is_known, values, 0)) if pa.types.is_integer(kind) else values
        values = pa.array(rounded, mask=~is_known)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(kind)
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


def _cause(cause: CauseSeen) -> Columns:
    return {"kind": cause.kind.value, "detail": cause.detail, **(cause.member._asdict() if cause.member else {})}


def _listed(partitions: list[TopicPartition], rows: Int64) -> Columns:
    return {
        "topic": pa.array([tp.topic for tp in partitions], pa.string()).take(rows),
        "partition": pa.array([tp.partition for tp in partitions], pa.int32()).take(rows),
    }


def _names(ends: pa.Table) -> dict[bytes, str]:
    """Return the topics by their ids."""
    ids = ends["topic_id"].combine_chunks().dictionary_encode()
    known = pc.is_valid(ids)
    place = np.zeros(len(ids.dictionary), np.int64)
    place[ids.indices.filter(known).to_numpy()] = np.flatnonzero(known)
    return dict(zip(ids.dictionary.to_pylist(), ends["topic"].take(place).to_pylist(), strict=True))


def _series(rows: pa.Table) -> dict[TopicPartition, Series]:
    """Return the offsets by partition, in the order of the rows, at times that do not fall."""
    topics = rows["topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    order = np.lexsort((rows["partition"].to_numpy(), topics.indices.to_numpy()))
    numbers = np.stack([topics.indices.to_numpy()[order], rows["partition"].to_numpy()[order]])
    times, values = ms_of(rows["at"])[order], rows["offset"].to_numpy()[order]
    starts = [0, *(np.flatnonzero((np.diff(numbers) != 0).any(axis=0)) + 1).tolist(), len(order)]
    return {
        TopicPartition(names[numbers[0, start]], int(numbers[1, start])): Series(
            np.maximum.accumulate(times[start:stop]), values[start:stop]
        )
        for start, stop in pairwise(starts)
        if stop > start
    }
