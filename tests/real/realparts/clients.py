"""Members of consumer groups by every client people use, behind one interface.

`Host` is a process that holds consumers of one language; `Member` is one of them as a test drives it:
`member.owned`, `member.wait_for(condition)`, `member.commit()`, `member.close()`.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tests.real.realparts import golang, jvm, require_real
from tests.real.realparts.cluster import Partition

_ids = itertools.count(1)

PATIENCE = 60.0
"""Seconds: far more than anything takes on a busy machine."""


@dataclass(frozen=True)
class Settings:
    """What a test chooses for a member; times in milliseconds, short ones so that groups move quickly."""

    topics: Sequence[str] = ()
    pattern: str | None = None
    assignors: Sequence[str] = ("range",)
    instance: str | None = None
    client_id: str | None = None
    session_ms: int = 6_000
    heartbeat_ms: int = 250
    rebalance_ms: int = 20_000
    metadata_ms: int = 500
    extra: dict[str, str] = field(default_factory=dict)
    protocol: str = "classic"
    """Java's and librdkafka's `group.protocol`; with "consumer" (KIP-848) assignor and times are the broker's."""


class Member:
    """One consumer in a group: what it told so far, and the commands it takes."""

    def __init__(self, kind: str, bootstrap: str, group: str, settings: Settings) -> None:
        self.kind = kind
        self.id = f"{kind}-{next(_ids)}"
        self.client_id = settings.client_id or self.id
        self.bootstrap = bootstrap
        self.group = group
        self.settings = settings
        self.events: list[dict[str, Any]] = []
        self.owned: set[Partition] = set()
        self.positions: dict[Partition, int] = {}
        self.consumed: list[tuple[str, int, int, int]] = []
        self.generation = -1
        self.member_id = ""
        self.closed = False
        self.error: str | None = None
        self._news = threading.Condition()

    def __repr__(self) -> str:
        return (
            f"<{self.id} owned={sorted(self.owned)} closed={self.closed} error={self.error} events={self.events[-6:]}>"
        )

    # What the host tells us; called from its reader thread.
    def take(self, event: dict[str, Any]) -> None:
        with self._news:
            name = event["event"]
            partitions = {(topic, partition) for topic, partition in event.get("partitions", ())}
            if name == "owns":
                self.owned = partitions
                self.generation = event.get("generation", -1)
                self.member_id = event.get("member", "")
            elif name == "assigned":
                self.owned |= partitions
            elif name in ("revoked", "lost"):
                self.owned -= partitions
            elif name == "records":
                for topic, partition, first, after in event["ranges"]:
                    self.consumed.append((topic, partition, first, after))
                    self.positions[topic, partition] = after
            elif name == "error":
                self.error = event["error"]
            elif name == "closed":
                self.closed = True
            self.events.append(event)
            self._news.notify_all()

    def wait_for(self, condition: Callable[[Member], Any], timeout: float = PATIENCE, what: str = "") -> Any:
        """Wait until the condition holds on this member; AssertionError with its story otherwise."""
        deadline = monotonic() + timeout
        with self._news:
            while not (answer := condition(self)):
                if self.error is not None and not what.startswith("error"):
                    raise AssertionError(f"{self.id} failed: {self.error}")
                remaining = deadline - monotonic()
                if remaining <= 0:
                    raise AssertionError(f"not within {timeout} s: {what or condition}; {self!r}")
                self._news.wait(remaining)
            return answer

    def names(self) -> list[str]:
        """The event names so far."""
        return [event["event"] for event in self.events]

    def consumed_count(self) -> int:
        """Records handed to the application so far."""
        return sum(after - first for _, _, first, after in self.consumed)

    # What a test asks for.
    def send(self, command: str) -> None:
        raise NotImplementedError

    def commit(self, timeout: float = PATIENCE) -> dict[Partition, int]:
        """Commit the positions of all owned partitions; AssertionError if the group refuses."""
        done = self.try_commit(timeout)
        assert done["error"] is None, (self.id, done)
        return {(topic, partition): offset for topic, partition, offset in done["offsets"]}

    def try_commit(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """Commit and return the outcome: `offsets` and `error` (None or the library's words)."""
        before = self.names().count("committed")
        self.send("commit")
        self.wait_for(lambda m: m.names().count("committed") > before, timeout, "commit")
        return next(event for event in reversed(self.events) if event["event"] == "committed")

    def pause(self) -> None:
        """Stop polling (the library's background heartbeats go on, if it has them)."""
        self.send("pause")

    def resume(self) -> None:
        self.send("resume")

    def close(self, timeout: float = PATIENCE) -> None:
        """Leave the group and close; static members stay in it."""
        if not self.closed:
            self.send("close")
            self.wait_for(lambda m: m.closed, timeout, "close")

    def abandon(self, timeout: float = PATIENCE) -> None:
        """Close without telling the group (Java only)."""
        self.send("abandon")
        self.wait_for(lambda m: m.closed, timeout, "abandon")


class Host:
    """A process full of consumers, driven by JSON lines."""

    def __init__(self, command: list[str], log: Path, archive: jvm.Archive | None = None) -> None:
        self.log = log
        self._archive = archive
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            jvm.bound_to_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self._members: dict[str, Member] = {}
        self._ready = threading.Event()
        self._answers: dict[str, dict[str, Any]] = {}
        self._answered = threading.Condition()
        self._writing = threading.Lock()
        threading.Thread(target=self._read, name=f"host-{self.process.pid}", daemon=True).start()
        if not self._ready.wait(PATIENCE):
            self.stop()
            raise RuntimeError(f"{command[0]} did not come up: {log.read_text(errors='replace')[-2000:]}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                self._ready.set()
            elif event["event"] == "answer":
                with self._answered:
                    self._answers[event["id"]] = event
                    self._answered.notify_all()
            else:
                self._members[event["id"]].take(event)
        for member in list(self._members.values()):
            if not member.closed:
                member.take({"id": member.id, "event": "closed"})

    def tell(self, command: dict[str, Any]) -> None:
        """Write one command line."""
        assert self.process.stdin is not None
        with self._writing:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()

    def open(self, member: HostedMember) -> None:
        """Start the consumer in this process."""
        self._members[member.id] = member
        self.tell({"id": member.id, "do": "open", "config": member.config()})

    def ask(self, timeout: float = PATIENCE, **question: Any) -> dict[str, Any]:
        """A question for the host's admin desk (Java); AdminError with the client's own words if it failed."""
        identity = f"question-{next(_ids)}"
        self.tell({"id": identity, "do": "admin", **question})
        with self._answered:
            if not self._answered.wait_for(lambda: identity in self._answers, timeout):
                raise AssertionError(f"no answer within {timeout} s to {question}")
            answer = self._answers.pop(identity)
        if "error" in answer:
            raise AdminError(answer["error"])
        return answer["result"]

    def kill(self) -> None:
        """kill -9: no consumer in it says goodbye."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the process; consumers still open are dropped without leaving their groups."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            archive = self._archive
            try:
                self.process.wait(90 if archive and archive.is_missing else 10)
            except subprocess.TimeoutExpired:
                self.kill()
            if archive:
                archive.keep()
        self._log.close()


class AdminError(Exception):
    """The Java admin client's exception: "ClassName: message"."""


class HostedMember(Member):
    """A member that lives in a `Host`."""

    def __init__(self, host: Host, kind: str, bootstrap: str, group: str, settings: Settings) -> None:
        super().__init__(kind, bootstrap, group, settings)
        self.host = host
        host.open(self)

    def send(self, command: str) -> None:
        self.host.tell({"id": self.id, "do": command})

    def config(self) -> dict[str, Any]:
        """The settings as the host reads them."""
        chosen = self.settings
        common = {
            "kind": self.kind,
            "bootstrap": self.bootstrap,
            "group": self.group,
            "topics": list(chosen.topics),
            "pattern": chosen.pattern,
            "assignors": list(chosen.assignors),
            "instance": chosen.instance,
            "client_id": self.client_id,
            "session_ms": chosen.session_ms,
            "heartbeat_ms": chosen.heartbeat_ms,
            "rebalance_ms": chosen.rebalance_ms,
            "metadata_ms": chosen.metadata_ms,
            "protocol": chosen.protocol,
        }
        return {**common, "java": self._java_properties()} if self.kind == "java" else common

    def _java_properties(self) -> dict[str, str]:
        chosen = self.settings
        properties = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "client.id": self.client_id,
            "group.protocol": chosen.protocol,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": str(chosen.rebalance_ms),
            "metadata.max.age.ms": str(chosen.metadata_ms),
            "allow.auto.create.topics": "false",
            **chosen.extra,
        }
        if chosen.protocol == "classic":
            properties |= {
                "partition.assignment.strategy": ",".join(JAVA_ASSIGNORS[name] for name in chosen.assignors),
                "session.timeout.ms": str(chosen.session_ms),
                "heartbeat.interval.ms": str(chosen.heartbeat_ms),
            }
        if chosen.instance:
            properties["group.instance.id"] = chosen.instance
        return properties


JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}

KCAT_REBALANCE = re.compile(r"% Group .* rebalanced.*?(assigned|revoked|assignment of|revoke of)\b[^:]*: (.*)$")
"""Its notices: "rebalanced (…): assigned: …", and, cooperatively, "incremental assignment of 2 partition(s) (…): …"."""


class KcatMember(Member):
    """`kcat -G`: it commits by itself every now and then, and when it ends."""

    def __init__(self, bootstrap: str, group: str, settings: Settings) -> None:
        super().__init__("kcat", bootstrap, group, settings)
        options = {
            "client.id": self.client_id,
            "partition.assignment.strategy": ",".join(settings.assignors),
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "200",
            "session.timeout.ms": str(settings.session_ms),
            "heartbeat.interval.ms": str(settings.heartbeat_ms),
            "max.poll.interval.ms": str(settings.rebalance_ms),
            "topic.metadata.refresh.interval.ms": str(settings.metadata_ms),
        }
        if settings.instance:
            options["group.instance.id"] = settings.instance
        extra = [part for name, value in options.items() for part in ("-X", f"{name}={value}")]
        topics = [f"^{settings.pattern}"] if settings.pattern else settings.topics
        command = [kcat_path(), "-b", bootstrap, *extra, "-u", "-f", "%t %p %o\n", "-G", group, *topics]
        self.process = subprocess.Popen(
            jvm.bound_to_parent(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        threading.Thread(target=self._read_records, daemon=True).start()
        threading.Thread(target=self._read_notices, daemon=True).start()

    def _tell(self, name: str, **fields: Any) -> None:
        self.take({"id": self.id, "event": name, **fields})

    def _read_records(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            topic, partition, offset = line.decode().split()
            self._tell("records", ranges=[(topic, int(partition), int(offset), int(offset) + 1)])

    def _read_notices(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode(errors="replace").strip()
            change = KCAT_REBALANCE.match(line)
            if change:
                found = re.findall(r"(\S+) \[(\d+)\]", change[2])
                name = "assigned" if change[1].startswith("assign") else "revoked"
                self._tell(name, partitions=[(topic, int(partition)) for topic, partition in found])
            else:
                self._tell("notice", text=line)
        self.process.wait()
        self._tell("closed")

    def send(self, command: str) -> None:
        if command != "close":
            raise NotImplementedError(f"kcat takes no {command}")
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


def kcat_path() -> str:
    """The kcat program, or the test ends with `require_real`."""
    path = shutil.which("kcat") or shutil.which("kafkacat")
    if path is None:
        require_real("kcat is not installed")
    return path


def java_host(log: Path) -> Host:
    """A JVM that holds Java consumers."""
    level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"
    archive = jvm.Archive("ConsumerHost", jvm.class_path())
    return Host(jvm.java_command("ConsumerHost", options=(level, archive.option)), log, archive)


def python_host(log: Path) -> Host:
    """A Python process that holds kafka-python, aiokafka, confluent-kafka and Roster members."""
    return Host([sys.executable, str(Path(__file__).with_name("python_host.py"))], log)


def go_host(log: Path) -> Host:
    """A Go process that holds franz-go consumers."""
    return Host([golang.program()], log)
