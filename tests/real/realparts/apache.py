"""One Apache Kafka broker (KRaft, combined mode) on the loopback interface, from the published jars."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from time import monotonic

from tests.real.realparts import jvm
from tests.real.realparts.cluster import Cluster

START_TIMEOUT = 180.0

DAY_MS = 24 * 60 * 60 * 1000
"""Until retention is first looked at: scripts send records of fixed old times, which it would delete half way."""

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/log
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=4
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=8388608
log.initial.task.delay.ms={day_ms}
log.retention.check.interval.ms={day_ms}
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms={initial_delay_ms}
group.min.session.timeout.ms=1000
group.consumer.heartbeat.interval.ms=200
group.consumer.min.heartbeat.interval.ms=200
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
"""


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody used a moment ago.

    They are below those of clients' connections on Linux and macOS, of which one may be taken before a JVM listens.
    """
    ports: set[int] = set()
    while len(ports) < count:
        port = 20_000 + secrets.randbelow(12_000)  # `random` has the same seed in each worker
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    return list(ports)


class ApacheKafka(Cluster):
    """A running broker: `bootstrap`, `log_path` for the curious, `stop()` at the end."""

    def __init__(self, directory: Path, initial_delay_ms: int = 150, options: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.log_path = directory / "broker.log"
        port, controller_port = free_ports(2)
        settings = self._settings = directory / "server.properties"
        settings.write_text(
            PROPERTIES.format(
                port=port,
                controller_port=controller_port,
                directory=directory,
                initial_delay_ms=initial_delay_ms,
                day_ms=DAY_MS,
            )
        )
        self._format(settings)
        self._options = options
        self._launch(settings, options)
        super().__init__("apache", f"127.0.0.1:{port}")
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _format(self, settings: Path, *arguments: str, cluster_id: str = "") -> None:
        cluster_id = cluster_id or urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        archive = jvm.Archive("StorageTool", jvm.class_path())
        quiet = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", archive.option)
        command = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings), *arguments)
        formatted = subprocess.run(
            jvm.java_command(*command, options=quiet),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT,
            check=False,
        )
        if formatted.returncode != 0:
            raise RuntimeError(f"formatting Kafka's storage failed:\n{formatted.stdout}\n{formatted.stderr}")
        archive.keep()

    def _launch(self, settings: Path, options: tuple[str, ...] = ()) -> None:
        self._archive = jvm.Archive("Kafka", jvm.class_path())
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                jvm.bound_to_parent(
                    jvm.java_command(
                        "kafka.Kafka",
                        str(settings),
                        heap_mb=512,
                        options=("-Dorg.slf4j.simpleLogger.defaultLogLevel=info", self._archive.option, *options),
                    )
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _await_ready(self) -> None:
        deadline = monotonic() + START_TIMEOUT
        while not self.answers(timeout=1.0):
            if self.process.poll() is not None or monotonic() > deadline:
                text = self.log_path.read_text(errors="replace")
                reasons = [line for line in text.splitlines() if " ERROR " in line or "Exception" in line]
                told = "\n".join([*reasons[:10], text[-2000:]])
                raise RuntimeError(f"Apache Kafka did not come up (exit {self.process.poll()}):\n{told}")

    def restart(self) -> None:
        """Kill the broker, and start it again on its directory and port."""
        self.process.kill()
        self.process.wait()
        self._launch(self._settings, self._options)
        self._await_ready()

    def stop(self) -> None:
        """End the broker; it is given ten seconds to do so in order, and more where it archives its classes."""
        self.process.terminate()
        try:
            self.process.wait(90 if self._archive.is_missing else 10)
            self._archive.keep()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
