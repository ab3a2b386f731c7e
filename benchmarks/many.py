"""One application that owns very many partitions: what it costs at rest, and a batch with a record in each of them.

    python -m benchmarks many
    python -m benchmarks.many [--partitions 10000] [--broker roster|apache|HOST:PORT] [--seconds 30] [--batches 3]

The application counts records by `foreach_batch`, with default settings, in a process of its own. At rest: CPU of the
driver, its JVM and its Python workers as a part of one core, after the last batch. A batch: seconds from planning to
commit, added up where several cover all partitions, and from the first record's `produce` to the last commit; CPU from
`produce` to the last commit of the application and of the broker; medians. The same with an application that stands
still (SIGSTOP) until all records are there: from its going on, as a batch of all. Memory is what is resident of the
whole process tree.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from confluent_kafka import Producer

from benchmarks.applications import VALUE, Application, cpu_of, tree
from benchmarks.pipeline import broker
from roster.client import Admin
from tests.waiting import until

PATIENCE = 300.0
FILES = {"apache": 3}
"""Files that a broker keeps open for each partition, where it cannot do with fewer."""
AT_ONCE = 5_000
"""Partitions that one request makes; brokers refuse more than 9,999."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--broker", default="roster")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batches", type=int, default=3)
    arguments = parser.parse_args(words)
    allow_files(FILES.get(arguments.broker, 0) * arguments.partitions)
    with TemporaryDirectory() as folder, broker(arguments.broker, Path(folder)) as (bootstrap, pid):
        measure(bootstrap, pid, arguments.partitions, arguments.batches, arguments.seconds)


def allow_files(least: int) -> None:
    """Let this process and those it starts open as many files as the system allows; say so if that is too few."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < least:
        print(f"*** {least:,} files have to be open, ulimit -Hn allows {most:,}: the broker may fail", flush=True)


def measure(bootstrap: str, pid: int | None, partitions: int, batches: int, seconds: float) -> None:
    """Print a line for each figure. pid: of the broker, if it is on this machine."""

    def cpu() -> np.ndarray:
        return np.array([application.cpu(), 0.0 if pid is None else cpu_of(pid)])

    def rounds(*, held: bool) -> np.ndarray:
        """Medians of seconds in batches, from the beginning to the last commit, and of CPU."""
        figures = []
        for _ in range(batches):
            seen, began, before = len(application.batches), time.time(), cpu()
            if held:
                application.process.send_signal(signal.SIGSTOP)
            send(producer, topic, partitions)
            if held:
                began, before = time.time(), cpu()
                application.process.send_signal(signal.SIGCONT)
            until(lambda seen=seen: covered(application, seen) == partitions, PATIENCE)
            mine = application.batches[seen:]
            figures.append(
                [sum(each.at - max(each.planned, began) for each in mine), mine[-1].at - began, *(cpu() - before)]
            )
            print(f"  {len(mine)} batches: {', '.join(f'{b.at - b.planned:.2f} s, {len(b.partitions)}' for b in mine)}")
        return np.median(figures, axis=0)

    topic = f"many-{uuid.uuid4().hex[:8]}"
    begin = time.monotonic()
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, min(partitions, AT_ONCE))
        for upto in range(2 * AT_ONCE, partitions + AT_ONCE, AT_ONCE):
            admin.create_partitions(topic, min(upto, partitions))
    print(f"{partitions:,} partitions made in {time.monotonic() - begin:.1f} s", flush=True)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    with Application(bootstrap, topic, topic) as application:
        warm(application, producer, topic, partitions)
        results = {held: rounds(held=held) for held in (False, True)}
        time.sleep(5)
        at, spent, parts = time.time(), cpu(), application.cpu_by_part()
        time.sleep(seconds)
        share, of_broker = 100 * (cpu() - spent) / (time.time() - at)
        each = {part: spent - parts[part] for part, spent in application.cpu_by_part().items()}
        text = ", ".join(f"{part} {100 * spent / seconds:.1f}" for part, spent in each.items())
        print(f"at rest {share:.1f} % of a core ({text}), the broker {of_broker:.1f} %")
        for held, (took, whole, own, of_broker) in results.items():
            name = "all there" if held else "as they come"
            print(f"{name}: {took:.2f} s in batches, {whole:.2f} s in all; CPU {own:.2f} s, broker {of_broker:.2f} s")
        print(f"load {os.getloadavg()[0]:.1f}")
        print(f"resident: {sum(map(resident, tree(application.process.pid))) / 1e6:.0f} MB", flush=True)


def warm(application: Application, producer: Producer, topic: str, partitions: int) -> None:
    """Send until a batch has records of all partitions, so that the group is stable and the JVM has run the code."""
    begin = time.monotonic()
    until(application.up.is_set, PATIENCE)
    send(producer, topic, partitions)
    until(lambda: covered(application, 0) == partitions, PATIENCE)
    print(f"first records of all partitions {time.monotonic() - begin:.1f} s after its start", flush=True)


def covered(application: Application, since: int) -> int:
    """How many partitions batches have had records of."""
    return len(set().union(*(batch.partitions for batch in application.batches[since:])))


def send(producer: Producer, topic: str, partitions: int) -> None:
    """One record to each partition."""
    for partition in range(partitions):
        producer.produce(topic, VALUE, partition=partition)
        if partition % 1000 == 0:
            producer.poll(0)
    if left := producer.flush(PATIENCE):
        raise SystemExit(f"the broker did not take {left:,} of {partitions:,} records within {PATIENCE:.0f} s")


def resident(pid: int) -> int:
    """Bytes of memory that a process has resident; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return 0


def run(*, quick: bool) -> None:
    """With all partitions, or a tenth."""
    main(["--partitions", "1000", "--seconds", "10"] if quick else [])


if __name__ == "__main__":
    main()
