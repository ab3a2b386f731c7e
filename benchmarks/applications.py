"""What several benchmarks share: a steady stream, and applications in processes of their own.

    python -m benchmarks.applications BOOTSTRAP GROUP TOPIC [--heartbeat-interval-ms N] …

runs one application: a pipeline with default settings that counts records in SQL, or with `--to TOPIC` copies them to
another topic inside its tasks. It prints a JSON object a line:
{"up": …} when Spark is up, {"ranges": …} when a batch has been committed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from confluent_kafka import Producer
from typing_extensions import override

if TYPE_CHECKING:
    from roster.spark import Batch, Progress

PARTITIONS = 12
VALUE = b"x" * 100
OPTIONS = ("session_timeout_ms", "trigger_interval_ms")
"""Options of a pipeline that an application takes on its command line, all whole numbers."""


class Beside:
    """Work in a thread of its own until it is left: `_run` goes on until `_ended` is set."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class Stream(Beside):
    """A producer that spreads `rate` records a second over the partitions of a topic, ten times a second."""

    def __init__(self, bootstrap: str, topic: str, rate: int, linger_ms: int = 5) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": linger_ms})
        self._topic, self._rate = topic, rate

    @override
    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._producer.flush(10)

    @override
    def _run(self) -> None:
        begin, sent = time.monotonic(), 0
        while not self._ended.wait(0.1):
            due = int((time.monotonic() - begin) * self._rate)
            for number in range(sent, due):
                self._producer.produce(self._topic, VALUE, partition=number % PARTITIONS)
            self._producer.poll(0)
            sent = due


class Committed(NamedTuple):
    """A committed batch: when (seconds since the epoch), when its ranges were planned, and its partitions."""

    at: float
    planned: float
    partitions: set[int]


class Application:
    """One application in a process of its own; `batches` fills while it runs."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, *, module: str = "benchmarks.applications", **options: int | str
    ) -> None:
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, bootstrap, group, topic, *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.batches: list[Committed] = []
        self.said: list[dict[str, Any]] = []
        """What it printed that is no batch."""
        self._seen: dict[int, float] = {}
        self.up = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                said = json.loads(line)
                if "ranges" in said:
                    self.batches.append(Committed(said["at"], said["planned"], {int(p) for p in said["ranges"]}))
                else:
                    self.said.append(said)
                self.up.set()

    def cpu(self) -> float:
        """Seconds of CPU of the process, its JVM and its Python workers, those included that have ended since."""
        self._seen.update({pid: cpu_of(pid) for pid in tree(self.process.pid)})
        return sum(self._seen.values())

    def cpu_by_part(self) -> dict[str, float]:
        """Seconds of CPU of the driver's Python, its JVM, of that Java's compilers, and the Python workers."""
        parts = {"driver": cpu_of(self.process.pid), "JVM": 0.0, "compilers": 0.0}
        for pid in tree(self.process.pid)[1:]:
            with contextlib.suppress(OSError):
                if "java" not in Path(f"/proc/{pid}/comm").read_text():
                    continue
                parts["JVM"] += cpu_of(pid)
                parts["compilers"] += sum(
                    _ticks(stat.read_text())
                    for stat in Path(f"/proc/{pid}/task").glob("*/stat")
                    if "CompilerThre" in stat.read_text()
                )
        parts["workers"] = self.cpu() - parts["driver"] - parts["JVM"]
        return parts

    def leave(self) -> None:
        """Stop as a user would; returns at once."""
        self.process.send_signal(signal.SIGTERM)

    def join(self) -> None:
        """Wait until it has ended, and all that it printed is read."""
        self.process.wait()
        self._thread.join()

    def kill(self) -> None:
        """End at once, with everything the process has started."""
        kill_tree(self.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def kill_tree(process: subprocess.Popen[str]) -> None:
    """End a process at once, with everything it has started."""
    # All stand still first: a worker whose JVM is gone would complain of a broken pipe before its turn comes.
    for number in (signal.SIGSTOP, signal.SIGKILL) if process.poll() is None else ():
        for pid in tree(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    process.wait()


def tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, at = [pid], 0
    while at < len(found):
        found += parents.get(found[at], [])
        at += 1
    return found


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process; 0.0 if it is gone."""
    try:
        return _ticks(Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return 0.0


def _ticks(stat: str) -> float:
    """Seconds of CPU, user's and system's, without those of children."""
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:13]) / os.sysconf("SC_CLK_TCK")


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    from roster.spark import KafkaSink, Pipeline, session  # noqa: PLC0415 - the benchmark itself needs no Spark

    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "group", "topic"):
        parser.add_argument(name)
    for name in OPTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--to")
    given = vars(parser.parse_args())
    options = {name: given[name] for name in OPTIONS if given[name] is not None}
    if "session_timeout_ms" in options:
        options["consumer"] = {"session.timeout.ms": options.pop("session_timeout_ms")}

    def count(df: Any, batch: Batch) -> None:
        df.groupBy("partition").count().collect()

    def report(progress: Progress) -> None:
        ranges = {partition.partition: span for partition, span in progress.ranges.items()}
        say(at=time.time(), planned=progress.started_at / 1000, ranges=ranges, phases=dict(progress.phases))

    spark = session("bench", "local[1]", spark_sql_shuffle_partitions=1, spark_driver_memory="512m")
    spark.sparkContext.setLogLevel("ERROR")
    say(up=True)
    pipeline = Pipeline(
        spark, given["bootstrap"], given["group"], given["topic"], log="warning", on_progress=report, **options
    )
    if given["to"] is None:
        pipeline.foreach_batch(count)
    else:
        pipeline.write(KafkaSink(given["bootstrap"], given["to"]))
    pipeline.run()
    spark.stop()


if __name__ == "__main__":
    main()
