"""Security settings of a broker, named after Kafka's broker configuration."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from roster.broker.errors import BrokerStartError
from roster.broker.security.principals import PrincipalRules
from roster.security.settings import SecurityProtocol

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENT_AUTH = ("none", "requested", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity(SecurityProtocol):
    """Security of the listener and of requests; times are milliseconds. Raises BrokerStartError for a contradiction.

    Names are those of Kafka's broker configuration with underscores; files are PEM.
    """

    protocol: str = "PLAINTEXT"
    ssl_keystore_location: Path | None = None
    """The broker's private key and certificate chain in one file."""
    ssl_key_password_file: Path | None = None
    """A file with the password of that key. Not Kafka's name: a password on a command line is seen by all users."""
    ssl_truststore_location: Path | None = None
    """The CAs that sign clients' certificates."""
    ssl_client_auth: str = "none"
    ssl_principal_mapping_rules: str = "DEFAULT"
    sasl_enabled_mechanisms: tuple[str, ...] = MECHANISMS[1:]
    connections_max_reauth_ms: int = 0
    """How long a login lasts; 0: as long as the connection."""
    authorizer: bool = False
    """True: ACLs decide what a client may do."""
    super_users: frozenset[str] = frozenset()
    """Principals that may do everything, as in `User:admin`."""
    allow_everyone_if_no_acl_found: bool = False
    allow_plaintext: bool = False
    """Listen without TLS on other addresses than loopback."""

    @property
    def principal_rules(self) -> PrincipalRules:
        """How a certificate's subject becomes a principal."""
        return PrincipalRules.parse(self.ssl_principal_mapping_rules)

    def __post_init__(self) -> None:
        _one_of("--security-protocol", self.protocol, PROTOCOLS)
        _one_of("--ssl-client-auth", self.ssl_client_auth, CLIENT_AUTH)
        for mechanism in self.sasl_enabled_mechanisms:
            _one_of("--sasl-enabled-mechanisms", mechanism, MECHANISMS)
        if self.uses_sasl and not self.sasl_enabled_mechanisms:
            raise BrokerStartError(f"--sasl-enabled-mechanisms: name at least one of {', '.join(MECHANISMS)}")
        if self.connections_max_reauth_ms < 0:
            raise BrokerStartError("--connections-max-reauth-ms: must not be negative; 0 switches it off")
        self._check_tls()
        for name in self.super_users:
            if not name.startswith("User:") or len(name) == len("User:"):
                raise BrokerStartError(f"--super-users: {name!r} is not a principal; write User:NAME")
        self.principal_rules  # noqa: B018 - raises for rules that are malformed

    def _check_tls(self) -> None:
        files = {
            "--ssl-keystore-location": self.ssl_keystore_location,
            "--ssl-truststore-location": self.ssl_truststore_location,
            "--ssl-key-password-file": self.ssl_key_password_file,
        }
        given = [option for option, path in files.items() if path is not None]
        if not self.uses_tls:
            if given or self.ssl_client_auth != "none":
                option = given[0] if given else "--ssl-client-auth"
                raise BrokerStartError(f"{option}: needs --security-protocol SSL or SASL_SSL, not {self.protocol}")
            return
        if self.ssl_keystore_location is None:
            raise BrokerStartError(
                f"--ssl-keystore-location: {self.protocol} needs a PEM file with the broker's key and certificate"
            )
        if self.ssl_client_auth != "none" and self.ssl_truststore_location is None:
            raise BrokerStartError(
                f"--ssl-truststore-location: --ssl-client-auth {self.ssl_client_auth} needs a PEM file with the CA of"
                " the clients"
            )

    def check_listener(self, host: str) -> None:
        """Raise BrokerStartError for a listener without TLS that other machines can reach."""
        if self.uses_tls or self.allow_plaintext or is_loopback(host):
            return
        raise BrokerStartError(
            f"--listen {host}: {self.protocol} on an address that other machines reach; set --security-protocol SSL or"
            " SASL_SSL, listen on 127.0.0.1, or give --allow-plaintext if the network is trusted"
        )


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BrokerStartError(f"{option}: {value!r} is not one of {', '.join(allowed)}")
