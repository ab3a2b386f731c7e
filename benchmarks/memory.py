"""Memory of pipelines over a long time: what is resident by process, how it grows, and what their stores take.

    python -m benchmarks memory
    python -m benchmarks.memory [--minutes 60] [--warm 15] [--rate 200] [--trigger 1000] [--case totals ...]

The cases are those of `benchmarks.latency`, each an application of its own on one topic of `roster broker`: a copy by a
function, totals with state, a StatefulProcessor in rows; 10,000 keys. A process counts its own pages and its part of
shared ones (PSS), which depends on what else runs; `anonymous` are those of no file. Growth is the slope of a line
through the anonymous memory of each minute after the warm-up. The broker's log grows with the records, by design.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks.applications import Application, tree
from roster.client import Admin
from roster.testing.broker import BrokerProcess

CASES = ("function", "totals", "processor")
TOPIC, PARTITIONS = "memory", 4


class Resident(NamedTuple):
    """MB of a part: all, and those of no file."""

    all: float = 0.0
    anonymous: float = 0.0


def resident(pid: int) -> Resident:
    """A process's share of the memory; none if it is gone."""
    with contextlib.suppress(OSError, KeyError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        lines = dict(line.split(":", 1) for line in text.splitlines()[1:])
        return Resident(*(int(lines[name].split()[0]) / 1024 for name in ("Pss", "Pss_Anon")))
    return Resident()


def by_part(application: Application) -> dict[str, Resident]:
    """Memory of the driver's Python, its JVM, and the Python workers together."""
    found = defaultdict[str, list[Resident]](list)
    for pid in tree(application.process.pid):
        with contextlib.suppress(OSError):
            is_java = "java" in Path(f"/proc/{pid}/comm").read_text()
            part = "driver" if pid == application.process.pid else "JVM" if is_java else "workers"
            found[part].append(resident(pid))
    return {part: Resident(*map(sum, zip(*each, strict=True))) for part, each in found.items()}


def size_on_disk(folder: Path) -> float:
    """MB that the files below a folder take."""
    return sum(path.stat().st_blocks for path in folder.rglob("*") if path.is_file()) * 512 / 2**20


def main(words: Sequence[str] | None = None) -> None:
    from benchmarks.latency import TimedStream  # noqa: PLC0415 - `peaks` needs none of it

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--warm", type=int, default=15)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--trigger", type=int, default=1000, help="trigger_interval_ms of the pipelines")
    parser.add_argument("--case", action="append", choices=CASES)
    given = parser.parse_args(words)
    samples = defaultdict[str, list[tuple[float, Resident]]](list)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        broker = stack.enter_context(BrokerProcess(folder / "broker"))
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
            admin.create_topic(f"{TOPIC}-out", PARTITIONS)
        applications = {}
        for case in given.case or CASES:
            options = {"engine": "roster", "case": case, "trigger": given.trigger, "state": str(folder / case)}
            started = Application(broker.bootstrap, f"{TOPIC}-{case}", TOPIC, module="benchmarks.latency", **options)
            applications[case] = stack.enter_context(started)
        stack.enter_context(TimedStream(broker.bootstrap, TOPIC, given.rate))
        begin, spent = time.monotonic(), dict.fromkeys(applications, 0.0)
        for minute in range(1, given.minutes + 1):
            time.sleep(max(0.0, begin + 60 * minute - time.monotonic()))
            now = {"broker": resident(broker.pid)}
            for case, application in applications.items():
                if application.process.poll() is not None:
                    raise RuntimeError(f"{case}: the application has ended")
                now |= {f"{case}: {part}": each for part, each in by_part(application).items()}
                now[f"{case}: store"] = Resident(*[size_on_disk(folder / case)] * 2)
                if minute == given.warm:
                    spent[case] = application.cpu()
            for part, each in now.items():
                samples[part].append((minute, each))
            figures = ", ".join(f"{part} {each.all:.1f} ({each.anonymous:.1f})" for part, each in now.items())
            print(f"minute {minute}, load {os.getloadavg()[0]:.0f}: {figures}", flush=True)
        seconds = 60 * (given.minutes - given.warm)
        shares = {case: (each.cpu() - spent[case]) / seconds for case, each in applications.items()}
        log = size_on_disk(folder / "broker")
    print(f"\n{'MB':<24}{'warm':>10}{'end':>10}{'most':>10}{'anonymous':>12}{'an hour':>10}")
    for part, each in samples.items():
        print(_line(part, [(at, size) for at, size in each if at >= given.warm]))
    print(f"the broker's log: {log:.0f} MB; CPU of a core: " + ", ".join(f"{c} {s:.0%}" for c, s in shares.items()))


def _line(part: str, samples: Sequence[tuple[float, Resident]]) -> str:
    sizes = [size.all for _, size in samples]
    slope = np.polyfit([at for at, _ in samples], [size.anonymous for _, size in samples], 1)[0] * 60
    last = samples[-1][1]
    return f"{part:<24}{sizes[0]:>10.1f}{last.all:>10.1f}{max(sizes):>10.1f}{last.anonymous:>12.1f}{slope:>+10.1f}"


def peaks() -> str:
    """Return the peaks in MB of the driver, its JVM and the largest Python worker: of this process and those below."""
    found = defaultdict[str, int](int)
    for pid in tree(os.getpid()):
        with contextlib.suppress(OSError, KeyError):
            text = Path(f"/proc/{pid}/status").read_text()
            lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            what = "driver" if pid == os.getpid() else "JVM" if lines["Name"].strip() == "java" else "worker"
            found[what] = max(found[what], int(lines["VmHWM"].split()[0]) // 1024)
    return ", ".join(f"{what} {found[what]} MB" for what in ("driver", "JVM", "worker"))


def run(*, quick: bool) -> None:
    """For an hour, or a few minutes."""
    main(["--minutes", "5", "--warm", "2"] if quick else [])


if __name__ == "__main__":
    main()
