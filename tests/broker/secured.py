"""A broker with TLS, logins and ACLs, and what its clients need."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from roster.broker.security.config import BrokerSecurity
from roster.broker.security.store import SecurityStore, new_credential
from roster.client import Admin
from roster.testing.broker import running_broker
from tests.real.realparts.secured import Certificates, make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from roster.broker import Broker

PASSWORDS = {"admin": "s3cr3t-of-admin", "rita": "s3cr3t-of-rita", "otto": "s3cr3t-of-otto"}
"""The super user, the user with rights on what begins with `shop`, and the one without any right."""
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def add_users(data_dir: Path, passwords: dict[str, str]) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    store = SecurityStore(data_dir)
    users = {
        name: {mechanism: new_credential(mechanism, password, 4096) for mechanism in MECHANISMS}
        for name, password in passwords.items()
    }
    store.save(users, ())


class Secured:
    """A running broker: `settings(user)` are those of Roster's clients, by their names in Kafka's."""

    def __init__(self, broker: Broker, certificates: Certificates) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self.certificates = certificates

    def settings(
        self, user: str = "rita", password: str | None = None, mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user] if password is None else password,
            "ssl.ca.location": self.certificates["ca"],
        }

    def admin(self, user: str = "admin") -> Admin:
        return Admin(self.bootstrap, security=self.settings(user), request_timeout_ms=60_000)


@contextlib.contextmanager
def secured_broker(
    directory: Path,
    security: dict[str, Any] | None = None,
    certificates: Certificates | None = None,
    **settings: Any,
) -> Iterator[Secured]:
    """A broker on SASL_SSL with an authorizer; `security` replaces settings of BrokerSecurity."""
    certificates = certificates or make_certificates(directory)
    data_dir = directory / "data"
    add_users(data_dir, PASSWORDS)
    chosen: dict[str, Any] = {
        "protocol": "SASL_SSL",
        "ssl_keystore_location": directory / "broker.pem",
        "sasl_enabled_mechanisms": ("PLAIN", *MECHANISMS),
        "authorizer": True,
        "super_users": frozenset({"User:admin"}),
        **(security or {}),
    }
    with running_broker(data_dir, security=BrokerSecurity(**chosen), **settings) as broker:
        yield Secured(broker, certificates)
