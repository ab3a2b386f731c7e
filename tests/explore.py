"""New examples, seeds of the simulator and random programs, round after round: `python -m tests.explore MINUTES`.

Each round prints its seed; `--seed` runs that round again. The exit code is 1 if a round has failed. A step
of a round gets its even share of the time that is left, and properties come in another order in each round: so a run of
few minutes tries some of everything.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from time import monotonic

import click

SIMULATED = 200
"""Seeds of the simulator in a round."""
PROGRAMS = "tests/spark/dataframes/test_random_programs.py"
_INTERRUPTED = -signal.SIGINT, -signal.SIGTERM, 2, 130
"""Exit codes of a command that is cut at the end of the time; pytest's does not say whether a test had failed."""


def steps(seed: int) -> list[list[str]]:
    """Return the commands of a round."""
    quiet = ["-q", f"--randomly-seed={seed}", f"--hypothesis-seed={seed}"]
    properties = [*quiet, "-m", "property"]
    spread = ["--numprocesses", "auto", "--dist", "worksteal"]
    programs = [*quiet, "--exitfirst", PROGRAMS]
    simulation = ["--seed", str(seed % 2**31), "--seeds", str(SIMULATED)]
    return [
        [sys.executable, "-m", "pytest", *properties, *spread],
        [sys.executable, "-m", "tests.simulation", *simulation],
        [sys.executable, "-m", "pytest", *programs],
    ]


def passes(command: list[str], seed: int, until: float) -> bool:
    """Run a command, at most until a moment of the monotonic clock; return False if it fails before."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs would ignore it, and their own
    with tempfile.TemporaryDirectory(prefix="roster-explore-") as folder:
        report = Path(folder) / "report.xml"
        environment = {"HYPOTHESIS_PROFILE": "explore", "ROSTER_SEED": str(seed)}
        environment["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} --junit-xml={report}"
        # PySpark makes a failed job of an interrupt, and so a failed test.
        end = signal.SIGTERM if PROGRAMS in command else signal.SIGINT
        with subprocess.Popen(command, env=os.environ | environment, text=True) as process:
            try:
                return process.wait(max(0.0, until - monotonic())) == 0
            except subprocess.TimeoutExpired:
                process.send_signal(end)
                return process.wait() in _INTERRUPTED and not has_failures(report)
            except SystemExit:
                process.send_signal(end)
                raise


def has_failures(report: Path) -> bool:
    """Return whether a test has failed, by pytest's report in JUnit's format; False without one."""
    if not report.exists():
        return False
    return any(int(suite.attrib[kind]) for suite in ET.parse(report).getroot() for kind in ("failures", "errors"))


@click.command("python -m tests.explore")
@click.argument("minutes", type=click.FloatRange(min=0))
@click.option("--seed", type=click.IntRange(min=0), help="Run the round of this seed only.")
def explore(minutes: float, seed: int | None) -> None:
    """Look for new failures for so many minutes."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    until, failed, rounds = monotonic() + 60 * minutes, [], 0
    while monotonic() < until and not (seed is not None and rounds):
        number = secrets.randbits(32) if seed is None else seed
        click.echo(f"round {rounds + 1}, seed {number}")
        results = []
        for left, command in zip((3, 2, 1), steps(number), strict=True):
            results.append(passes(command, number, monotonic() + (until - monotonic()) / left))
        failed += [] if all(results) else [number]
        rounds += 1
    click.echo(f"{rounds} rounds, failed: {' '.join(map(str, failed)) or 'none'}")
    if failed:
        click.echo(f"again: .venv/bin/python -m tests.explore 60 --seed {failed[0]}")
        sys.exit(1)


if __name__ == "__main__":
    explore()
