"""Workers that stay on a cluster: one on each host with an executor, started by a Spark job.

Such a worker connects to the driver, as executors do. Both sides prove with a key that they belong together: the key
goes to the host inside the job's task.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from typing_extensions import override

from roster.model.offsets import Arrival
from roster.spark.jobs.executors import Executors
from roster.spark.jobs.worker_main import CONNECT_SECONDS, StartWorkers, keep_alive
from roster.spark.jobs.workers import Link, Workers, run

log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0
"""Seconds between two looks for hosts without a worker."""
_HANDSHAKE_SECONDS = 10.0
"""From a connection to the proof that it is a worker's."""
_MOST_GUESTS, _LOOK_AT_GUESTS = 50, 0.1
"""Connections without a proof that are kept, the newest; seconds between two looks at them."""
_PAUSE_SECONDS = 300.0
"""Seconds until the next try on hosts whose worker did not connect: something is in the way."""
_PROBLEMS = (
    PySparkException,
    Py4JError,
    OSError,
    EOFError,
    multiprocessing.AuthenticationError,
    AttributeError,  # of a session that is being stopped
)
_LOOKS = 50
"""At the status store, ten a second."""
_ENCRYPTED = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled")
"""Settings with which what driver and executors send to each other is encrypted; the workers' tasks are not."""


def are_possible(context: SparkContext) -> bool:
    """Return False if tasks must not go over a connection that is not encrypted."""
    settings = context.getConf()
    return not any(settings.get(name, "false") == "true" for name in _ENCRYPTED)


class HostWorkers(Workers):
    """A worker on each host with an executor, as soon as it has connected."""

    def __init__(self, context: SparkContext) -> None:
        super().__init__(context)
        self._executors = Executors(context)
        self._links: dict[str, Link] = {}
        self._lock = threading.Lock()
        self._starting: threading.Thread | None = None
        self._next_look = 0.0
        self._avoided: dict[str, float] = {}
        """Hosts whose worker did not connect, and when to try again."""
        self._is_closed = False

    @property
    @override
    def has_any(self) -> bool:
        return bool(self._links)

    @override
    def are_on(self, hosts: Sequence[str | None]) -> bool:
        links = [self._link(host) for host in hosts]
        return all(links) and len(set(map(id, links))) == len(links)

    def _link(self, host: str | None) -> Link | None:
        return next(iter(self._links.values()), None) if host is None else self._links.get(host)

    @override
    def run(
        self, work: object, arrivals: Sequence[Arrival] = (), hosts: Sequence[str | None] = (None,)
    ) -> list[object]:
        links = [link for host in hosts if (link := self._link(host)) is not None]
        try:
            return run(links, work, arrivals)
        finally:
            for host, link in list(self._links.items()):
                if link.has_grown or not link.is_open:
                    self._drop(host)

    def _drop(self, host: str) -> None:
        self._links.pop(host).close()

    @override
    def start(self, at_once: int = 1) -> None:
        if time.monotonic() < self._next_look or (self._starting is not None and self._starting.is_alive()):
            return
        hosts = self._executors.hosts()
        if hosts:
            self._next_look = time.monotonic() + _LOOK_SECONDS
        for host in self._links.keys() - hosts:
            self._drop(host)
        now = time.monotonic()
        missing = sorted(host for host in hosts - self._links.keys() if self._avoided.get(host, now) <= now)
        if missing:
            self._starting = InheritableThread(target=self._start, args=(missing,), name="roster-workers", daemon=True)
            self._starting.start()

    def _start(self, hosts: Sequence[str]) -> None:
        """Start workers on these hosts, and wait until they have connected."""
        try:
            self._connect(hosts)
        except _PROBLEMS as error:
            log.debug("workers of small batches cannot be started", exc_info=True)
            reason = str(error).partition("\n")[0]
        else:
            reason = "it did not connect"
        missing = [host for host in hosts if host not in self._links]
        if missing and not self._is_closed:
            self._avoided.update(dict.fromkeys(missing, time.monotonic() + _PAUSE_SECONDS))
            log.warning("small batches are Spark's jobs: no worker on %s: %s", ", ".join(missing), reason)

    def _connect(self, hosts: Sequence[str]) -> None:
        settings, key = self._context.getConf(), secrets.token_bytes(32)
        host = settings.get("spark.driver.host")
        bound = settings.get("spark.driver.bindAddress", host)
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        with socket.create_server((bound.strip("[]"), 0), family=family) as server:
            group = f"roster-workers-{uuid.uuid4().hex[:8]}"
            self._context.setJobGroup(group, "starts the workers of small batches", interruptOnCancel=True)
            begin = StartWorkers(host.strip("[]"), server.getsockname()[1], key)
            self._executors.placed(range(len(hosts)), [[host] for host in hosts]).mapPartitions(begin).collect()
            workers = Guests(server, key).workers(len(hosts))
        links = {number: Link(self._context, of.connection, of.end, files) for number, (of, files) in workers.items()}
        ran_on = self._ran_on(group, links.keys())
        with self._lock:
            for number, link in links.items():
                if (home := ran_on.get(number)) is None or home in self._links or self._is_closed:
                    link.close()
                else:
                    self._links[home] = link

    def _ran_on(self, group: str, numbers: Set[int]) -> Mapping[int, str]:
        """Return the host of each task, as soon as Spark's listeners have reported all."""
        for _ in range(_LOOKS):
            hosts = self._executors.ran_on(group)
            if hosts.keys() >= numbers:
                break
            time.sleep(0.1)
        return hosts

    @override
    def cancel(self) -> None:
        for link in list(self._links.values()):
            link.cancel()

    @override
    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for host in list(self._links):
                self._drop(host)


class _Guest(threading.Thread):
    """Whoever has connected, until it has proven that it has the key: anybody may who reaches the port."""

    def __init__(self, accepted: socket.socket, key: bytes) -> None:
        super().__init__(name="roster-guest", daemon=True)
        self._accepted, self._key = accepted, key
        self.connection = Connection(os.dup(accepted.fileno()))
        self.late_at = time.monotonic() + _HANDSHAKE_SECONDS
        self.told: tuple[int, str] | None = None
        """Number and folder of files of a worker."""

    @override
    def run(self) -> None:
        try:
            keep_alive(self._accepted)
            deliver_challenge(self.connection, self._key)
            answer_challenge(self.connection, self._key)
            self.told = self.connection.recv()
        except Exception:
            log.debug("a connection is dropped, which is no worker's", exc_info=True)
            self.connection.close()
            self.end()

    def end(self) -> None:
        """End the connection, whatever it waits for."""
        with contextlib.suppress(OSError):
            self._accepted.shutdown(socket.SHUT_RDWR)
        self._accepted.close()


class Guests:
    """Connections to a port that is open while workers start. Strangers' cost each a thread until they are late."""

    def __init__(self, server: socket.socket, key: bytes) -> None:
        self._server, self._key = server, key
        self._there: list[_Guest] = []

    def workers(self, count: int) -> dict[int, tuple[_Guest, str]]:
        """Return the workers that connect in time, up to so many: by number, with their folders of files."""
        workers: dict[int, tuple[_Guest, str]] = {}
        until = time.monotonic() + CONNECT_SECONDS
        self._server.settimeout(_LOOK_AT_GUESTS)
        while len(workers) < count and time.monotonic() < until:
            with contextlib.suppress(OSError):
                self._there.append(_Guest(self._server.accept()[0], self._key))
                self._there[-1].start()
            for guest in self._there[:-_MOST_GUESTS]:
                guest.end()
            for guest in list(self._there):
                if not guest.is_alive():
                    self._there.remove(guest)
                    if guest.told is not None:
                        number, files = guest.told
                        workers[number] = guest, files
                elif time.monotonic() >= guest.late_at:
                    guest.end()
        for guest in self._there:
            guest.end()
        return workers
