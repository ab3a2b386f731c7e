"""Stores of state: `python -m benchmarks state`. A turn of 20,000 of a million keys, a restore, an aggregate.

One process, one core, no fsync, as a task runs it; CPU time. A turn opens the store, reads, commits and closes it. Keys
have 16 bytes and come in random order, values have 100 bytes, 40 of them random. The section
`restore` restores from a broker.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from roster.records.native import kernel
from roster.state import Position, checksums
from roster.state.aggregate import aggregate
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.changelog import restore
from roster.state.lmdb_store import LmdbStore
from roster.state.sessions import SessionAggregation
from roster.state.windows import Window

BATCH = 100_000


def timed(rounds: int, work: Callable[[], object]) -> str:
    """Best and median of the rounds, CPU time in ms."""
    took = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        took.append(1000 * (time.process_time() - begin))
    return f"{min(took):9.2f} {statistics.median(took):9.2f}"


def changelog(entries: int) -> Iterator[pa.Table]:
    """Entries of as many keys, in random order."""
    order = np.random.default_rng(1).permutation(entries)
    value = np.random.default_rng(2)
    for begin in range(0, entries, BATCH):
        numbers = order[begin : begin + BATCH]
        keys = [b"%016d" % number for number in numbers.tolist()]
        values = [value.bytes(40) + bytes(60) for _ in keys]
        yield pa.table({"offset": np.arange(begin, begin + len(keys)), "key": keys, "value": values})


def run(*, quick: bool) -> None:
    """Print the table."""
    checksums.use(kernel())
    entries, rounds = (200_000, 3) if quick else (1_000_000, 9)
    chance = random.Random(3)
    batches = list(changelog(entries))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with LmdbStore(path) as store:
            begin = time.process_time()
            restore(store, batches, entries)
            took = time.process_time() - begin
        size = (path / "data" / "data.mdb").stat().st_size / 1e6
        print(
            f"restore of {entries:,} entries: {took:.2f} s, {entries / took / 1000:.0f}k entries/s, file {size:.0f} MB"
        )
        print(f"{'':44}{'best ms':>10}{'median':>10}")

        def opened() -> None:
            with LmdbStore(path) as store:
                store.multi_get([b"%016d" % chance.randrange(entries)])

        def queried() -> None:
            with LmdbStore(path, read_only=True) as store:
                store.multi_get([b"%016d" % chance.randrange(entries)])

        def turn() -> None:
            keys = [b"%016d" % number for number in chance.sample(range(entries), 20_000)]
            with LmdbStore(path) as store:
                store.multi_get(keys)
                store.commit(keys, [chance.randbytes(40) + bytes(60) for _ in keys], Position(entries))

        print(f"{'open for writing, get one key, close':44}{timed(rounds, opened)}")
        print(f"{'open for reading, get one key, close':44}{timed(rounds, queried)}")
        print(f"{'turn of 20,000 random keys':44}{timed(rounds, turn)}")
        columns(Path(folder) / "aggregate", entries, rounds)


def columns(path: Path, keys: int, rounds: int) -> None:
    """An aggregate's turn of 100,000 rows of 20,000 keys, of all the keys in the store."""
    totals = {
        "n": Aggregate(Kind.COUNT, "value"),
        "sum": Aggregate(Kind.SUM, "value"),
        "max": Aggregate(Kind.MAX, "value"),
    }
    numbers = np.random.default_rng(4)

    def rows(of: np.ndarray) -> pa.Table:
        return pa.table({"key": [b"%016d" % each for each in of.tolist()], "value": numbers.random(len(of))})

    with LmdbStore(path) as store:
        for begin in range(0, keys, BATCH):
            update = aggregate(rows(np.arange(begin, min(keys, begin + BATCH))), store, ["key"], totals)
            store.commit(update.changes["key"].to_pylist(), update.changes["value"].to_pylist(), Position())
        tables = [rows(numbers.choice(numbers.choice(keys, 20_000), BATCH)) for _ in range(rounds)]

        def turn() -> None:
            update = aggregate(tables.pop(), store, ["key"], totals)
            store.commit(update.changes["key"].to_pylist(), update.changes["value"].to_pylist(), Position())

        print(f"{'count, sum, max of 100,000 rows, 20,000 keys':44}{figures(timed(rounds, turn))}")
    sessions(path.with_name("sessions"), rounds)
    parsed(rounds)


def sessions(path: Path, rounds: int) -> None:
    """Session windows' turn of 100,000 rows of 20,000 keys: each key has a session, which goes on or is closed."""
    numbers = np.random.default_rng(6)
    operator = SessionAggregation(
        ("key",),
        {"n": Aggregate(Kind.COUNT, "value"), "sum": Aggregate(Kind.SUM, "value")},
        Window.session("at", timedelta(seconds=30)),
        final=True,
    )

    def rows(turn: int) -> pa.Table:
        keys = [b"%016d" % each for each in numbers.choice(20_000, BATCH).tolist()]
        at = np.sort(numbers.integers(0, 10_000_000, BATCH)) + turn * 10_000_000
        times = pa.array(at, pa.int64()).cast(pa.timestamp("us", "UTC"))
        return pa.table({"key": keys, "value": numbers.random(BATCH), "at": times})

    with LmdbStore(path) as store:
        tables = [rows(turn) for turn in range(rounds + 2)]

        def turn() -> None:
            update = operator(tables.pop(0), store)
            store.commit(update.changes["key"].to_pylist(), update.changes["value"].to_pylist(), Position())

        turn()
        print(f"{'sessions of 100,000 rows, 20,000 keys':44}{figures(timed(rounds, turn))}")


def parsed(rounds: int) -> None:
    """JSON objects of three fields into columns, of which one in a thousand is malformed in the second row."""
    from roster.spark.tasks.json_values import JsonReader  # noqa: PLC0415 - needs Spark's extra

    reader = JsonReader(pa.schema([("key", pa.string()), ("value", pa.float64()), ("at", pa.timestamp("us", "UTC"))]))
    plain = [b'{"key": "%016d", "value": %d.5, "at": "2026-01-01T00:00:00Z"}' % (n, n) for n in range(BATCH)]
    odd = [b"broken" if n % 1000 == 0 else text for n, text in enumerate(plain)]
    for name, texts in (("JSON of 100,000 rows into columns", plain), ("of which 100 are malformed", odd)):
        values = pa.array(texts, pa.binary())
        print(f"{name:44}{figures(timed(rounds, lambda values=values: reader.read(values)))}")  # type: ignore[misc]


def figures(took: str) -> str:
    """Times with the rows a second of the best."""
    return f"{took}   {BATCH / float(took.split(maxsplit=1)[0]):.0f}k rows/s at best"
