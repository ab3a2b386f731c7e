"""Fixtures every room may use: Hypothesis profiles, Spark, real parts (Apache Kafka, Java, kcat, Roster's broker)."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import scratch
from tests.cpu_seconds import CpuSeconds
from tests.examples_tried import is_quick, load_profile
from tests.real.realparts import clients
from tests.real.realparts.apache import ApacheKafka
from tests.real.realparts.clients import Host, HostedMember, KcatMember, Member, Settings
from tests.real.realparts.cluster import Cluster
from tests.scheduling import Scheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.real.realparts.secured import SecuredKafka
    from tests.sinks.table_places import Server
    from tests.spark.spark_topics import Topics

load_profile()

HOSTS = {"java": "java_host", "franz-go": "go_host"}
"""The fixture whose process holds clients of that kind; all others live in `python_host`."""
MARKS = {
    "apache_kafka": "real",
    "secured_kafka": "real",
    "java_host": "real",
    "kcat": "real",
    "client": "real",
    "cluster": "real",
    "roster_broker": "process",
    "spark": "spark",
}
"""The mark of every test that asks for the fixture; a room's own fixture of the same name counts for itself."""
REAL_TIMEOUT = 600
"""Seconds: the first test that needs the jars may have to fetch them."""
MEMORY_OF_SIX = 15 * 10**9
"""Bytes of a machine on which six processes run, each with a JVM or two: 11 GB are in use at most."""
STARTS_A_PROGRAM = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn"}
"""Audit events of a new process."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many processes as cores, one more as tests wait for sockets, or four for programs, two with little memory."""
    marks = config.option.markexpr
    programs = 4 if os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") > MEMORY_OF_SIX else 2
    waiting = 0 if marks == "property" else 1 if "not process" in marks else programs
    return (os.cpu_count() or 1) + waiting


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[Any]:
    """Keep all that collection made out of the later runs of Python's garbage collector: it lives until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000, 20, 50)  # by default a tenth of the tests' time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a real part, a process or Spark, so that `make unit` can leave it out."""
    for item in items:
        for mark in {MARKS[name] for name in MARKS if _asks_for(item, name)}:
            item.add_marker(mark)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and not _runs_programs(item):
            item.add_marker("property")
        if item.get_closest_marker("real") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(REAL_TIMEOUT))
    _leave_to_the_gate(items)


def _leave_to_the_gate(items: list[pytest.Item]) -> None:
    """Mark the cases of a sampled test that `make test` does not run."""
    cases: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled"):
            cases[item.path, item.originalname].append(item)
    for functions in cases.values():
        (kept,) = functions[0].get_closest_marker("sampled").args
        for function in sorted(functions, key=lambda case: tuple(case.callspec.indices.values()))[kept:]:
            function.add_marker("gate")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let Spark start quickly if a test may start it."""
    if not session.config.option.collectonly and any(item.get_closest_marker("spark") for item in session.items):
        from tests.spark.quick_spark import start_quickly

        start_quickly()


def _runs_programs(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("real", "spark", "process"))


def _asks_for(item: pytest.Item, fixture: str) -> bool:
    if fixture not in getattr(item, "fixturenames", ()):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.get(fixture, ())
    return any(fixture == "spark" or definition.baseid == "tests" for definition in definitions[-1:])


class ProcessGuard:
    """Fails a test that starts a program without a mark that says so."""

    def __init__(self) -> None:
        self.running: pytest.Item | None = None
        sys.addaudithook(self._audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.running = None if _runs_programs(item) else item
        try:
            return (yield)
        finally:
            self.running = None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.running is not None and event in STARTS_A_PROGRAM:
            raise RuntimeError(f"{self.running.nodeid} starts {arguments[0]}: mark it process, real or spark")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--since", metavar="REVISION", help="only the tests of what has changed since, and what imports it"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--since"):
        from tests.since import Since

        config.pluginmanager.register(Since(config.getoption("--since")))
    config.pluginmanager.register(ProcessGuard())
    config.pluginmanager.register(CpuSeconds(_runs_programs))
    config.pluginmanager.register(Scheduling())
    if is_quick() and not hasattr(config, "workerinput") and scratch.is_wanted():
        config.pluginmanager.register(scratch.FilesInMemory())


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say how to repeat the random order, which pytest-randomly does not under `-q`."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    seed = getattr(session.config.option, "randomly_seed", None)
    if reporter is not None and reporter.verbosity < 0 and seed is not None:
        reporter.write_line(f"order of tests: --randomly-seed={seed}")


@pytest.fixture
def missing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of this process take a topic or partition that they are not told of for missing, and do not ask again."""
    from roster.client import cluster, offsets

    monkeypatch.setattr(cluster.Cluster.topics, "__defaults__", (0.0,))
    monkeypatch.setattr(offsets, "PROPAGATION_TIME", 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Format caplog's text as pytest does: PySpark's loggers of query contexts set JSON for each handler they get."""
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None:
        plugin.caplog_handler.setFormatter(plugin.formatter)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for every test that needs one."""
    from roster.spark import session

    logging.getLogger("py4j").setLevel(logging.WARNING)
    warehouse = tmp_path_factory.mktemp("warehouse")
    started = session(
        "roster-tests",
        master="local[2,4]",
        spark_sql_shuffle_partitions=2,
        spark_driver_memory="1g",
        **{"spark.sql.warehouse.dir": str(warehouse), "spark.python.authenticate.socketTimeout": "180s"},
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # pytest would take a SystemExit for a failed test
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def programs_end() -> Iterator[None]:
    """End the programs that a test has started by `tests.spark.programs` and left running, JVMs and tasks too."""
    from tests.spark.programs import ended

    with ended():
        yield


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def topics() -> Iterator[Topics]:
    """Topics on a Roster broker for tests of pipelines."""
    from roster.testing.broker import running_broker
    from tests.spark.spark_topics import Topics

    with running_broker() as broker, Topics(broker.bootstrap) as made:
        yield made


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """An S3 server with a bucket for tables."""
    from tests.sinks.table_places import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Apache Kafka 4 from its published jars, one broker for the whole run; `.bootstrap` is its address."""
    broker = ApacheKafka(tmp_path_factory.mktemp("apache-kafka"))
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Apache Kafka 4 with TLS, SASL and ACLs on listeners of its own, one broker for the whole run."""
    from tests.real.realparts.secured import SecuredKafka

    broker = SecuredKafka(tmp_path_factory.mktemp("secured-kafka"))
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def roster_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`roster broker` as a process of its own, one for the whole run, with the settings `apache_kafka` has."""
    from roster.testing.broker import BrokerProcess

    settings = ("--initial-rebalance-delay-ms", "150", "--min-session-timeout-ms", "1000", "--log-level", "error")
    with BrokerProcess(tmp_path_factory.mktemp("roster-broker"), *settings) as broker:
        yield Cluster("roster", broker.bootstrap)


@pytest.fixture(params=["roster", "apache"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Roster's broker and Apache Kafka in turn: what must hold on both."""
    return request.getfixturevalue({"roster": "roster_broker", "apache": "apache_kafka"}[request.param])


@pytest.fixture(scope="session")
def java_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One JVM that holds all Java consumers and answers for the Java admin client."""
    host = clients.java_host(tmp_path_factory.mktemp("java") / "host.log")
    yield host
    host.stop()


@pytest.fixture(scope="session")
def python_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One process that holds all Python consumers."""
    host = clients.python_host(tmp_path_factory.mktemp("python") / "host.log")
    yield host
    host.stop()


@pytest.fixture(scope="session")
def go_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One Go process that holds all franz-go consumers."""
    host = clients.go_host(tmp_path_factory.mktemp("go") / "host.log")
    yield host
    host.stop()


@pytest.fixture(scope="session")
def kcat() -> str:
    """The path of the kcat program."""
    return clients.kcat_path()


MemberFactory = Callable[..., Member]


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[MemberFactory]:
    """`client(kind, cluster, group, topics=[…], …)` opens a member of that kind; all are closed after the test."""
    opened: list[Member] = []

    def open_member(kind: str, cluster: Cluster, group: str, **chosen: Any) -> Member:
        wanted = Settings(**chosen)
        if kind == "kcat":
            member: Member = KcatMember(cluster.bootstrap, group, wanted)
        else:
            host = request.getfixturevalue(HOSTS.get(kind, "python_host"))
            member = HostedMember(host, kind, cluster.bootstrap, group, wanted)
        opened.append(member)
        return member

    yield open_member
    for member in opened:
        if not member.closed:
            member.send("close")
    for member in opened:
        member.wait_for(lambda m: m.closed, clients.PATIENCE, "error or close after the test")
