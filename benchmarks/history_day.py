"""A synthetic day of groups: its records decoded and stored as a recorder does, made into tables, and replayed.

Each group of twelve partitions has random rebalances, and commits every few seconds. What the tables say caused each
rebalance is compared with what was done to the group.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.broker import cpu_seconds
from roster.assignors import find_assignor
from roster.history.derived import GroupHistory
from roster.history.folder import ENDS_SCHEMA, RECORDS, HistoryFolder
from roster.history.replay import replay
from roster.history.tables import rows_of
from roster.records import native
from roster.spark import history_tables, replay_history, session
from roster.wire.offsets_topic import GroupMetadataKey, OffsetCommitKey, encode_key
from tests.history.made_up import Group, events, happening

DAY_MS = 86_400_000
START = 1_790_000_000_000 // DAY_MS * DAY_MS
POLICIES = ["range", "roundrobin", "sticky", "cooperative-sticky", "lag-cooperative-sticky"]
_VALUE = np.dtype([("v", ">i2"), ("offset", ">i8"), ("epoch", ">i4"), ("metadata", ">i2"), ("at", ">i8")])
"""A committed offset of version 3, without metadata."""
_AT_ONCE = 100
"""Groups whose records are decoded at once."""


def day_of(number: int, rebalances: int) -> Group:
    """A group's day, with its rebalances spread over it."""
    group = happening(number, rebalances, "cooperative-sticky", topics={f"topic-{number}": 8, f"other-{number}": 4})
    chance = random.Random(number)
    times = sorted(chance.randrange(DAY_MS) for _ in group.records)
    group.records = [(START + at, value) for at, (_, value) in zip(times, group.records, strict=True)]
    return group


def records(numbers: range, rebalances: int, commit_ms: int, causes: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the records of some groups; `causes` gets what was done to each."""
    keys: list[bytes] = []
    for number in numbers:
        group, name = day_of(number, rebalances), f"team{number % 20}.group-{number}"
        causes[name] = group.done
        at, values = zip(*group.records, strict=True)
        yield _batch(pa.array([encode_key(GroupMetadataKey(group=name))] * len(at)), pa.array(values), np.array(at))
        partitions = ((f"topic-{number}", 8), (f"other-{number}", 4))
        keys += [
            encode_key(OffsetCommitKey(group=name, topic=topic, partition=n))
            for topic, size in partitions
            for n in range(size)
        ]
    moments = np.arange(0, DAY_MS, commit_ms)
    dictionary = pa.array(keys, pa.binary())
    for begin in range(0, len(moments), 400):
        at = np.repeat(moments[begin : begin + 400], len(keys))
        made = np.zeros(len(at), _VALUE)
        made["v"], made["epoch"], made["offset"], made["at"] = 3, 1, at // 10, START + at
        values = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_VALUE.itemsize), len(at), [None, pa.py_buffer(made.tobytes())]
        ).cast(pa.binary())
        yield _batch(dictionary.take(pa.array(np.tile(np.arange(len(keys)), len(at) // len(keys)))), values, START + at)


def _batch(keys: pa.Array, values: pa.Array, at: Any) -> pa.RecordBatch:
    count = len(at)
    return pa.RecordBatch.from_pydict(
        {
            "key": keys,
            "value": values,
            "partition": pa.array(np.zeros(count, np.int32)),
            "offset": pa.array(np.arange(count)),
            "timestamp": pa.array(at).cast(pa.timestamp("ms", "UTC")),
        }
    )


def record(folder: Path, groups: int, rebalances: int, commit_ms: int) -> tuple[dict[str, Any], int, float]:
    """Decode and store the records of all groups and the ends of each minute; what was done, records, CPU seconds."""
    loops, causes, count, took = native.kernel(None, native.OFFSETS), {}, 0, 0.0
    minutes = START + np.arange(0, DAY_MS + 1, 60_000)
    for begin in range(0, groups, _AT_ONCE):
        numbers = range(begin, min(begin + _AT_ONCE, groups))
        for index, batch in enumerate(records(numbers, rebalances, commit_ms, causes)):
            began = time.process_time()
            for rows in rows_of(loops, batch):
                if len(rows):
                    place = folder / RECORDS / f"table={rows['table'][0]}" / f"day={rows['day'][0]}"
                    place.mkdir(parents=True, exist_ok=True)
                    kept = rows.drop_columns(["table", "day"])
                    pq.write_table(pa.table(kept), place / f"{begin}-{index}.parquet", compression="zstd")
            took += time.process_time() - began
            count += len(batch)
        tps = [(f"{kind}-{n}", p) for n in numbers for kind, size in (("topic", 8), ("other", 4)) for p in range(size)]
        topics, partitions = zip(*tps, strict=True)
        at = np.tile(minutes, len(tps))
        columns = {
            "topic": pa.array(np.repeat(np.array(topics, object), len(minutes)), pa.string()),
            "partition": pa.array(np.repeat(partitions, len(minutes)), pa.int32()),
            "begin": pa.array(np.zeros(len(at), np.int64)),
            "end": pa.array((at - START) // 10 + 300),
            "at": pa.array(at).cast(pa.timestamp("ms", "UTC")).cast(ENDS_SCHEMA.field("at").type),
            "topic_id": pa.nulls(len(at), pa.binary()),
        }
        HistoryFolder(folder).put("ends", START, pa.table(columns), f"-{begin}")
    return causes, count, took


def alone(groups: int, rebalances: int) -> dict[str, float]:
    """Rebalances a second of one core, without Spark and lag: reading the history, and replaying it by each policy."""
    rows = [events(day_of(number, rebalances)) for number in range(groups)]
    began = time.process_time()
    histories = [GroupHistory(each) for each in rows]
    rates = {"read": groups * rebalances / (time.process_time() - began)}
    for policy in POLICIES:
        began = time.process_time()
        made = sum(replay(history, [find_assignor(policy)]).num_rows for history in histories)
        rates[policy] = made / (time.process_time() - began)
    return rates


def compare(tables: dict[str, Any], causes: dict[str, Any]) -> Counter[str]:
    """How many rebalances are named as what was done, as unknown, and wrong."""
    told: dict[str, list[Any]] = {}
    for row in tables["rebalances"].select("group", "ended_at", "causes").orderBy("group", "ended_at").collect():
        told.setdefault(row["group"], []).append({(c["kind"], c["member_id"] or "") for c in row["causes"]})
    found: Counter[str] = Counter()
    for name, done in causes.items():
        assert len(told[name]) == len(done), name
        for said, was in zip(told[name], done, strict=True):
            is_unknown = {kind for kind, _ in said} == {"unknown"}
            found["right" if said == {(str(k), m) for k, m in was} else "unknown" if is_unknown else "wrong"] += 1
    return found


def main() -> None:
    """Print rates, sizes and memory of a day."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_day")
    parser.add_argument("--groups", type=int, default=1000, help="10000 for a whole day of a large cluster")
    parser.add_argument("--rebalances", type=int, default=20)
    parser.add_argument("--commit-seconds", type=int, default=5)
    options = parser.parse_args()
    measure(options.groups, options.rebalances, options.commit_seconds)


def run(*, quick: bool) -> None:
    """A small part of a day."""
    measure(50 if quick else 200, 20, 60)


def measure(groups: int, rebalances_each: int, commit_seconds: int) -> None:
    """Print rates, sizes and memory."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "history"
        causes, count, took = record(folder, groups, rebalances_each, 1000 * commit_seconds)
        rebalances = groups * rebalances_each
        print(f"recorded  {count:12,} records, {count / took / 1e6:.2f} M/s of a core, {_mb(folder / RECORDS)} MB")
        print(f"          {_mb(folder / 'ends')} MB of ends")
        spark = session("history-day", master="local[2]")
        spark.range(1).count()
        tables, cpu = _measured(lambda: history_tables(spark, str(folder), f"{scratch}/tables"))
        size = _mb(Path(scratch) / "tables")
        print(f"tables    {rebalances / cpu:12,.0f} rebalances/s of a core, {cpu:.0f} CPU s, {size} MB")
        print(f"causes    {dict(compare(tables, causes))}")
        replays = f"{scratch}/all"
        _, cpu = _measured(lambda: replay_history(spark, str(folder), POLICIES).write.parquet(replays))
        print(f"replay    {5 * rebalances / cpu:12,.0f} rebalances and policies/s of a core, {cpu:.0f} CPU s: all five")
        spark.stop()
    for name, rate in alone(min(groups, 100), rebalances_each).items():
        print(f"alone     {rate:12,.0f} rebalances/s of a core: {name}")
    print(f"memory    {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB of this process at most")


def _measured(work: Callable[[], Any]) -> tuple[Any, float]:
    """Call; what it returns, and the CPU seconds that this process, its JVM and their workers took."""
    before = _tree()
    found = work()
    return found, sum(took - before.get(pid, 0.0) for pid, took in _tree().items())


def _tree() -> dict[int, float]:
    """CPU seconds of this process and all below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    tree = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return {pid: cpu_seconds(pid) for pid in tree if pid in parents}


def _mb(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.parquet")) // 1_000_000


if __name__ == "__main__":
    main()
