"""The settings of a secured connection, and their names in Kafka's clients.

Secrets are fields that `repr` leaves out. Files are read once, where the settings are made: tasks on other machines get
the certificates, not their paths.
"""

import importlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from roster.model.options import Option, by_name
from roster.security.errors import SettingError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER")

SECURITY_OPTIONS = by_name(
    [
        Option("security.protocol", " or ".join(PROTOCOLS), "what the listener speaks", "PLAINTEXT"),
        Option("sasl.mechanism", " or ".join(MECHANISMS), "how to log in; needed with SASL", None),
        Option("sasl.username", "text", "for PLAIN and SCRAM", None),
        Option("sasl.password", "secret", "for PLAIN and SCRAM", None),
        Option(
            "sasl.jaas.config",
            "secret",
            'user name and password as Java writes them: `…LoginModule required username="…" password="…";`',
            None,
        ),
        Option(
            "sasl.oauthbearer.token.function",
            "callable or `module:function`",
            "for OAUTHBEARER: called without arguments for each login, returns the token as text; Roster's own name",
            None,
        ),
        Option("sasl.oauthbearer.extensions", "text", "for OAUTHBEARER: `name=value`, several with commas", None),
        Option("ssl.ca.location", "path", "PEM file of the CAs to trust; default: the system's", None),
        Option("ssl.ca.pem", "PEM", "the same as text", None),
        Option("ssl.truststore.location", "path", "Java's name for `ssl.ca.location`; only PEM", None),
        Option("ssl.truststore.type", "PEM", "type of that file", None),
        Option("ssl.truststore.certificates", "PEM", "Java's name for `ssl.ca.pem`", None),
        Option("ssl.certificate.location", "path", "PEM file of the client's certificate chain", None),
        Option("ssl.certificate.pem", "PEM", "the same as text", None),
        Option("ssl.key.location", "path", "PEM file of the client's private key", None),
        Option("ssl.key.pem", "secret", "the same as text", None),
        Option("ssl.key.password", "secret", "of the client's private key", None),
        Option("ssl.keystore.location", "path", "Java's: a PEM file with the client's key and certificates", None),
        Option("ssl.keystore.type", "PEM", "type of that file", None),
        Option("ssl.keystore.key", "secret", "Java's name for `ssl.key.pem`", None),
        Option("ssl.keystore.certificate.chain", "PEM", "Java's name for `ssl.certificate.pem`", None),
        Option(
            "ssl.endpoint.identification.algorithm",
            "https or empty",
            "whether the broker's certificate must name its host; empty (librdkafka: none) switches the check off",
            "https",
        ),
        Option(
            "enable.ssl.certificate.verification",
            "bool",
            "librdkafka's: False trusts any certificate; for tests only",
            True,
        ),
    ]
)
"""Every security setting that Roster knows, by its name in Kafka's clients."""


@dataclass(frozen=True, slots=True)
class TokenFunction:
    """A source of OAUTHBEARER tokens: a callable, or the name of one that is imported where it is called.

    Two are equal if they were made as one, also after pickling: a connection is kept for its token's owner only.
    """

    source: Callable[[], str] | str = field(repr=False, compare=False)
    id: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)

    def token(self) -> str:
        """Return a fresh token.

        Raises SettingError if the function does not exist or does not return text, and what the function raises.
        """
        token = self.resolve()()
        if not isinstance(token, str):
            raise _no_token(f"returned {type(token).__name__}", "return the token as text")
        return token

    def resolve(self) -> Callable[[], str]:
        """Return the callable, imported if it was given by name. Raises SettingError if it cannot be."""
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise _no_token(
                f"{self.source!r} cannot be imported ({error})", "put its directory on PYTHONPATH"
            ) from None
        if not callable(function):
            raise _no_token(f"{self.source!r} is not a function", "name a function that returns the token")
        return cast("Callable[[], str]", function)


def _no_token(problem: str, fix: str) -> SettingError:
    return SettingError("sasl.oauthbearer.token.function", problem, fix)


class SecurityProtocol:
    """Properties of a security protocol, derived from its name."""

    __slots__ = ()
    protocol: str

    @property
    def uses_tls(self) -> bool:
        """True for SSL and SASL_SSL."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """True for SASL_PLAINTEXT and SASL_SSL."""
        return self.protocol.startswith("SASL")


@dataclass(frozen=True, slots=True)
class Security(SecurityProtocol):
    """How connections are secured; made by `parse_security` or `load_properties`, which check it.

    `ca`, `certificate` and `key` are PEM text, `ca` empty for the system's CAs. `repr` shows no secret; a pickle holds
    them all.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    token: TokenFunction | None = field(default=None, repr=False)
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True
    verify: bool = True


PLAINTEXT = Security()
"""No TLS and no SASL: the default."""
