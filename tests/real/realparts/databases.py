"""PostgreSQL from the system's packages, as a server of the tests' own in a directory of its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.real.realparts import require_real
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

PASSWORD = "s3cret-word"
START_SECONDS = 60


def _program(name: str, *places: str) -> str:
    """The path of a program; the test is skipped or fails without it."""
    folders = [*(str(path) for place in places for path in sorted(Path("/").glob(place), reverse=True)), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join([*folders, *os.get_exec_path()]))
    if found is None:
        require_real(f"{name} is not installed (Debian: postgresql)")
    return found


class Database:
    """A server on a Unix socket; `kill` and `start` leave its data as they are."""

    user = ""
    """Who runs it where the tests run as root, which the servers refuse."""

    def __init__(self) -> None:
        # Sockets have short paths, and the server's user must reach them.
        self.directory = Path(tempfile.mkdtemp(prefix="roster-db-"))
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            known = {entry.pw_name: entry for entry in pwd.getpwall()}
            entry = known.get(self.user) or known["nobody"]
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)
            self._as = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self._server: subprocess.Popen[bytes] | None = None
        self._names = 0
        self._install()
        self.start()

    def url(self, name: str) -> str:
        """What a user of a sink writes, for a database of this name."""
        raise NotImplementedError

    def _install(self) -> None:
        raise NotImplementedError

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def engine(self, name: str = "") -> sa.Engine:
        """For what the tests ask of the database."""
        return asking(self.url(name))

    def create(self) -> str:
        """The URL of a database that is empty."""
        self._names += 1
        name = f"shop_{self._names}_{os.getpid()}"
        with self.engine().connect() as connection:
            connection.exec_driver_sql(f"create database {name}")
        return self.url(name)

    def run_once(self, command: Sequence[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._as)
        assert done.returncode == 0, done.stdout + done.stderr

    def launch(self) -> None:
        """Start the server, which may not answer for a while."""
        with (self.directory / "log").open("ab") as log:
            self._server = subprocess.Popen(self._command(), stdout=log, stderr=log, cwd="/", **self._as)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self.launch()
        until(self._answers, START_SECONDS, f"{type(self).__name__} answers")

    def _answers(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:  # the shared memory of a killed one is still in use
            self.launch()
        try:
            with self.engine().connect() as connection:
                connection.exec_driver_sql("select 1")
        except sa.exc.OperationalError:
            return False
        return True

    @property
    def pid(self) -> int:
        """Of the server's first process, while it runs."""
        assert self._server is not None
        return self._server.pid

    def kill(self) -> None:
        """SIGKILL for the server and for what it has started."""
        if self._server is None:
            return
        for pid in [self._server.pid, *_children(self._server.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._server.wait()
        self._server = None

    def shut_down(self) -> None:
        """End the server in order, and with it all connections."""
        assert self._server is not None
        self._server.send_signal(signal.SIGINT)
        self._server.wait(START_SECONDS)
        self._server = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


class Postgres(Database):
    user = "postgres"
    _bin = ("usr/lib/postgresql/*/bin", "usr/local/pgsql/bin", "opt/homebrew/opt/postgresql*/bin")

    def _install(self) -> None:
        initdb = _program("initdb", *self._bin)
        password = self.directory / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        options = ["-U", "roster", "-A", "scram-sha-256", "--pwfile", str(password), "-E", "UTF8", "--locale=C", "-N"]
        self.run_once([initdb, "-D", str(self.directory / "data"), *options])

    @property
    def settings(self) -> dict[str, str]:
        # The processes are killed, not the machine: what was written is there without waiting for the disk.
        return {"listen_addresses": "", "unix_socket_directories": str(self.directory), "fsync": "off"}

    def _command(self) -> Sequence[str]:
        options = [option for name, value in self.settings.items() for option in ("-c", f"{name}={value}")]
        return [_program("postgres", *self._bin), "-D", str(self.directory / "data"), *options]

    def url(self, name: str) -> str:
        return f"postgresql://roster:{PASSWORD}@/{name or 'postgres'}?host={self.directory}"


def asking(url: str) -> sa.Engine:
    """For what the tests ask of a database, by the URL that a sink has."""
    url = url.replace("postgresql://", "postgresql+psycopg://")
    return sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")


@cache
def running(kind: type[Database]) -> Database:
    """The server of this kind that all tests of this process share; it ends with the process."""
    if os.name != "posix":
        pytest.skip("the servers are started as on Unix")
    server = kind()
    atexit.register(server.stop)
    return server
