"""A switch on clusters with TLS, logins and ACLs: the rights that it needs, and what is said where one is missing."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from roster.cli.root import run
from roster.client import Admin, ClientError, OffsetAndMetadata
from roster.client.switch_requests import ask_for_switch, request_group
from roster.model import TopicPartition
from roster.model.switch import Request, Results, Seen, Standing
from roster.pipeline.driver.loop import DriverLoop
from roster.pipeline.driver.members import group_member
from roster.pipeline.driver.switching import Switching
from roster.pipeline.options import Options
from roster.security.parse import parse_security
from tests.broker.secured import secured_broker
from tests.cli.test_secured_commands import JAAS
from tests.real.realparts.cluster import unique
from tests.spark.spark_fakes import FakeRunner, FakeSink
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.realparts.secured import SecuredKafka

RITA, OTTO = "rita", "otto"  # who runs the applications, and who switches them
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, DESCRIBE, DELETE = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE


class Guarded:
    """A cluster with ACLs."""

    def __init__(self, bootstrap: str, settings: dict[str, dict[str, str]], admin: Admin, acls: AdminClient) -> None:
        self.bootstrap, self.settings, self.admin, self._acls = bootstrap, settings, admin, acls

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        for operation in operations:
            told = f"User:{user}", "*", operation, AclPermissionType.ALLOW
            for done in self._acls.create_acls([AclBinding(kind, name, ResourcePatternType.LITERAL, *told)]).values():
                done.result(60)
            wanted = AclBindingFilter(kind, name, ResourcePatternType.LITERAL, *told)
            until(lambda wanted=wanted: self._acls.describe_acls(wanted).result(60), 60, "the broker knows the ACL")

    def client(self, user: str) -> Admin:
        return Admin(self.bootstrap, security=self.settings[user])

    def config(self, path: Path, user: str) -> str:
        known = self.settings[user]
        text = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": known["sasl.mechanism"],
            "sasl.jaas.config": JAAS.format(user, known["sasl.password"]),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": known["ssl.ca.location"],
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in text.items()))
        return str(path)


@pytest.fixture(scope="module")
def roster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running, running.admin() as admin:
        settings = {user: running.settings(user) for user in (RITA, OTTO)}
        acls = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0, **running.settings("admin")})
        yield Guarded(running.bootstrap, settings, admin, acls)


@pytest.fixture
def apache(secured_kafka: SecuredKafka) -> Iterator[Guarded]:
    from tests.real.realparts.secured import STRANGER_PASSWORD, USER_PASSWORD

    passwords = {RITA: USER_PASSWORD, OTTO: STRANGER_PASSWORD}
    settings = {user: secured_kafka.scram(password, user) for user, password in passwords.items()}
    with Admin(secured_kafka.bootstrap) as admin:
        yield Guarded(secured_kafka.address("SECURE"), settings, admin, secured_kafka.admin)


class Groups:
    """Two groups without state that read a topic of two partitions, the second one paused, each with an application."""

    def __init__(self, cluster: Guarded, *, runs: bool) -> None:
        self.cluster, self.topic = cluster, unique("orders")
        self.old, self.new = unique("blue"), unique("green")
        self.partitions = [TopicPartition(self.topic, number) for number in range(2)]
        cluster.admin.create_topic(self.topic, 2)
        self.sinks: dict[str, FakeSink] = {}
        self._cleanup = contextlib.ExitStack()
        for group in (self.old, self.new) if runs else ():
            self.run(group)

    def run(self, group: str) -> None:
        options = Options(
            None,  # type: ignore[arg-type]
            self.cluster.bootstrap,
            group,
            (self.topic,),
            security=parse_security(self.cluster.settings[RITA]),
        )
        self.cluster.allow(RITA, TOPIC, self.topic, READ)
        self.cluster.allow(RITA, GROUP, group, READ)
        self.cluster.allow(RITA, GROUP, request_group(group), DESCRIBE)
        admin = self._cleanup.enter_context(self.cluster.client(RITA))
        switching = Switching(group, admin, paused=group == self.new, keeps_state=False)
        member, runner, self.sinks[group] = group_member(options), FakeRunner(), FakeSink(exact=False)
        loop = DriverLoop(member, runner, self.sinks[group], options, switching=switching)
        member.start(60.0)
        thread = threading.Thread(target=lambda: loop.run(available_now=False), daemon=True)
        thread.start()

        def stop() -> None:
            loop.stop()
            thread.join(60)
            member.close()

        self._cleanup.callback(stop)

    def stands(self, group: str) -> set[Results]:
        try:
            found = self.cluster.admin.group_offsets(group, stable=False).values()
        except ClientError:
            return set()
        return {Seen.of(at).standing.results for at in found} if len(found) == 2 else set()

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()


def switched_with_rights_given_one_by_one(cluster: Guarded, path: Path, capsys: Any) -> None:
    with Groups(cluster, runs=True) as groups:
        until(lambda: groups.stands(groups.old) == {Results.WRITES}, 60, "the old group writes")
        until(lambda: groups.stands(groups.new) == {Results.PAUSED}, 60, "the new group is paused")
        config = cluster.config(path / "otto.properties", OTTO)

        def told() -> str:
            command = ["groups", "switch", groups.old, groups.new, "--config", config, "--timeout", "60"]
            code = run(command)
            found = capsys.readouterr()
            if code == 0:
                return str(found.out.strip())
            (line,) = found.err.splitlines()
            return str(line)

        for group in (groups.old, groups.new):
            line = told()
            assert line.startswith(f"roster: error: group {group!r}: ")
            assert "grant this client READ on the group" in line
            cluster.allow(OTTO, GROUP, group, READ)
        assert told() == (
            f"roster: error: OLD: {groups.old} has no offsets that this client sees; grant it READ on the topics of "
            f"{groups.old}"
        )
        cluster.allow(OTTO, TOPIC, groups.topic, READ)
        for group in map(request_group, (groups.new, groups.old)):
            line = told()
            assert line.startswith(f"roster: error: group {group!r}: ")
            assert "grant this client READ on the group" in line
            assert groups.stands(groups.new) == {Results.PAUSED}, "nobody was asked"
            cluster.allow(OTTO, GROUP, group, READ)
        assert told().startswith(f"{groups.new} writes, {groups.old} is paused")
        assert groups.stands(groups.new) == {Results.WRITES}
        until(lambda: groups.stands(groups.old) == {Results.PAUSED}, 60, "the old group has noticed")


def test_the_command_names_each_right_that_it_lacks(roster: Guarded, tmp_path: Path, capsys: Any) -> None:
    switched_with_rights_given_one_by_one(roster, tmp_path, capsys)


@pytest.mark.gate
def test_the_command_names_each_right_that_it_lacks_on_apache_kafka(
    apache: Guarded, tmp_path: Path, capsys: Any
) -> None:
    switched_with_rights_given_one_by_one(apache, tmp_path, capsys)


def test_an_application_names_each_right_that_it_lacks(roster: Guarded, caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="roster.pipeline")
    with Groups(roster, runs=False) as groups, roster.client(OTTO) as admin:
        roster.allow(OTTO, TOPIC, groups.topic, READ)
        positions = dict.fromkeys(groups.partitions, 0)
        request = Request("s", groups.old, groups.new)

        def look(group: str, standing: Standing) -> tuple[str, list[str]]:
            """The level and the group of each line, and the steps taken."""
            caplog.clear()
            switching = Switching(group, admin, paused=False, keeps_state=False)
            metadata = standing.added_to("")
            switching.assigned({p: OffsetAndMetadata(0, metadata=metadata) for p in groups.partitions})
            steps = {str(each.results) for each in switching.next_steps(positions).values()}
            lines = [record for record in caplog.records if "cannot be switched" in record.message]
            for line in lines:
                assert line.message.startswith(f"{group}: cannot be switched: group '")
                assert "grant this client READ on the group" in line.message
            return " ".join(f"{line.levelname} {line.message.split(chr(39))[1]}" for line in lines), sorted(steps)

        paused = Standing(Results.PAUSED)
        for group, peer, standing in ((groups.old, groups.new, Standing()), (groups.new, groups.old, paused)):
            assert look(group, standing) == (f"INFO {request_group(group)}", [])
            roster.allow(OTTO, GROUP, request_group(group), DESCRIBE)
            assert look(group, standing) == ("", [])
            ask_for_switch(roster.admin, group, request, groups.partitions[0])
            assert look(group, standing) == (f"INFO {peer}", [])
        waits = Standing(Results.WAITS, "s", groups.old)
        assert look(groups.new, waits) == (f"WARNING {groups.old}", []), "amid a switch"
        for group in (groups.old, groups.new):
            roster.allow(OTTO, GROUP, group, DESCRIBE)
            roster.admin.commit_group_offsets(group, {p: OffsetAndMetadata(0) for p in groups.partitions})
        assert look(groups.new, paused) == ("", [Results.WAITS])
