"""Commits thinned in any cuts of the log: what is made of them is what is made of all commits."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.history.derived import EVENTS, GroupHistory
from roster.history.folder import RECORDS
from roster.history.tables import COMMITS, GROUPS
from roster.history.thinned import PACKED, packed_events, topics_read, unpacked
from roster.model import TopicPartition
from roster.records.native import OFFSETS, compiled
from tests.examples_tried import examples
from tests.history.made_up import events, happening

START = 1_790_000_040_000
TPS = [TopicPartition(topic, number) for topic in ("t0", "t1") for number in range(3)]


def a_life(seed: int) -> pa.Table:
    """A group with few rebalances, commits of very different pace, some that move nothing, and ends each minute."""
    chance = random.Random(seed)
    group = happening(seed, 3, "cooperative-sticky")
    group.records = [(START + chance.randrange(1_800_000), value) for _, value in group.records]
    group.records.sort()
    commits = {}
    for tp in TPS:
        pace, at, offset, line = chance.choice([2, 9, 40, 200]), START, 0, []
        while at < START + 1_800_000:
            line.append((at, offset))
            at += chance.randint(1, 2000 * pace)
            offset += chance.choice([0, 0, 3, 50]) * pace
        commits[tp] = line
    ends = {tp: [(START + i * 60_000, 1500 * i * (1 + i % 3)) for i in range(31)] for tp in TPS}
    return events(group, f"g{seed}", commits, ends)


def tables_of(rows: pa.Table) -> list[str]:
    history = GroupHistory(rows)
    return sorted(f"{name} {row!r}" for name, table in history.tables() for row in table.to_pylist())


def written(folder: Path, rows: pa.Table, cuts: list[int]) -> list[str]:
    """Write rows in the order of the log in files that end at the cuts, as a recorder does."""
    files = []
    for table in (COMMITS, GROUPS):
        those = rows.filter(pc.equal(rows["table"], table)).sort_by("log_offset").drop_columns(["table"])
        place = folder / RECORDS / f"table={table}"
        place.mkdir(parents=True)
        bounds = sorted({0, len(those), *(cut % (len(those) + 1) for cut in cuts)})
        for begin, end in pairwise(bounds):
            files.append(str(place / f"{begin}.parquet"))
            pq.write_table(those.slice(begin, end - begin), files[-1])
    return files


@example(261, [1565], 1)
@given(st.integers(0, 1000), st.lists(st.integers(0, 5000), max_size=6), st.integers(1, 4))
@settings(max_examples=examples(15), deadline=None)
def test_tables_of_thinned_commits_are_those_of_all(seed: int, cuts: list[int], shares: int) -> None:
    with TemporaryDirectory() as folder:
        check(Path(folder), seed, cuts, shares)


def check(folder: Path, seed: int, cuts: list[int], shares: int) -> None:
    both = [a_life(seed), a_life(seed + 1)]
    rows = pa.concat_tables(both)
    of_groups = rows.filter(pc.equal(rows["table"], GROUPS))
    files = written(folder, rows, cuts)
    tasks = [files[number::shares] for number in range(shares)]
    packed = [
        batch
        for task in tasks
        if task
        for batch in packed_events(compiled(OFFSETS), of_groups.select(["group", "at"]), task)
    ]
    found = pa.Table.from_batches(packed, PACKED)
    kept = 0
    thinned_of = {each["group"][0].as_py(): each for each in unpacked(found)}
    for life in both:
        thinned = thinned_of.pop(life["group"][0].as_py())
        assert thinned.schema == EVENTS
        kept += len(thinned)
        ends = life.filter(pc.equal(life["table"], "ends"))
        assert tables_of(pa.concat_tables([thinned, ends])) == tables_of(life)
    assert not thinned_of
    assert kept < len(rows)
    commits = [file for file in files if COMMITS in file]
    pairs = {(row["group"], row["topic"]) for batch in topics_read(commits) for row in batch.to_pylist()}
    assert pairs == {(life["group"][0].as_py(), topic) for life in both for topic in ("t0", "t1")}


def test_few_commits_of_a_steady_group_stay(tmp_path: Path) -> None:
    commits = {tp: [(START + i * 1000, 10 * i) for i in range(3600)] for tp in TPS}
    group = happening(1, 1, "range")
    group.records = [(START + 1_800_000, value) for _, value in group.records[:1]]
    files = written(tmp_path, events(group, "g", commits, {}), [5000])
    rebalances = pa.table({"group": ["g"], "at": pa.array([START + 1_800_000]).cast(pa.timestamp("ms", "UTC"))})
    (found,) = unpacked(
        pa.Table.from_batches(packed_events(compiled(OFFSETS), rebalances.cast(EVENTS_AT), files), PACKED)
    )
    numbers = found.filter(pc.equal(found["table"], COMMITS))
    for tp in TPS:
        mine = numbers.filter(pc.and_(pc.equal(numbers["topic"], tp.topic), pc.equal(numbers["partition"], tp[1])))
        # Three whole minutes, two commits of each other one; each file begins with two and ends somewhere.
        assert 3 * 60 + 57 * 2 <= len(mine) <= 3 * 60 + 57 * 2 + 6
        seconds = np.sort(mine["at"].cast(pa.int64()).to_numpy()) // 1_000_000 - START // 1000
        assert set(range(29 * 60, 32 * 60)) <= set(seconds.tolist())


EVENTS_AT = pa.schema([EVENTS.field("group"), EVENTS.field("at")])
