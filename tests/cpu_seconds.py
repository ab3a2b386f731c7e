"""A pytest plugin: CPU seconds of each test with those of all programs it runs, in a file, and the dearest at the end.

The file, `.cache/cpu-seconds.tsv`, has a line for each test: seconds, id; the dearest first. What a session's fixture
costs is the first test's that asks for it.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Path(__file__).parents[1] / ".cache" / "cpu-seconds.tsv"
KNOWN = FILE.with_name("cpu-seconds-known.tsv")
"""The same of all tests that ever ran, each as it ran last: what the next run's order is made of."""
DEAREST = 10
"""How many tests the summary names."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PROCESSES = Path("/proc")


def own_seconds() -> float:
    """Return the CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def tree_seconds() -> float:
    """Return the CPU seconds of this process and of all that descend from it, those that still run too."""
    if not _PROCESSES.is_dir():
        return own_seconds()
    seconds, children = {}, {}
    for folder in _PROCESSES.iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
            seconds[int(folder.name)] = sum(map(int, fields[11:15])) / _TICKS  # its own, and of children it waited for
    total, tree = 0.0, [os.getpid()]
    while tree:
        process = tree.pop()
        total += seconds.get(process, 0.0)
        tree += children.get(process, [])
    return total


def known_seconds() -> dict[str, float]:
    """Return the CPU seconds of the tests of `KNOWN` whose files are still there."""
    lines = KNOWN.read_text().splitlines() if KNOWN.exists() else []
    seconds = {name: float(cost) for cost, _, name in (line.partition("\t") for line in lines)}
    there = {file for file in {name.partition("::")[0] for name in seconds} if (KNOWN.parents[1] / file).exists()}
    return {name: cost for name, cost in seconds.items() if name.partition("::")[0] in there}


class CpuSeconds:
    """In a worker it measures its tests; in the process that prints it gathers what all workers have measured."""

    def __init__(self, runs_programs: Any) -> None:
        self._runs_programs = runs_programs
        self._tests: dict[str, float] = {}
        self._workers = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        measure = tree_seconds if self._runs_programs(item) else own_seconds
        self._before, self._measure = measure(), measure
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append(("cpu_seconds", self._measure() - self._before))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "cpu_seconds" in (measured := dict(report.user_properties)):
            self._tests[report.nodeid] = measured["cpu_seconds"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_seconds"] = tree_seconds()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._workers += getattr(node, "workeroutput", {}).get("cpu_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._tests:
            return
        ordered = sorted(self._tests.items(), key=lambda test: -test[1])
        FILE.parent.mkdir(parents=True, exist_ok=True)
        for file, tests in ((FILE, dict(ordered)), (KNOWN, known_seconds() | self._tests)):
            file.write_text("".join(f"{seconds:.2f}\t{name}\n" for name, seconds in tests.items()))
        total = self._workers + own_seconds() if self._workers else tree_seconds()
        tests = sum(self._tests.values())
        terminalreporter.write_line(f"CPU seconds: {total:.0f}, of which tests {tests:.0f}; each test's: {FILE}")
        for name, seconds in ordered[:DEAREST]:
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
