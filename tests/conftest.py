"""Fixtures every room may use: Hypothesis profiles, and the real parts (Apache Kafka, Java, kcat, Roster's broker)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.real.realparts import clients
from tests.real.realparts.apache import ApacheKafka
from tests.real.realparts.clients import Host, HostedMember, KcatMember, Member, Settings
from tests.real.realparts.cluster import Cluster

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("seeded", deadline=None, database=None, max_examples=30)
"""For `--hypothesis-seed`: what is tried depends on the seed alone, not on earlier failures."""
DEMANDING = os.environ.get("ROSTER_REQUIRE_REAL") == "1" or "CI" in os.environ
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if DEMANDING else "dev"))

HOSTS = {"java": "java_host", "franz-go": "go_host"}
"""The fixture whose process holds clients of that kind; all others live in `python_host`."""
REAL_FIXTURES = {"apache_kafka", "java_host", "kcat", "client"}
REAL_TIMEOUT = 300
"""Seconds: the first test that needs the jars may have to fetch them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a real part, so that `-m "not real"` is the quick run."""
    for item in items:
        if REAL_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.real)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(REAL_TIMEOUT))


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Apache Kafka 4 from its published jars, one broker for the whole run; `.bootstrap` is its address."""
    broker = ApacheKafka(tmp_path_factory.mktemp("apache-kafka"))
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
        member.wait_for(lambda m: m.closed, 15, "error or close after the test")
