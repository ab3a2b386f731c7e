"""Java and the published Kafka jars: fetched once with Maven into the repository's cache, compiled against once.

Each kind of program keeps its loaded classes in an archive when it first ends in order (class data sharing): the next
one starts with half the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.real.realparts import require_real

HERE = Path(__file__).resolve().parent.parent
CACHE = HERE.parent.parent / ".cache" / "kafka"
POM = HERE / "pom.xml"
STREAMS_POM = HERE / "streams-pom.xml"
TOOLS_POM = HERE / "tools-pom.xml"
MAVEN_TIMEOUT = 240

QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")
"""Short lives on few cores: no parallel collector, no second compiler; nothing of the JVM itself on stdout."""


def kafka_version() -> str:
    """The Apache Kafka release under test: ROSTER_KAFKA_VERSION, else the one our pom.xml names."""
    named = re.search(r"<kafka\.version>(.+?)</kafka\.version>", POM.read_text())
    assert named is not None
    return os.environ.get("ROSTER_KAFKA_VERSION") or named.group(1)


def tool(name: str) -> str:
    """The path of a program, or the test ends with `require_real`."""
    found = shutil.which(name)
    if found is None:
        require_real(f"{name} is not on the PATH")
    return found


@functools.cache
def _fetch_jars(pom: Path, version: str, ready: Path) -> Path | str:
    """The directory that holds the jars, or the reason why there is none (kept, so that each test need not wait)."""
    if ready.is_dir():
        return ready
    CACHE.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{ready.name}.partial-", dir=CACHE))
    command = [
        tool("mvn"),
        *("--batch-mode", "--quiet", "--file", str(pom), f"-Dkafka.version={version}"),
        *("dependency:copy-dependencies", f"-DoutputDirectory={partial}", "-DincludeScope=runtime"),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        shutil.rmtree(partial)
        return f"Maven did not fetch Kafka {version} within {MAVEN_TIMEOUT} s"
    if done.returncode != 0 or not list(partial.glob("kafka-clients-*.jar")):
        shutil.rmtree(partial)
        return f"Maven could not fetch Kafka {version}: {(done.stdout + done.stderr).strip()[:500]}"
    partial.chmod(0o755)
    try:
        partial.rename(ready)
    except OSError:  # another test run was first
        shutil.rmtree(partial)
    return ready


def jars() -> Path:
    """The directory with the jars of `kafka_version()`."""
    return _jars(POM, CACHE / kafka_version())


def streams_jars() -> Path:
    """The same for Kafka Streams, without the store it keeps state in."""
    return _jars(STREAMS_POM, CACHE / f"streams-{kafka_version()}")


def consumer_groups(bootstrap: str, group: str) -> list[dict[str, str]]:
    """What Kafka's own kafka-consumer-groups tells of a group: a row for each partition, by the columns' names."""
    program = _group_tool()
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"--bootstrap-server {bootstrap} --describe --group {group}\n".encode())
    program.stdin.flush()
    output = program.stdout.read(int(program.stdout.readline())).decode()
    names, *rows = (line.split() for line in output.splitlines() if line.strip() and "no active members" not in line)
    return [dict(zip(names, row, strict=False)) for row in rows]


@functools.cache
def _group_tool() -> subprocess.Popen[bytes]:
    """Start the tool in a JVM that ends with this process: each start would cost two seconds of CPU."""
    jars = f"{_jars(TOOLS_POM, CACHE / f'tools-{kafka_version()}')}/*"
    path = f"{compiled([HERE / 'tools' / 'GroupTool.java'], jars)}:{jars}"
    command = [tool("java"), *QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", path, "GroupTool"]
    return subprocess.Popen(bound_to_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _jars(pom: Path, ready: Path) -> Path:
    tool("java")
    fetched = _fetch_jars(pom, kafka_version(), ready)
    if isinstance(fetched, str):
        require_real(fetched)
    return fetched


def compiled(sources: Iterable[Path], class_path: str) -> Path:
    """A jar of our own Java programs, compiled against a class path; made once for each state of the sources."""
    files = sorted(sources)
    state = hashlib.sha256(b"\0".join([class_path.encode(), *(file.read_bytes() for file in files)])).hexdigest()[:16]
    ready = CACHE / f"{files[0].stem}-{state}.jar"
    if ready.exists():
        return ready
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        made = Path(directory) / "classes"
        command = [tool("javac"), "-nowarn", "-cp", class_path, "-d", str(made), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"javac failed on {files[0].parent}:\n{done.stderr}")
        return Path(shutil.make_archive(str(made), "zip", made)).rename(ready)


class Archive:
    """The loaded classes of a kind of program."""

    def __init__(self, kind: str, class_path: str) -> None:
        state = hashlib.sha256(f"{_java()} {class_path} {QUICK_START}".encode()).hexdigest()[:16]
        self._ready = CACHE / f"{kind}-{state}.jsa"
        self._made = self._ready.with_suffix(f".{uuid4()}")

    @property
    def is_missing(self) -> bool:
        """True if the program is to make it, which takes seconds when it ends."""
        return not self._ready.exists()

    @property
    def option(self) -> str:
        """The option of the JVM that makes or uses it."""
        return f"-XX:ArchiveClassesAtExit={self._made}" if self.is_missing else f"-XX:SharedArchiveFile={self._ready}"

    def keep(self) -> None:
        """Take what the program has made, if it has ended in order."""
        with contextlib.suppress(FileNotFoundError):
            self._made.rename(self._ready)


@functools.cache
def _java() -> str:
    return subprocess.run([tool("java"), "-version"], capture_output=True, text=True, timeout=60, check=True).stderr


def bound_to_parent(command: list[str]) -> list[str]:
    """The same command, ended by the system when this process dies without cleaning up (where util-linux is there)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else command


def class_path() -> str:
    """Our own programs (tests/real/java) and the jars."""
    found = f"{jars()}/*"
    return f"{compiled((HERE / 'java').glob('*.java'), found)}:{found}"


def java_command(main: str, *arguments: str, heap_mb: int = 128, options: tuple[str, ...] = ()) -> list[str]:
    """The command line that runs `main` from the jars or our own classes; its log goes to stderr."""
    return [tool("java"), *QUICK_START, f"-Xmx{heap_mb}m", *options, "-cp", class_path(), main, *arguments]


@contextmanager
def oracle(program: Path, jars: Path, log: Path) -> Iterator[Callable[[object, int, bytes], tuple[bytes, Any]]]:
    """A running Java program of ours: ask it (kind, version, bytes) for the bytes it writes and the values it reads."""
    path = f"{compiled([program], f'{jars}/*')}:{jars}/*"
    archive = Archive(program.stem, path)
    command = [tool("java"), *QUICK_START, archive.option, "-cp", path, program.stem]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8"
        ) as process,
    ):

        def ask(kind: object, version: int, data: bytes) -> tuple[bytes, Any]:
            try:
                process.stdin.write(f"{kind} {version} {data.hex()}\n")
                process.stdin.flush()
            except BrokenPipeError:
                pytest.fail(f"the Java process is gone: {log.read_text()}")
            answer = process.stdout.readline()
            assert answer, log.read_text()
            assert not answer.startswith("!"), answer
            written, told = answer.split(" ", 1)
            return bytes.fromhex(written), json.loads(told)

        yield ask
        process.stdin.close()
    archive.keep()
