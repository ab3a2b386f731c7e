"""Cold restore: from a changelog partition that `roster broker` has to a store that is not there yet.

    python -m benchmarks restore
    python -m benchmarks.restore [--megabytes 100] [--keys N] [--ordered] [--rounds 3] [--folder DIR]

Fetch, record batches, columns, store, as a task does it, in a process of its own without Spark and without the broker.
Keys have 16 bytes and come in random order, values have 100 bytes, 40 of them random. `keys`: how many there are, by
default as many as records. `megabytes` of keys and values need four times as much disk below DIR. The restored entries
are compared with what was written, by the sum of their CRC-32C. The store is that of an aggregate; with
`--ordered` that of windows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa

from roster.client import Admin
from roster.model import TopicPartition
from roster.model.address import parse_addresses
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import Settings
from roster.records.native import kernel
from roster.records.produce import KafkaWriter
from roster.state import byte_slices
from roster.state.cleaning import store_bytes
from roster.state.file_store import TaskStore
from roster.state.hash_store import HashStore
from roster.stateful.tasks.catch_up import StoreTarget, catch_up
from roster.stateful.tasks.store_location import open_store
from roster.testing.broker import BrokerProcess
from roster.wire.columns.hash_layout import KEY, VALUE

BATCH, ENTRY = 100_000, 116
LOG = TopicPartition("log", 0)


def fill(bootstrap: str, records: int, keys: int) -> int:
    """Write a changelog; return the sum of the CRC-32C of each key's last entry."""
    numbers, values = np.random.default_rng(1), np.random.default_rng(2)
    order = numbers.permutation(records) % keys
    last = np.zeros(keys, np.int64)
    output = KafkaWriter(tuple(parse_addresses(bootstrap)), LOG.topic).open()
    for begin in range(0, records, BATCH):
        places = order[begin : begin + BATCH]
        columns = {
            "key": [b"%016d" % number for number in places.tolist()],
            "value": [values.bytes(40) + bytes(60) for _ in places],
        }
        crc = google_crc32c.value
        last[places] = [crc(key + value) for key, value in zip(columns["key"], columns["value"], strict=True)]
        output.write(pa.RecordBatch.from_pydict(columns))
    output.close()
    return int(last.sum())


def watched() -> list[int]:
    """Return the most MB of this process so far that belong to no file: pages of the store's file are the system's."""
    most = [0]

    def look() -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    most[0] = max(most[0], int(line.split()[1]) // 1024)
            time.sleep(0.05)

    threading.Thread(target=look, daemon=True).start()
    return most


def restore(bootstrap: str, folder: str, records: int, expected: int, *, is_ordered: bool) -> None:
    """Restore once, in this process."""
    addresses = parse_addresses(bootstrap)
    byte_slices.use(kernel())

    def fetch(_: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return read_ranges(addresses, "bench", [(*LOG, start, end)], Settings(is_committed=True))

    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        open_store(Path(place) / "store", is_ordered=is_ordered) as store,
    ):
        most = watched()
        began, wall = time.process_time(), time.monotonic()
        catch_up(store, StoreTarget(LOG, 0, records, {}, None), fetch)
        took, passed, memory = time.process_time() - began, time.monotonic() - wall, most[0]
        size = store_bytes(store.path) >> 20
        print(
            f"{records:>12,} records{took:9.2f} CPU s{passed:9.1f} s{records / took / 1e6:8.2f} M/s of a core"
            f"{memory:7,} MB of memory{size:8,} MB of file, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
        assert sum(google_crc32c.value(key + value) for key, value in entries(store)) == expected, "other entries"


def entries(store: TaskStore) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries; a store without order reads all of them for each scan, so its parts are taken as they lie."""
    if isinstance(store, HashStore):
        with store.snapshot() as snapshot:
            for where in snapshot.live():
                yield from zip(*(snapshot.column(where, part).to_pylist() for part in (KEY, VALUE)), strict=True)
        return
    start = b""
    while some := store.scan(start, limit=BATCH):
        yield from some
        start = some[-1][0] + b"\0"


def main(words: Sequence[str] | None = None) -> None:
    """Write a log, and restore from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    given = parser.parse_args(words)
    records = given.megabytes * 1_000_000 // ENTRY
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
        BrokerProcess(Path(folder) / "broker") as broker,
    ):
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(LOG.topic, 1)
        expected = fill(broker.bootstrap, records, given.keys or records)
        for _ in range(given.rounds):
            work = [broker.bootstrap, folder, str(records), str(expected), str(given.ordered)]
            subprocess.run([sys.executable, "-m", "benchmarks.restore", "--restore", *work], check=True)


def run(*, quick: bool) -> None:
    """Two sizes, whose memory is alike; or a small one."""
    for megabytes in ("20",) if quick else ("100", "1000"):
        main(["--megabytes", megabytes, "--rounds", "1" if quick else "3"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--restore"]:
        restore(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), is_ordered=sys.argv[6] == "True")
    else:
        main()
