"""A Roster broker for tests: in a thread of this process, or as a process of its own that can be killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Self, TypeVar

from roster.broker import Broker, BrokerConfig
from roster.broker.config import SETTING_NAMES
from roster.broker.hooks import Hooks
from roster.coordinator import CoordinatorConfig
from roster.testing.errors import unknown


class ClockLoop(asyncio.SelectorEventLoop):
    """Event loop of a broker under test; its clock is the system's plus the seconds of all `advance` calls."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0

    def time(self) -> float:
        """Return the time of the advanced clock, in seconds."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Advance the clock; timers that are then due run at once, in the order of their deadlines."""
        self._ahead += seconds


START_SECONDS = 30.0

T = TypeVar("T")


def quick_config(data_dir: Path, **settings: object) -> BrokerConfig:
    """Return a configuration for tests: a port that the system chooses, and groups that do not wait for late joiners.

    `settings` are fields of BrokerConfig or of its parts. Raises KitArgumentError for any other name.
    """
    quick = BrokerConfig(data_dir=data_dir, port=0, coordinator=CoordinatorConfig(initial_rebalance_delay_ms=0))
    try:
        return quick.with_settings(settings)
    except KeyError as error:
        raise unknown("broker setting", error.args[0], set().union(*SETTING_NAMES.values())) from None


@contextlib.contextmanager
def running_broker(data_dir: Path | None = None, **settings: object) -> Iterator[Broker]:
    """Run a broker in a thread; `settings` are those of BrokerConfig, such as `auto_create_topics=True`.

    Without a data directory a temporary one is used. Clients connect to `broker.bootstrap`.
    """
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roster-broker-")))
        thread = BrokerThread(quick_config(data_dir, **settings))
        stack.enter_context(thread)
        yield thread.broker


class BrokerThread:
    """A broker in an event loop of its own; use it as a context manager."""

    def __init__(self, config: BrokerConfig, hooks: Hooks | None = None) -> None:
        self.broker = Broker(config, hooks)
        self.loop = ClockLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="roster-broker", daemon=True)

    def run(self, work: Coroutine[None, None, T], timeout: float = START_SECONDS) -> T:
        """Run a coroutine in the broker's loop and return what it returns; `timeout` in seconds."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.broker.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.broker.stop())
        finally:
            self._end()

    def kill(self) -> None:
        """End the broker as in a crash."""
        try:
            self.run(self.broker.abort())
        finally:
            self._end()

    def _end(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.run(self.loop.shutdown_default_executor())  # a thread may still use the files
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(START_SECONDS)
        self.loop.close()


class BrokerProcess:
    """`roster broker` as a process of its own, with a data directory that outlives it.

    `start` may be called again after `kill` or `stop`; the port stays the same, so clients reconnect.
    """

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.data_dir = data_dir
        self.bootstrap = "127.0.0.1:0"
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self.log = data_dir.with_name(data_dir.name + ".stderr")
        """Standard error of every run of the broker."""

    @property
    def pid(self) -> int:
        """Process id, for other signals."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    def start(self) -> Self:
        """Start the broker and wait until it serves. Raises RuntimeError with the last line of its log if it fails."""
        program = [sys.executable, "-c", "from roster.cli import main; main()"]
        command = [*program, "broker", "--data", str(self.data_dir), "--listen", self.bootstrap]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as errors:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                [*command, *self._arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        assert self._process.stdout is not None  # it was asked for
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(START_SECONDS)
            last_line = self.log.read_text().strip().splitlines()[-1:]
            raise RuntimeError(f"the broker did not start (exit {self._process.returncode}): {' '.join(last_line)}")
        self.bootstrap = line.split()[-1]
        return self

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        return self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            process.communicate(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
