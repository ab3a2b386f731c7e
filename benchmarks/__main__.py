"""`python -m benchmarks [--quick] [SECTION ...]`: benchmarks in one go, or some; see README.md beside this file.

Sections are named by --help. What one needs and cannot have (Java, Go, a library) is said in a line that begins with
***, and the rest goes on.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
import traceback
from pathlib import Path

SECTIONS = {
    "history_day": "a synthetic day of groups: recorded, made into tables, replayed",
    "fetch": "records into Arrow against librdkafka and aiokafka",
    "broker": "roster broker under load",
    "group_load": "large groups from outside against Apache Kafka",
    "assignors": "sticky assignors against Java, franz-go, kafka-python and aiokafka",
    "stages": "where the CPU time of stateful operators goes",
    "restore": "a store from its changelog on a broker",
    "aggregates": "totals by key beside Spark and Kafka Streams",
    "backlog": "windows of a backlog by another column, beside Spark and Kafka Streams",
    "fence": "two drivers of one identity, the first frozen meanwhile, beside Structured Streaming",
    "pods": "how long partitions stand still when a pod restarts, comes, goes, dies or freezes",
    "standby": "an owner of state that is killed, with a standby copy and without",
    "connect": "Spark Connect beside a classic session: start, Arrow rows out and back",
    "databases": "rows into PostgreSQL beside Spark's JDBC writer",
    "pipeline": "Spark reading from a group",
    "start": "imports, Spark's session, the first result, a second pipeline",
    "batch_sizes": "sizes of batches on a simulated host that is slow for minutes",
    "latency": "from produce to a reader of committed records, beside Structured Streaming",
    "tables": "how soon records are in a table, and how many files they leave",
    "many": "an application that owns 10,000 partitions",
    "many_members": "a group of 1,000 applications in virtual time",
    "memory": "what pipelines have resident over an hour",
}

BY_NAME = {"fence", "group_load", "history_day", "many", "many_members", "memory", "pods"}
"""Sections that take many minutes: only if they are named."""


def machine() -> str:
    """What this runs on, and how busy it is."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = "/".join(f"{average:.1f}" for average in os.getloadavg())
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}, load {load} (1/5/15 minutes)"


def main() -> int:
    """The number of sections that failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__.splitlines()[0],
        epilog="`python -m benchmarks.SECTION --help` explains a section and its options, where it has some: "
        "`python -m benchmarks.pipeline --records 2000000 --rounds 2` reads 2,000,000 records on both brokers",
    )
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"of: {', '.join(SECTIONS)}; without any, all but {', '.join(sorted(BY_NAME))}",
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"unknown section {min(unknown)!r}; known are {', '.join(SECTIONS)}")
    failed = 0
    begin = time.monotonic()
    for section in options.sections or [name for name in SECTIONS if name not in BY_NAME]:
        print(f"\n== {section}: {SECTIONS[section]}\n{machine()}", flush=True)
        start = time.monotonic()
        try:
            importlib.import_module(f"benchmarks.{section}").run(quick=options.quick)
        except ImportError as missing:
            print(f"*** MISSING: {missing}; {section} is left out", flush=True)
        except Exception:  # one section's trouble is no reason to lose the others
            traceback.print_exc()
            print(f"*** FAILED: {section}", flush=True)
            failed += 1
        print(f"-- {section} took {time.monotonic() - start:.0f} s", flush=True)
    print(f"\nall of it took {time.monotonic() - begin:.0f} s; {machine()}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
