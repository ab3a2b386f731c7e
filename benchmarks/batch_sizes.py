"""How much of the best rate is kept by batch sizes on a simulated host that is 1 to 30 times slower for minutes.

    python -m benchmarks batch_sizes
    python -m benchmarks.batch_sizes [--hosts 20]

A batch takes a fixed time and one for each record, both times the host's slowness and a chance factor (log-normal,
sigma 0.2), for an hour of virtual time. The best rate is that of the best size that never changes: for the worker that
stays the largest, 10,000 records; otherwise the one that takes 10 s on a host that is not slow. No real time is
measured.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence

from roster.pipeline.driver.batch_size import BatchSize
from roster.spark.jobs.small_batches import WorkerLimit

HOUR = 3600.0
WORKER_MOST, TARGET = 10_000, 10.0


def kept(seed: int, fixed: float, rate: float, size: Callable[[], int], done: Callable[[int, float], object]) -> float:
    """Return the share of the best rate that is kept in an hour."""
    chance, now, until, records, best, slow = random.Random(seed), 0.0, 0.0, 0, 0.0, 1
    while now < HOUR:
        if now >= until:
            slow, until = chance.choice([1, 1, 3, 10, 30]), now + chance.uniform(60, 300)
        offsets = size()
        seconds = slow * (fixed + offsets / rate) * chance.lognormvariate(0, 0.2)
        done(offsets, seconds)
        now, records = now + seconds, records + offsets
        constant = WORKER_MOST if isinstance(getattr(done, "__self__", None), WorkerLimit) else rate * (TARGET - fixed)
        best += seconds * constant / (slow * (fixed + constant / rate))
    return records / best


def worker(seed: int, fixed: float, rate: float) -> float:
    limit = WorkerLimit(WORKER_MOST, 2.0)
    return kept(seed, fixed, rate, lambda: limit.offsets, limit.done)


def spark(seed: int, fixed: float, rate: float) -> float:
    size = BatchSize(None, TARGET, 100.0)
    size.done(1000, fixed + 1000 / rate)
    return kept(seed, fixed, rate, lambda: size.limit or 1, size.done)


def run(*, quick: bool = False) -> None:
    main(["--hosts", "3" if quick else "20"])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=20)
    hosts = range(parser.parse_args(words).hosts)
    print(f"{'fixed s':>8}{'records/s':>11}{'worker':>9}{'least':>7}{'Spark':>9}{'least':>7}")
    for fixed in (0.02, 0.3, 1.0, 3.0):
        for rate in (3_000.0, 50_000.0):
            shares = [[each(seed, fixed, rate) for seed in hosts] for each in (worker, spark)]
            figures = "".join(f"{statistics.mean(each):9.0%}{min(each):7.0%}" for each in shares)
            print(f"{fixed:8}{rate:11,.0f}{figures}")


if __name__ == "__main__":
    main()
