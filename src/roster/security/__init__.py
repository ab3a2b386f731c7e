"""TLS and SASL of a connection to Kafka: settings by their Kafka names, TLS contexts, the exchange that logs in."""

from typing import TYPE_CHECKING

from roster._on_demand import on_demand

if TYPE_CHECKING:
    from roster.security.errors import AuthenticationFailed, SettingError
    from roster.security.parse import ClientProperties, load_properties, parse_properties, parse_security
    from roster.security.settings import PLAINTEXT, Security, TokenFunction
else:
    __getattr__ = on_demand(__name__, ("errors", "settings", "parse"))

__all__ = [
    "PLAINTEXT",
    "AuthenticationFailed",
    "ClientProperties",
    "Security",
    "SettingError",
    "TokenFunction",
    "load_properties",
    "parse_properties",
    "parse_security",
]
