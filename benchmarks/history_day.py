"""A synthetic day of groups: its records decoded and stored as a recorder does, made into tables, and replayed.

Each group of twelve partitions has random rebalances, and commits every few seconds. What the tables say caused each
rebalance is compared with what was done to the group.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
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
_AT_ONCE, _MOMENTS = 100, 400
"""Groups whose records are decoded at once, and how often each of them commits meanwhile."""
_LIVES = 500
"""Groups whose lives are made up; the others have one of these at other times."""


def topics_of(number: int) -> dict[str, int]:
    """A group's topics and their partitions; all names have the same length."""
    return {f"topic-{number:06}": 8, f"other-{number:06}": 4}


@cache
def life(number: int, rebalances: int) -> Group:
    """What happens to a group."""
    return happening(number, rebalances, "cooperative-sticky", topics=topics_of(number))


def day_of(number: int, rebalances: int) -> Group:
    """A group's day, with its rebalances spread over it: the life of another one with topics of its own."""
    like = life(number % _LIVES, rebalances)
    chance, names = random.Random(number), list(zip(topics_of(number % _LIVES), topics_of(number), strict=True))
    times = sorted(chance.randrange(DAY_MS) for _ in like.records)
    values = [value or b"" for _, value in like.records]
    for old, new in names:
        values = [value.replace(old.encode(), new.encode()) for value in values]
    return replace(like, records=[(START + at, value) for at, value in zip(times, values, strict=True)])


def records(numbers: range, rebalances: int, commit_ms: int, causes: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the records of some groups; `causes` gets what was done to each."""
    keys: list[bytes] = []
    for number in numbers:
        group, name = day_of(number, rebalances), f"team{number % 20}.group-{number}"
        causes[name] = group.done
        at, values = zip(*group.records, strict=True)
        yield _batch(pa.array([encode_key(GroupMetadataKey(group=name))] * len(at)), pa.array(values), np.array(at))
        keys += [
            encode_key(OffsetCommitKey(group=name, topic=topic, partition=n))
            for topic, size in topics_of(number).items()
            for n in range(size)
        ]
    moments, chance = np.arange(0, DAY_MS, commit_ms), np.random.default_rng(numbers.start)
    every = pa.array(keys, pa.binary()).take(pa.array(np.tile(np.arange(len(keys)), _MOMENTS)))
    made = np.zeros(len(every), _VALUE)
    made["v"], made["epoch"] = 3, 1
    ends = pa.py_buffer(np.arange(len(every) + 1, dtype=np.int32) * _VALUE.itemsize)
    for begin in range(0, len(moments), _MOMENTS):
        moment = np.repeat(moments[begin : begin + _MOMENTS], len(keys))
        now = made[: len(moment)]
        now["offset"], now["at"] = 300 + moment // 10 - chance.integers(0, 300, len(moment)), START + moment
        values = pa.Array.from_buffers(pa.binary(), len(moment), [None, ends, pa.py_buffer(now)])
        yield _batch(every[: len(moment)], values, START + moment, begin * len(keys))


def _batch(keys: pa.Array, values: pa.Array, at: Any, offset: int = 0) -> pa.RecordBatch:
    count = len(at)
    return pa.RecordBatch.from_pydict(
        {
            "key": keys,
            "value": values,
            "partition": pa.array(np.zeros(count, np.int32)),
            "offset": pa.array(offset + np.arange(count)),
            "timestamp": pa.array(at).cast(pa.timestamp("ms", "UTC")),
        }
    )


def record(folder: Path, groups: int, rebalances: int, commit_ms: int) -> tuple[dict[str, Any], int, float]:
    """Decode and store the records of all groups and the ends of each minute, in two processes as on two cores.

    Returns what was done, records, and CPU seconds of decoding and storing.
    """
    causes: dict[str, Any] = {}
    count, took = 0, 0.0
    shares = [range(begin, min(begin + _AT_ONCE, groups)) for begin in range(0, groups, _AT_ONCE)]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        work = partial(record_share, folder, rebalances=rebalances, commit_ms=commit_ms)
        for done, records_, seconds in processes.map(work, shares):
            causes |= done
            count, took = count + records_, took + seconds
    return causes, count, took


def record_share(folder: Path, numbers: range, rebalances: int, commit_ms: int) -> tuple[dict[str, Any], int, float]:
    """Record some groups: what was done, records, CPU seconds."""
    loops, count, took = native.kernel(None, native.OFFSETS), 0, 0.0
    causes: dict[str, Any] = {}
    begin, minutes = numbers.start, START + np.arange(0, DAY_MS + 1, 60_000)
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
    tps = [(topic, p) for n in numbers for topic, size in topics_of(n).items() for p in range(size)]
    topics, partitions = zip(*tps, strict=True)
    at, of = np.tile(minutes, len(tps)), np.repeat(np.arange(len(tps)), len(minutes))
    columns = {
        "topic": pa.array(topics, pa.string()).take(pa.array(of)),
        "partition": pa.array(np.repeat(partitions, len(minutes)), pa.int32()),
        "begin": pa.array(np.zeros(len(at), np.int64)),
        "end": pa.array((at - START) // 10 + 300),
        "at": pa.array(at).cast(pa.timestamp("ms", "UTC")).cast(ENDS_SCHEMA.field("at").type),
        "topic_id": pa.nulls(len(at), pa.binary()),
    }
    HistoryFolder(folder).put("ends", START, pa.table(columns), f"-{begin}")
    return causes, count, took


def larger(number: int, rebalances: int) -> Group:
    """A group of about 15 members and 100 partitions, as in most fleets: all read the same topics."""
    chance = random.Random(number)
    sizes = [chance.choice((6, 12, 12, 24, 48, 96)) for _ in range(chance.choice((1, 1, 2, 3)))]
    group = Group(chance, topics={f"topic-{number}-{n}": size for n, size in enumerate(sizes)})
    for _ in range(chance.randint(2, 24)):
        group.join()
    group.rebalance(set())
    while len(group.records) < rebalances:
        things = [group.join, group.leave if len(group.members) > 2 else group.join, group.restart, group.grow, set]
        group.rebalance(chance.choices(things, (35, 35, 22, 4, 4))[0]() if not group.withheld else set())
    return group


def alone(groups: int, rebalances: int, make: Callable[[int, int], Group]) -> dict[str, float]:
    """Rebalances a second of one core, without Spark and lag: reading the history, and replaying it by each policy."""
    rows = [events(make(number, rebalances)) for number in range(groups)]
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
    rows = tables["rebalances"].select("group", "ended_at", "causes").toArrow().to_pylist()
    for row in sorted(rows, key=lambda each: (each["group"], each["ended_at"])):
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
        began = time.monotonic()
        causes, count, took = record(folder, groups, rebalances_each, 1000 * commit_seconds)
        rebalances = groups * rebalances_each
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"          {time.monotonic() - began:.0f} s, {spent.ru_utime + spent.ru_stime:.0f} CPU s with making them"
        )
        print(f"recorded  {count:12,} records, {count / took / 1e6:.2f} M/s of a core, {_mb(folder / RECORDS)} MB")
        print(f"          {_mb(folder / 'ends')} MB of ends")
        spark = session("history-day", master="local[2]", spark_driver_memory="2g")
        spark.range(1).count()
        tables, cpu = _measured(lambda: history_tables(spark, str(folder), f"{scratch}/tables"))
        size = _mb(Path(scratch) / "tables")
        print(f"tables    {rebalances / cpu:12,.0f} rebalances/s of a core, {cpu:.0f} CPU s, {size} MB")
        print(f"causes    {dict(compare(tables, causes))}")
        replays = f"{scratch}/all"
        _, cpu = _measured(lambda: replay_history(spark, str(folder), POLICIES).write.parquet(replays))
        print(f"replay    {5 * rebalances / cpu:12,.0f} rebalances and policies/s of a core, {cpu:.0f} CPU s: all five")
        memory = _peaks()
        spark.stop()
    for what, make in (("12 partitions", day_of), ("15 members, 100 partitions", larger)):
        for name, rate in alone(min(groups, 100), rebalances_each, make).items():
            print(f"alone     {rate:12,.0f} rebalances/s of a core: {name}, groups of {what}")
    print(f"memory    {memory}")


def _measured(work: Callable[[], Any]) -> tuple[Any, float]:
    """Call; what it returns, and the CPU seconds that this process, its JVM and their workers took."""
    before, began = _tree(), time.monotonic()
    found = work()
    print(f"          {time.monotonic() - began:.0f} s")
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


def _peaks() -> str:
    """The most memory that this process, its JVM and the largest worker had, and the most of a recording process."""
    peaks: dict[str, list[int]] = {"driver": [], "JVM": [], "largest worker": []}
    for pid in _tree():
        with contextlib.suppress(OSError, KeyError):  # one that has ended has no memory
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            kind = "driver" if pid == os.getpid() else "JVM" if status["Name"].strip() == "java" else "largest worker"
            peaks[kind].append(int(status["VmHWM"].split()[0]) // 1024)
    recorder = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    found = {name: max(each, default=0) for name, each in peaks.items()} | {"recorder": recorder}
    return ", ".join(f"{name} {mb} MB" for name, mb in found.items())


def _mb(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.parquet")) // 1_000_000


if __name__ == "__main__":
    main()
