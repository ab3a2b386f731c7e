"""What a transaction costs a batch, without Spark: `python -m benchmarks transactions`.

A Roster broker in another process, 12 partitions read and 12 written, 10 records of 100 bytes for each. `plain`: the
records with acks=all by an idempotent producer, then the offsets by the group's member. `transaction`: the same records
and offsets as an exactly-once `KafkaSink` commits them. In turn, with 30 ms between two, as batches come.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from roster.client import Admin, GroupMember, OffsetAndMetadata
from roster.model import TopicPartition, parse_addresses
from roster.records.encoding import EncodingWriter
from roster.records.produce import KafkaWriter
from roster.security import PLAINTEXT
from roster.spark.batch import Batch, Owner, Range
from roster.spark.sinks.batch_sink import Source
from roster.spark.sinks.kafka_transactions import TRANSACTION_TIMEOUT_MS, KafkaTransactions
from roster.testing.broker import BrokerProcess

PARTITIONS, RECORDS, PAUSE = 12, 10, 0.03
MOST = 25.0
"""Milliseconds that a transaction may take more than a plain commit, median."""


def rows() -> pa.RecordBatch:
    """Records for each partition."""
    numbers = [number % PARTITIONS for number in range(PARTITIONS * RECORDS)]
    columns = {"value": [b"x" * 100] * len(numbers), "partition": pa.array(numbers, pa.int32())}
    return pa.RecordBatch.from_pydict(columns)


def compare(bootstrap: str, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each plain commit and each transaction."""
    with Admin(bootstrap) as admin:
        for name in ("in", "out"):
            admin.create_topic(name, PARTITIONS)
    writer, records = KafkaWriter(tuple(parse_addresses(bootstrap)), "out"), rows()
    plain: list[float] = []
    transactional: list[float] = []
    transactions = KafkaTransactions.start(Source(bootstrap, "g"), bootstrap, PLAINTEXT, TRANSACTION_TIMEOUT_MS)
    with GroupMember(bootstrap, "g", ["in"]) as member:
        ownership = member.ownership()
        for number in range(rounds):
            owner = Owner("g", ownership.generation, ownership.member_id)
            ranges = {TopicPartition("in", p): Range(number, number + 1) for p in range(PARTITIONS)}
            batch = Batch(number, owner, ranges)

            time.sleep(PAUSE)
            begun = time.perf_counter()
            output = replace(writer).open()
            output.write(records)
            output.close()
            member.commit({p: OffsetAndMetadata(at) for p, at in batch.next_offsets.items()}, ownership)
            plain.append((time.perf_counter() - begun) * 1000)

            time.sleep(PAUSE)
            begun = time.perf_counter()
            staging = EncodingWriter(writer).open()
            staging.write(records)
            transactions.write([staging.close()], writer, batch)
            transactions.commit(batch)
            transactional.append((time.perf_counter() - begun) * 1000)
    transactions.close()
    return plain, transactional


def run(*, quick: bool) -> None:
    """Print both, and the difference of their medians."""
    rounds = 60 if quick else 300
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "data") as broker:
        plain, transactional = compare(broker.bootstrap, rounds)
    for name, times in (("plain", plain), ("transaction", transactional)):
        tenths = statistics.quantiles(times[1:], n=10)
        print(f"{name:12} median {statistics.median(times[1:]):6.1f} ms, 90 % {tenths[-1]:6.1f} ms")
    more = statistics.median(transactional[1:]) - statistics.median(plain[1:])
    print(f"{'difference':12} median {more:6.1f} ms (target: at most {MOST:g})")
