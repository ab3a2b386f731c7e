"""Security settings of a broker, named after Kafka's broker configuration."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from roster.broker.errors import BrokerStartError
from roster.model.options import declared, option
from roster.security.settings import SecurityProtocol

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENT_AUTH = ("none", "requested", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity(SecurityProtocol):
    """Security of the listener and of requests; times are milliseconds. Raises BrokerStartError for a contradiction.

    Names are those of Kafka's broker configuration with underscores; files are PEM.
    """

    protocol: str = option(
        "PLAINTEXT",
        "what the listener speaks: TLS or not, logins (SASL) or not",
        choices=PROTOCOLS,
        flag="security-protocol",
    )
    ssl_keystore_location: Path | None = option(
        None,
        "PEM file with the broker's private key and certificate chain",
        kafka="ssl.keystore.location",
        is_flag=True,
    )
    ssl_key_password_file: Path | None = option(
        None, "file with the password of that key: on a command line all users would see it", is_flag=True
    )
    ssl_truststore_location: Path | None = option(
        None, "PEM file of the CAs that sign clients' certificates", kafka="ssl.truststore.location", is_flag=True
    )
    ssl_client_auth: str = option(
        "none", "whether clients show a certificate", choices=CLIENT_AUTH, kafka="ssl.client.auth", is_flag=True
    )
    sasl_enabled_mechanisms: tuple[str, ...] = option(
        MECHANISMS[1:],
        "of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, with commas between them",
        kafka="sasl.enabled.mechanisms",
        is_flag=True,
    )
    connections_max_reauth_ms: int = option(
        0,
        "how long a login lasts before it has to be renewed; 0: as long as the connection",
        unit="ms",
        least=0,
        kafka="connections.max.reauth.ms",
        is_flag=True,
    )
    authorizer: bool = option(False, "let ACLs decide what a client may do; without, all may do all", is_flag=True)
    super_users: frozenset[str] = option(
        frozenset(),
        "principals that may do everything, as User:NAME, with semicolons between them",
        kafka="super.users",
        is_flag=True,
    )
    allow_everyone_if_no_acl_found: bool = option(
        False, "let all use a resource without an ACL", kafka="allow.everyone.if.no.acl.found", is_flag=True
    )
    allow_plaintext: bool = option(False, "listen without TLS where other machines can connect", is_flag=True)

    def __post_init__(self) -> None:
        for name, declaration in declared(BrokerSecurity).items():
            if problem := declaration.problem(getattr(self, name)):
                raise BrokerStartError(f"--{declaration.flag}: {problem}")
        if unknown := sorted(set(self.sasl_enabled_mechanisms) - set(MECHANISMS)):
            raise BrokerStartError(f"--sasl-enabled-mechanisms: {unknown[0]!r} is not one of {', '.join(MECHANISMS)}")
        if self.uses_sasl and not self.sasl_enabled_mechanisms:
            raise BrokerStartError(f"--sasl-enabled-mechanisms: name at least one of {', '.join(MECHANISMS)}")
        self._check_tls()
        for name in self.super_users:
            if not name.startswith("User:") or len(name) == len("User:"):
                raise BrokerStartError(f"--super-users: {name!r} is not a principal; write User:NAME")

    def _check_tls(self) -> None:
        files = {
            "--ssl-keystore-location": self.ssl_keystore_location,
            "--ssl-truststore-location": self.ssl_truststore_location,
            "--ssl-key-password-file": self.ssl_key_password_file,
        }
        options = [option for option, path in files.items() if path is not None]
        if not self.uses_tls:
            if options or self.ssl_client_auth != "none":
                option = options[0] if options else "--ssl-client-auth"
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
