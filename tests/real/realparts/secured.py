"""One Apache Kafka with a listener of every kind of security, ACLs, and certificates made for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives import serialization

from roster.client import Admin
from roster.model import TopicPartition
from tests.real.realparts.apache import ApacheKafka, free_ports
from tests.real.realparts.cluster import Cluster
from tests.waiting import until

USER, USER_PASSWORD = "rita", "s3cr3t-of-rita"
STRANGER, STRANGER_PASSWORD = "otto", "s3cr3t-of-otto"
"""The user with rights on what begins with `shop`, and one without any right."""
SESSION_MS = 1_500
"""How long a login lasts on the listener RENEWED."""

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{CONTROLLER}
listeners={listeners},CONTROLLER://127.0.0.1:{CONTROLLER}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL,SASL:SASL_PLAINTEXT,\
SECURE:SASL_SSL,RENEWED:SASL_SSL,WRONGNAME:SSL,EXPIRED:SSL
log.dirs={directory}/log
auto.create.topics.enable=false
num.network.threads=1
num.io.threads=4
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=8388608
offsets.topic.num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=150
group.min.session.timeout.ms=1000
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
ssl.keystore.type=PEM
ssl.truststore.type=PEM
ssl.truststore.location={directory}/ca.pem
ssl.keystore.location={directory}/broker.pem
listener.name.mutual.ssl.client.auth=required
listener.name.mutual.ssl.principal.mapping.rules=RULE:^.*CN=([a-z]+).*$/$1/
listener.name.wrongname.ssl.keystore.location={directory}/wrong-name.pem
listener.name.wrongname.ssl.keystore.type=PEM
listener.name.expired.ssl.keystore.location={directory}/expired.pem
listener.name.expired.ssl.keystore.type=PEM
listener.name.renewed.connections.max.reauth.ms={session_ms}
{sasl}
"""
_SASL = """\
listener.name.{name}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.{name}.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_rita="{password}" user_otto="{other}";
listener.name.{name}.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.{name}.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.{name}.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule \
required unsecuredLoginStringClaim_sub="rita";
listener.name.{name}.oauthbearer.sasl.server.callback.handler.class=\
org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler
"""
LISTENERS = ("PLAINTEXT", "SSL", "MUTUAL", "SASL", "SECURE", "RENEWED", "WRONGNAME", "EXPIRED")


@dataclass(frozen=True)
class Certificates:
    """PEM files of a directory by name, as in `certificates["other-ca"]`."""

    directory: Path

    def __getitem__(self, name: str) -> str:
        return str(self.directory / f"{name}.pem")


def make_certificates(directory: Path) -> Certificates:
    """A CA with the broker's certificates, of which one is expired and one for another host, clients', a foreign CA.

    A leaf's key is in NAME-key.pem too, and under the password `pa55` in NAME-encrypted-key.pem.
    """
    ca, foreign = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    foreign.cert_pem.write_to_path(str(directory / "other-ca.pem"))
    yesterday = datetime.now(UTC) - timedelta(days=1)
    leaves = {
        "broker": ca.issue_cert("127.0.0.1", "localhost"),
        "wrong-name": ca.issue_cert("kafka.example.org"),
        "expired": ca.issue_cert("127.0.0.1", "localhost", not_after=yesterday),
        "client": ca.issue_cert("rita", common_name="rita"),
        "expired-client": ca.issue_cert("rita", common_name="rita", not_after=yesterday),
        "foreign-client": foreign.issue_cert("rita", common_name="rita"),
    }
    for name, leaf in leaves.items():
        chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        key = _pkcs8(leaf.private_key_pem.bytes())
        (directory / f"{name}.pem").write_bytes(chain + key)
        (directory / f"{name}-key.pem").write_bytes(key)
        (directory / f"{name}-encrypted-key.pem").write_bytes(_pkcs8(key, b"pa55"))
    return Certificates(directory)


def _pkcs8(pem: bytes, password: bytes | None = None) -> bytes:
    """The form of a key that Java reads."""
    key = serialization.load_pem_private_key(pem, None)
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


class SecuredKafka(ApacheKafka):
    """A running broker: `address(listener)`, `certificates`; anonymous clients of the PLAINTEXT listener may do all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log_path = directory / "broker.log"
        self.certificates = make_certificates(directory)
        names = (*LISTENERS, "CONTROLLER")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        sasl = [
            _SASL.format(name=name.lower(), password=USER_PASSWORD, other=STRANGER_PASSWORD)
            for name in ("SASL", "SECURE", "RENEWED")
        ]
        settings = directory / "server.properties"
        settings.write_text(
            PROPERTIES.format(
                CONTROLLER=self.ports["CONTROLLER"],
                listeners=",".join(f"{name}://127.0.0.1:{self.ports[name]}" for name in LISTENERS),
                directory=directory,
                session_ms=SESSION_MS,
                sasl="\n".join(sasl),
            )
        )
        added = [
            word
            for user, password in ((USER, USER_PASSWORD), (STRANGER, STRANGER_PASSWORD))
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for word in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
        ]
        self._format(settings, *added)
        self._launch(settings)
        Cluster.__init__(self, "apache", self.address("PLAINTEXT"))
        try:
            self._await_ready()
            self._allow()
        except BaseException:
            self.stop()
            raise

    def address(self, listener: str) -> str:
        """Where that listener is."""
        return f"127.0.0.1:{self.ports[listener]}"

    def scram(
        self, password: str = USER_PASSWORD, user: str = USER, mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, str]:
        """Settings for the listener SECURE."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": self.certificates["ca"],
        }

    def ends(self, topic: str) -> dict[int, int]:
        """Log end offsets by partition."""
        with Admin(self.bootstrap) as admin:
            wanted = [TopicPartition(topic, number) for number in range(admin.list_topics()[topic])]
            return {found.partition: end for found, end in admin.end_offsets(wanted).items()}

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation, prefix: bool = False) -> None:
        """Give a user rights on a resource, or on all whose names begin so."""
        pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        acls = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for done in self.admin.create_acls(acls).values():
            done.result(60)
        # The controller has answered; the broker, which judges requests, learns of it a moment later.
        for acl in acls:
            until(lambda acl=acl: self._has(acl), what=f"the broker does not know {acl}")

    def _has(self, acl: AclBinding) -> bool:
        names = ("restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type")
        wanted = AclBindingFilter(*(getattr(acl, name) for name in names))
        return bool(self.admin.describe_acls(wanted).result(60))

    def _allow(self) -> None:
        everything = (AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE)
        more = (AclOperation.DESCRIBE, AclOperation.ALTER, AclOperation.DESCRIBE_CONFIGS)
        self.allow(USER, ResourceType.TOPIC, "shop", *everything, *more, prefix=True)
        self.allow(USER, ResourceType.GROUP, "shop", AclOperation.READ, AclOperation.DELETE, prefix=True)
