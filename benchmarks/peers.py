"""Other people's assignors, each in a process of its own, asked in lines of text.

    T topic partitions            a topic
    M member generation t1,t2     a member and its subscription
    O member topic 0,1,2          partitions it claims
    G                             the group is complete: answered with "ready"
    E policy warm-ups rounds ms   time it: answered with JSON, {figure: [milliseconds, ...], "loads": [least, most]}
    N                             forget the group

Java's programs are compiled against the jars that java/pom.xml names, the Go program against the module that go/go.mod
names, both below the repository's `.cache`; the Python libraries are those of this environment. A peer whose tools are
missing, or that cannot be fetched, is `MissingError` with the reason.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.groups import Group

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "benchmarks"
HEAP = "-Xmx8g"
SERVER_JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As Kafka's own start script has it; tests start faster without the second compiler."""


class MissingError(Exception):
    """A peer cannot be had; the text says why."""


class TooSlowError(Exception):
    """A peer did not answer in the time it was given, and was ended."""


def kafka_version() -> str:
    """The release of Apache Kafka that the pom names."""
    found = re.search(r"<kafka\.version>(.+?)</kafka\.version>", (HERE / "java" / "pom.xml").read_text())
    assert found is not None
    return found.group(1)


def franz_version() -> str:
    """The release of franz-go that go.mod names."""
    found = re.search(r"twmb/franz-go (v\S+)", (HERE / "go" / "go.mod").read_text())
    assert found is not None
    return found.group(1)


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise MissingError(f"{name} is not on the PATH")
    return path


def made(name: str, sources: Sequence[Path], build: Callable[[Path], list[str]], cwd: Path) -> Path:
    """A directory in the cache, built once for each state of the sources by the command `build(directory)`."""
    state = hashlib.sha256(b"\0".join(source.read_bytes() for source in sorted(sources))).hexdigest()[:16]
    ready = CACHE / f"{name}-{state}"
    if ready.is_dir():
        return ready
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as partial:
        target = Path(partial) / "made"
        target.mkdir()
        try:
            done = subprocess.run(
                build(target),
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=280,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MissingError(f"{name} took more than 280 s to fetch or build") from None
        if done.returncode:
            raise MissingError(f"{name} could not be fetched or built: {(done.stdout + done.stderr).strip()[-400:]}")
        with contextlib.suppress(OSError):  # another run was first
            target.rename(ready)
    return ready


@functools.cache
def streams_jars() -> Path:
    """The directory with the jars of Kafka Streams and its store."""
    directory, maven = HERE / "java", tool("mvn")
    return made(
        "jars",
        [directory / "pom.xml"],
        lambda target: [
            *(maven, "--batch-mode", "--quiet", "--file", "pom.xml", "dependency:copy-dependencies"),
            *(f"-DoutputDirectory={target}", "-DincludeScope=runtime"),
        ],
        directory,
    )


@functools.cache
def java(program: str) -> list[str]:
    """The command that runs one of our Java programs."""
    launcher, compiler = tool("java"), tool("javac")
    directory, jars = HERE / "java", streams_jars()
    sources = sorted(directory.glob("*.java"))
    classes = made(
        "classes",
        [directory / "pom.xml", *sources],
        lambda target: [compiler, "-nowarn", "-cp", f"{jars}/*", "-d", str(target), *map(str, sources)],
        directory,
    )
    return [launcher, HEAP, "-cp", f"{classes}:{jars}/*", program]


@functools.cache
def franz_go() -> list[str]:
    """The command that runs franz-go's balancer."""
    go = tool("go")
    directory = HERE / "go"
    program = made(
        "franz-go",
        list(directory.iterdir()),
        lambda target: [go, "build", "-buildvcs=false", "-mod=readonly", "-o", str(target), "."],
        directory,
    )
    return [str(program / "balancer")]


def python(library: str) -> list[str]:
    """The command that runs an assignor of a Python library, or Roster's as a plug-in of it."""
    return [sys.executable, "-m", "benchmarks.python_peer", library]


def quix_streams() -> Path:
    """A directory with quix-streams and what it needs, which does not install beside Roster's clients."""
    install = [sys.executable, "-m", "pip", "install", "-q", "-r", "requirements.txt", "--target"]
    return made("quix", [HERE / "quix" / "requirements.txt"], lambda target: [*install, str(target)], HERE / "quix")


class Peer:
    """A peer's process; it is started when first asked, and again after it was too slow."""

    def __init__(self, name: str, command: Callable[[], list[str]], limit: float) -> None:
        self.name, self.limit = name, limit
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def time(self, group: Group, *, policy: str = "cooperative-sticky", rounds: int, budget: float) -> dict[str, Any]:
        """Time one group. Raises MissingError, and TooSlowError where the limit does not do for a single round.

        rounds: so many are timed, after as many warm-ups, as long as the budget (seconds) lasts.
        """
        self.load(group)
        return self.ask(f"E {policy} {rounds} {rounds} {int(budget * 1000)}\nN", self.limit)

    def load(self, group: Group) -> None:
        """Hand the group over, untimed."""
        self._send(group.lines() + "\nG")
        if self._receive(300).strip() != "ready":
            raise MissingError(f"{self.name} did not take the group")

    def ask(self, line: str, limit: float) -> Any:
        """One question and its answer."""
        self._send(line)
        return json.loads(self._receive(limit))

    def growth(self, group: Group) -> float:
        """MB by which the resident memory of a fresh process grows at most in its first run, above the group itself."""
        self.stop()
        self.load(group)
        assert self._process is not None
        process = Path("/proc") / str(self._process.pid)
        (process / "clear_refs").write_text("5")  # forget the peak so far
        before = _memory(process, "VmRSS")
        self.ask("E cooperative-sticky 0 1 0\nN", self.limit)
        after = _memory(process, "VmHWM")
        self.stop()
        return (after - before) / 1e6

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _send(self, text: str) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=HERE.parent,
                env=os.environ | {"PYTHONHASHSEED": "0"},
            )
            self._answers = queue.Queue()
            threading.Thread(target=_pump, args=(self._process, self._answers), daemon=True).start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            raise MissingError(f"{self.name} ended by itself") from None

    def _receive(self, limit: float) -> str:
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            raise TooSlowError from None
        if not line:
            self.stop()
            raise MissingError(f"{self.name} ended by itself")
        return line


def _pump(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put("")


def _memory(process: Path, field: str) -> int:
    """Bytes, from the process's status."""
    for line in (process / "status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)
