"""The broker: starts its parts in order, serves connections, and stops without losing anything."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

from roster._clock import wall_ms
from roster.broker.config import BrokerConfig
from roster.broker.connection import Connection, ReceiveBudget
from roster.broker.coordinator_shell import CoordinatorShell
from roster.broker.errors import BrokerFailedError, BrokerStartError
from roster.broker.hooks import Hooks, Measures
from roster.broker.listener import Listener, Slot
from roster.broker.log.compaction import Compactor
from roster.broker.log.files import DirectoryLock
from roster.broker.log.flusher import Flusher
from roster.broker.log.open_files import OPEN_FILES
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.retention import Retention
from roster.broker.meta import MetaFile
from roster.broker.security.session import Security
from roster.broker.security.tls import server_context
from roster.broker.services import Services
from roster.broker.topics import TopicCatalogue
from roster.broker.transaction_shell import TransactionShell
from roster.model import Address

MAX_OPEN_LOG_FILES = 50_000
OTHER_FILES = 64
"""Files that are neither logs nor connections."""

logger = logging.getLogger(__name__)


class Broker:
    """A Kafka-compatible server in this process's event loop.

    `async with Broker(config) as broker: ...`; start raises BrokerStartError with one sentence for the user.
    If the disk fails later, the broker answers KAFKA_STORAGE_ERROR and `failed()` returns with the reason.
    """

    def __init__(self, config: BrokerConfig, hooks: Hooks | None = None) -> None:
        self.config = config
        self._hooks = Hooks() if hooks is None else hooks
        self._lock = DirectoryLock(config.data_dir / "lock")
        self._listener: Listener | None = None
        self._services: Services | None = None
        self._compactor: Compactor | None = None
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._failure: BrokerFailedError | None = None
        self._has_failed = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port clients connect to."""
        return self.services.host, self.services.port

    @property
    def services(self) -> Services:
        """The parts, for code in the broker's event loop; RuntimeError if it is not running."""
        if self._services is None:
            raise RuntimeError("the broker is not running")
        return self._services

    @property
    def measures(self) -> Measures | None:
        """Counters for metrics; None if nothing is counted."""
        return self._hooks.measures

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    @property
    def bootstrap(self) -> str:
        """The address as clients' `bootstrap.servers` wants it."""
        return str(Address(*self.address))

    async def start(self) -> None:
        """Take the data directory and the port, recover the logs, and serve. BrokerStartError if that is impossible."""
        config = self.config
        self._files = _raise_file_limit()
        self._share_files()
        room = max(8, self._files - _least_log_files(self._files) - OTHER_FILES)
        try:
            config.data_dir.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise BrokerStartError(f"cannot use data directory {config.data_dir}: {error.strerror}") from error
        try:
            config.security.check_listener(config.host)
            self._listener = listener = Listener(config, server_context(config.security), self._connected, room)
            await listener.bind()
            await self._start_parts(listener)
        except OSError as error:
            await self._give_up()
            raise BrokerStartError(f"cannot use data directory {config.data_dir}: {error}") from error
        except BaseException:
            await self._give_up()
            raise

    async def _start_parts(self, listener: Listener) -> None:
        config = self.config
        meta = MetaFile(config.data_dir)
        topics = TopicCatalogue(config.data_dir, config.log)
        await asyncio.to_thread(meta.load, has_topics=topics.holds_topics())
        await asyncio.to_thread(topics.load, wall_ms())
        meta.skip_producer_ids(topics.highest_producer_id)
        security = Security(config.security, config.data_dir)
        await asyncio.to_thread(security.load)
        syncs = None if self.measures is None else self.measures.syncs
        flusher = Flusher(config.sync_threads, self._fail, self._flushed, self._lock.check, syncs)
        self._compactor = Compactor(flusher)
        group_coordinator = CoordinatorShell(topics, flusher, self._fail, self._hooks)
        transactions = TransactionShell(topics, flusher, meta, group_coordinator, self._fail, self._hooks)
        self._services = Services(
            config,
            meta,
            topics,
            flusher,
            group_coordinator,
            transactions,
            security,
            Retention(
                flusher,
                lambda: [log for topic in topics for log in topic.logs],
                config.retention_check_interval_ms,
                self._compactor.consider,
            ),
            host=config.advertised_host or _reachable(config.host),
            port=config.advertised_port or listener.port,
            hooks=self._hooks,
        )
        await group_coordinator.start(config.coordinator)
        await transactions.start(config.transactions)
        self._budget = ReceiveBudget(config.max_buffered_bytes)
        listener.start(self._services.refusals)
        self._services.retention.start()
        logger.debug("serving %s, data in %s", self.bootstrap, config.data_dir)

    def _fail(self, error: BaseException) -> None:
        """Record a failure that the broker cannot survive."""
        if self._failure is None:
            if not isinstance(error, BrokerFailedError):
                error = BrokerFailedError(f"the disk has failed: {error}")
            self._failure = error
            self._has_failed.set()

    async def failed(self) -> BrokerFailedError:
        """Wait until the broker cannot go on, and return why."""
        while self._failure is None:
            await self._has_failed.wait()
        return self._failure

    def _flushed(self, log: PartitionLog) -> None:
        if self._compactor is not None:
            self._compactor.consider(log)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slot: Slot) -> None:
        task, listener = asyncio.current_task(), self._listener
        if self._services is None or task is None or listener is None:  # accepted while the broker was stopping
            writer.transport.abort()
            return
        admission = listener.admission
        connection = Connection(self._services, self._budget, reader, writer, slot, admission)
        self._connections[task] = connection
        self._share_files()
        slot.end = task.cancel
        try:
            await connection.serve()
        except asyncio.CancelledError:
            pass  # the broker stops, or another connection needs the place; no caller awaits this task
        finally:
            self._connections.pop(task, None)
            admission.release(slot)
            self._share_files()

    def _share_files(self) -> None:
        """Let the logs, which reopen files on demand, use what connections leave of three quarters of all files."""
        left = 3 * (self._files // 4) - len(self._connections)
        OPEN_FILES.limit = max(_least_log_files(self._files), min(left, MAX_OPEN_LOG_FILES))
        OPEN_FILES.release(OPEN_FILES.limit)

    async def stop(self) -> None:
        """Stop serving, make everything durable, release port and directory; idempotent."""
        if self._services is not None:
            await self._end(self._services, is_crash=False)
            logger.info("stopped")

    async def abort(self) -> None:
        """End as a crash does: connections are reset, nothing is answered, flushed or sealed; for a test kit."""
        if self._services is not None:
            await self._end(self._services, is_crash=True)

    async def _end(self, services: Services, *, is_crash: bool) -> None:
        self._services = None
        if self._listener is not None:
            self._listener.close()
        if not is_crash:
            await self._flush(services)  # producers that wait get their answer
        for task, connection in list(self._connections.items()):
            (task.cancel if is_crash else connection.stop)()
        if self._connections:
            await asyncio.wait(list(self._connections))
        services.refusals.flush()
        await services.transaction_coordinator.stop()
        await services.group_coordinator.stop()
        # Threads that use the files cannot be stopped half-way, in a crash neither.
        if self._compactor is not None:
            await self._compactor.stop()
        await services.retention.stop()
        if not is_crash:
            await self._flush(services)
        await services.flusher.close()
        if not is_crash and not services.flusher.failed:
            await asyncio.to_thread(services.topics.close)
        self._lock.release()

    async def _flush(self, services: Services) -> None:
        dirty = [services.flusher.durable(log) for topic in services.topics for log in topic.logs if log.is_dirty]
        await asyncio.gather(*dirty, return_exceptions=True)
        await asyncio.sleep(0)

    async def _give_up(self) -> None:
        """Undo a start that failed half-way."""
        if self._listener is not None:
            self._listener.close()
        if self._services is not None:
            await self.stop()
        self._lock.release()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def run(
    config: BrokerConfig, ready: Callable[[Broker], None] = lambda _: None, hooks: Hooks | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly; BrokerStartError or BrokerFailedError if that fails."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with Broker(config, hooks) as broker:
        ready(broker)
        failed = asyncio.ensure_future(broker.failed())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            raise failed.result()
        failed.cancel()


def _reachable(host: str) -> str:
    """Return a name clients can connect to, for a host to listen on."""
    return socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104


def _least_log_files(files: int) -> int:
    """Return how many of the open files are the logs' even if connections want them: a quarter."""
    return max(8, min(files // 4, MAX_OPEN_LOG_FILES))


def _raise_file_limit() -> int:
    """Allow as many open files as the system lets us, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
