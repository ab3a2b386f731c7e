"""Security settings of a broker, named after Kafka's broker configuration."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from roster.broker.errors import BrokerStartError
from roster.broker.security.principals import PrincipalRules
from roster.model.options import Option, declared
from roster.security.settings import SecurityProtocol

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENT_AUTH = ("none", "requested", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity(SecurityProtocol):
    """Security of the listener and of requests; times are milliseconds. Raises BrokerStartError for a contradiction.

    Names are those of Kafka's broker configuration with underscores; files are PEM.
    """

    protocol: Annotated[
        str,
        Option(
            help="what the listener speaks: TLS or not, logins (SASL) or not",
            choices=PROTOCOLS,
            flag="security-protocol",
        ),
    ] = "PLAINTEXT"
    ssl_keystore_location: Annotated[
        Path | None,
        Option(
            help="PEM file with the broker's private key and certificate chain",
            kafka="ssl.keystore.location",
            flag="ssl-keystore-location",
        ),
    ] = None
    ssl_key_password_file: Annotated[
        Path | None,
        Option(
            help="file with the password of that key: on a command line all users would see it",
            flag="ssl-key-password-file",
        ),
    ] = None
    ssl_truststore_location: Annotated[
        Path | None,
        Option(
            help="PEM file of the CAs that sign clients' certificates",
            kafka="ssl.truststore.location",
            flag="ssl-truststore-location",
        ),
    ] = None
    ssl_client_auth: Annotated[
        str,
        Option(
            help="whether clients show a certificate",
            choices=CLIENT_AUTH,
            kafka="ssl.client.auth",
            flag="ssl-client-auth",
        ),
    ] = "none"
    ssl_principal_mapping_rules: Annotated[
        str,
        Option(
            help="how a certificate's name becomes a user, as in RULE:^CN=([a-z]+).*$/$1/",
            kafka="ssl.principal.mapping.rules",
            flag="ssl-principal-mapping-rules",
        ),
    ] = "DEFAULT"
    sasl_enabled_mechanisms: Annotated[
        tuple[str, ...],
        Option(
            help="of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, with commas between them",
            kafka="sasl.enabled.mechanisms",
            flag="sasl-enabled-mechanisms",
        ),
    ] = MECHANISMS[1:]
    connections_max_reauth_ms: Annotated[
        int,
        Option(
            help="how long a login lasts before it has to be renewed; 0: as long as the connection",
            unit="ms",
            least=0,
            kafka="connections.max.reauth.ms",
            flag="connections-max-reauth-ms",
        ),
    ] = 0
    authorizer: Annotated[
        bool, Option(help="let ACLs decide what a client may do; without, all may do all", flag="authorizer")
    ] = False
    super_users: Annotated[
        frozenset[str],
        Option(
            help="principals that may do everything, as User:NAME, with semicolons between them",
            kafka="super.users",
            flag="super-users",
        ),
    ] = frozenset()
    allow_everyone_if_no_acl_found: Annotated[
        bool,
        Option(
            help="let all use a resource for which there is no ACL",
            kafka="allow.everyone.if.no.acl.found",
            flag="allow-everyone-if-no-acl-found",
        ),
    ] = False
    allow_plaintext: Annotated[
        bool, Option(help="listen without TLS where other machines can connect", flag="allow-plaintext")
    ] = False

    @property
    def principal_rules(self) -> PrincipalRules:
        """How a certificate's subject becomes a principal."""
        return PrincipalRules.parse(self.ssl_principal_mapping_rules)

    def __post_init__(self) -> None:
        for name, option in declared(BrokerSecurity).items():
            if problem := option.problem(getattr(self, name)):
                raise BrokerStartError(f"--{option.flag}: {problem}")
        if unknown := sorted(set(self.sasl_enabled_mechanisms) - set(MECHANISMS)):
            raise BrokerStartError(f"--sasl-enabled-mechanisms: {unknown[0]!r} is not one of {', '.join(MECHANISMS)}")
        if self.uses_sasl and not self.sasl_enabled_mechanisms:
            raise BrokerStartError(f"--sasl-enabled-mechanisms: name at least one of {', '.join(MECHANISMS)}")
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
