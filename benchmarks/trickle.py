"""What a slow topic costs: CPU and latency of an application with default settings, and of an idle one.

    python -m benchmarks trickle
    python -m benchmarks.trickle [--bootstrap HOST:PORT] [--rate 200] [--seconds 60] [--warm 30] [--sink sql|kafka]
                                [--trigger-interval-ms N]

`sql` counts records by `foreach_batch`; `kafka` copies them to another topic, which is done inside the tasks. CPU is
that of the driver, its JVM and its Python workers, as a part of one core, and below in ms of each batch by part.
Latency is at its worst: from the look at the log ends before the last batch, behind which a record may have come, to
the commit of the batch that has it.
Without an address a Roster broker is started.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
import uuid
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.applications import PARTITIONS, Application, Stream
from roster.client import Admin
from roster.testing.broker import BrokerProcess

WARM = 30.0
"""Default of the seconds before the first measurement: the JVM compiles what it runs often."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap")
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=WARM)
    parser.add_argument("--trigger-interval-ms", type=int)
    parser.add_argument("--sink", choices=("sql", "kafka"), default="sql")
    arguments = parser.parse_args(words)
    interval = arguments.trigger_interval_ms
    with contextlib.ExitStack() as stack:
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            bootstrap = stack.enter_context(BrokerProcess(folder / "data")).bootstrap
        topic = f"trickle-{uuid.uuid4().hex[:8]}"
        with contextlib.closing(Admin(bootstrap)) as admin:
            admin.create_topic(topic, PARTITIONS)
            if arguments.sink == "kafka":
                admin.create_topic(f"{topic}-copy", PARTITIONS)
        options: dict[str, int | str] = {} if interval is None else {"trigger_interval_ms": interval}
        if arguments.sink == "kafka":
            options["to"] = f"{topic}-copy"
        application = stack.enter_context(Application(bootstrap, topic, topic, **options))
        with Stream(bootstrap, topic, arguments.rate):
            while not application.batches:
                time.sleep(0.1)
            time.sleep(arguments.warm)
            begin, spent, before = time.time(), application.cpu(), application.cpu_by_part()
            time.sleep(arguments.seconds)
            parts = {part: cpu - before[part] for part, cpu in application.cpu_by_part().items()}
            share = (application.cpu() - spent) / (time.time() - begin)
            batches = [batch for batch in application.batches if batch.at > begin]
        print(f"{'':<24}{'% of a core':>12}{'batches/s':>12}{'ms of CPU':>12}{'latency ms':>12}{'worst':>8}")
        waits = sorted(1000 * (after.at - before.planned) for before, after in pairwise(batches))
        per_second = len(batches) / arguments.seconds
        print(
            f"{f'{arguments.rate} records/s':<24}{100 * share:>12.1f}{per_second:>12.2f}"
            f"{1000 * share / per_second:>12.0f}"
            f"{statistics.median(waits):>12.0f}{waits[-1]:>8.0f}",
            flush=True,
        )
        each = ", ".join(f"{part} {1000 * cpu / len(batches):.0f}" for part, cpu in parts.items())
        print(f"  ms of CPU: {each}")
        time.sleep(5)
        begin, spent = time.time(), application.cpu()
        time.sleep(arguments.seconds / 2)
        share = (application.cpu() - spent) / (time.time() - begin)
        print(f"{'idle':<24}{100 * share:>12.1f}", flush=True)


def run(*, quick: bool) -> None:
    """With the default times, or a third of them."""
    main(["--seconds", "20"] if quick else [])


if __name__ == "__main__":
    main()
