"""`benchmarks.fence` that is ended takes with it what it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.spark.programs import start
from tests.waiting import until

BENCHMARK = """
import sys
from pathlib import Path
from benchmarks import fence
fence.PROGRAM = Path(sys.argv[1])
fence.main(["--engine", "kafka"])
"""
DRIVER = """
import os, subprocess, sys, time
from pathlib import Path
worker = subprocess.Popen(["sleep", "600"])
Path(r"{}").write_text(f"{{os.getpid()}} {{worker.pid}}\\n")
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.process
@pytest.mark.gate
def test_sigterm_to_the_benchmark_ends_its_drivers(tmp_path: Path) -> None:
    program, started = tmp_path / "driver.py", tmp_path / "started"
    program.write_text(DRIVER.format(started))
    benchmark = start([sys.executable, "-c", BENCHMARK, str(program)])
    until(lambda: started.exists() and started.read_text().endswith("\n"), 120)
    pids = [int(pid) for pid in started.read_text().split()]
    try:
        assert all(map(is_running, pids))
        benchmark.send_signal(signal.SIGTERM)
        benchmark.wait(120)
        assert not any(map(is_running, pids))
    finally:
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)
