"""Java and the published Kafka jars: fetched once with Maven into the repository's cache, compiled against once."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.realparts import require_real

HERE = Path(__file__).resolve().parent.parent
CACHE = HERE.parent.parent / ".cache" / "kafka"
POM = HERE / "pom.xml"
STREAMS_POM = HERE / "streams-pom.xml"
MAVEN_TIMEOUT = 240

QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Short lives on few cores: no parallel collector, no second compiler."""


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


def _jars(pom: Path, ready: Path) -> Path:
    tool("java")
    fetched = _fetch_jars(pom, kafka_version(), ready)
    if isinstance(fetched, str):
        require_real(fetched)
    return fetched


def classes() -> Path:
    """Our own Java programs (tests/real/java), compiled against the jars; once for each state of the sources."""
    sources = sorted((HERE / "java").glob("*.java"))
    state = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    ready = CACHE / f"classes-{kafka_version()}-{state}"
    if ready.is_dir():
        return ready
    classpath = f"{jars()}/*"
    partial = Path(tempfile.mkdtemp(prefix="classes.partial-", dir=CACHE))
    command = [tool("javac"), "-nowarn", "-cp", classpath, "-d", str(partial), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        shutil.rmtree(partial)
        raise RuntimeError(f"javac failed on tests/real/java:\n{done.stderr}")
    try:
        partial.rename(ready)
    except OSError:
        shutil.rmtree(partial)
    return ready


def bound_to_parent(command: list[str]) -> list[str]:
    """The same command, ended by the system when this process dies without cleaning up (where util-linux is there)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--", *command] if setpriv else command


def java_command(main: str, *arguments: str, heap_mb: int = 128, options: tuple[str, ...] = ()) -> list[str]:
    """The command line that runs `main` from the jars or our own classes; its log goes to stderr."""
    classpath = f"{classes()}:{jars()}/*"
    return [
        tool("java"),
        *QUICK_START,
        f"-Xmx{heap_mb}m",
        *options,
        *("-cp", classpath, main, *arguments),
    ]


@contextmanager
def oracle(program: Path, jars: Path, log: Path) -> Iterator[Callable[[object, int, bytes], tuple[bytes, Any]]]:
    """A running Java program of ours: ask it (kind, version, bytes) for the bytes it writes and the values it reads."""
    command = [tool("java"), *QUICK_START, "-cp", f"{jars}/*", str(program)]
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
