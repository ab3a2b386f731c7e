"""A Spark standalone cluster on this machine, from the PySpark that is installed; `make cluster` starts one.

    standalone.py [--workers 2] [--cores 1] [--memory 1g] [--port 7077]

Prints the master's address once every worker has registered, and ends the cluster with SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS = 120


def session_on(master: str, group: str) -> SparkSession:
    """A session of a program's own there, whose tasks wait for the hosts that they prefer."""
    from roster.spark import session

    spark = session(group, master, spark_executor_memory="512m", spark_locality_wait="60s")
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Standalone:
    """A master and workers on the loopback interface, on ports of the system's choice unless one is given.

    With `hosts` each worker has an address, and a directory of temporary files, of its own.
    """

    def __init__(
        self, folder: Path, workers: int = 1, cores: int = 1, memory: str = "1g", port: int = 0, *, hosts: bool = False
    ) -> None:
        self._folder, self._workers, self._port, self._hosts = folder, workers, port, hosts
        self._resources = ("--cores", str(cores), "--memory", memory)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            log = self._start("Master", "--port", str(self._port))
            self.master = self._reads(log, r"(spark://127\.0\.0\.1:\d+)")
            logs = [self._start("Worker", *self._resources, self.master, number=n) for n in range(self._workers)]
            for log in logs:
                self._reads(log, "(Successfully registered)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)

    def executors(self) -> list[int]:
        """Process ids of the executors that the workers run at the moment."""
        sessions = {process.pid for process in self._processes}
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                ours = os.getsid(int(path.name)) in sessions
                if ours and b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes():
                    found[int(path.name)] = _parent(path)
        # a child that an executor has forked bears the executor's command line until it runs its own
        return [pid for pid, parent in found.items() if parent not in found]

    def _start(self, part: str, *arguments: str, number: int = 0) -> Path:
        """Start a master or a worker; returns its log."""
        home = Path(pyspark.__file__).parent
        environment = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_SCALA_VERSION": "2.13"}
        fixed = ["--host", "127.0.0.1", "--webui-port", "0"]
        if part == "Worker":
            if self._hosts:
                fixed[1] = f"127.0.0.{2 + number}"
                environment["TMPDIR"] = str(self._folder / f"tmp-{number}")
                Path(environment["TMPDIR"]).mkdir()
            fixed += ["--port", "0", "--work-dir", str(self._folder / f"work-{number}")]
        path = self._folder / f"{part}-{number}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{part.lower()}.{part}", *fixed, *arguments],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return path

    def _reads(self, log: Path, pattern: str) -> str:
        """Wait for a line of a log."""
        deadline = time.monotonic() + START_SECONDS
        while (match := re.search(pattern, log.read_text())) is None:
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                raise RuntimeError(f"the cluster did not start; the end of {log.name}:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        return match[1]


def _parent(process: Path) -> int:
    """The parent of a process, by its folder in /proc (the second field after the name in brackets)."""
    return int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=1, help="of each worker")
    parser.add_argument("--memory", default="1g", help="of each worker")
    parser.add_argument("--port", type=int, default=7077, help="of the master")
    arguments = parser.parse_args()
    ending = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    with tempfile.TemporaryDirectory(prefix="roster-cluster-") as folder:
        chosen = (arguments.workers, arguments.cores, arguments.memory, arguments.port)
        with Standalone(Path(folder), *chosen) as cluster:
            print(f"{cluster.master}, logs in {folder}; Ctrl-C ends it", flush=True)
            signal.sigwait(ending)


if __name__ == "__main__":
    main()
