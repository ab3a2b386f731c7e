"""Kafka's names and values made into a checked `Security`; each mistake is one error with the key and the fix."""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from roster.security.errors import SettingError
from roster.security.properties import read_jaas, read_properties
from roster.security.settings import (
    MECHANISMS,
    PLAINTEXT,
    PROTOCOLS,
    SCRAM_MECHANISMS,
    SECURITY_OPTIONS,
    Security,
    TokenFunction,
)

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_JKS, _DER = b"\xfe\xed\xfe\xed", b"\x30"
_MOST_BYTES = 16 << 20


def read_pem(key: str, path: str, *, to_convert: str = "") -> str:
    """Return the text of the PEM file at `path`, the value of the setting `key`.

    `to_convert` is the command that makes PEM of a store; without it a general one is named. Raises SettingError if the
    file cannot be read or is not PEM.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError(
            key, f"{path} cannot be read ({reason})", "name a PEM file that this user may read"
        ) from None
    if data.startswith(_JKS):
        first = f"keytool -importkeystore -srckeystore {file.name} -destkeystore store.p12 -deststoretype PKCS12"
        raise SettingError(
            key, f"{path} is a Java keystore (JKS)", f"convert it: {first}; {_from_pkcs12('store.p12', to_convert)}"
        )
    if data.startswith(_DER):
        raise SettingError(
            key, f"{path} is binary (PKCS12 or DER)", f"convert it: {_from_pkcs12(file.name, to_convert)}"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingError(key, f"{path} is not a PEM file", "name a file with -----BEGIN CERTIFICATE-----") from None


def _from_pkcs12(name: str, options: str) -> str:
    return f"openssl pkcs12 -in {name} {options} -out store.pem".replace("  ", " ")


def certificates(key: str, text: str) -> str:
    """Return the certificates in PEM text. Raises SettingError if it has none."""
    blocks = [block[0] for block in _BLOCK.finditer(text) if block[1].endswith("CERTIFICATE")]
    if not blocks:
        raise SettingError(key, "it contains no certificate", "it must have -----BEGIN CERTIFICATE----- in it")
    return "\n".join(blocks) + "\n"


def private_key(key: str, text: str) -> str:
    """Return the private key in PEM text. Raises SettingError unless there is exactly one."""
    blocks = [block[0] for block in _BLOCK.finditer(text) if block[1].endswith("PRIVATE KEY")]
    if len(blocks) != 1:
        problem = "it contains no private key" if not blocks else f"it contains {len(blocks)} private keys"
        raise SettingError(key, problem, "it must have one block -----BEGIN … PRIVATE KEY-----")
    return blocks[0] + "\n"


def is_encrypted(private: str) -> bool:
    """Return True if a private key in PEM needs a password."""
    return "BEGIN ENCRYPTED PRIVATE KEY" in private or "Proc-Type: 4,ENCRYPTED" in private


_ALIASES = {"sasl.mechanisms": "sasl.mechanism"}
"""librdkafka's other names."""

_ELSEWHERE = frozenset(
    {
        *("acks", "auto.offset.reset", "batch.size", "buffer.memory", "client.dns.lookup", "client.rack"),
        *("compression.type", "connections.max.idle.ms", "default.api.timeout.ms", "delivery.timeout.ms"),
        *("enable.auto.commit", "enable.idempotence", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes"),
        *("group.id", "group.instance.id", "group.protocol", "heartbeat.interval.ms", "isolation.level"),
        *("key.deserializer", "key.serializer", "linger.ms", "max.block.ms", "max.partition.fetch.bytes"),
        *("max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms", "partition.assignment.strategy"),
        *("reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms", "retries", "retry.backoff.ms"),
        *("session.timeout.ms", "socket.connection.setup.timeout.ms", "value.deserializer", "value.serializer"),
    }
)
"""Settings of other clients that a shared file may hold; Roster has options of its own for them."""

_REFUSED = {
    "sasl.kerberos.": "Roster does not speak Kerberos; use SCRAM-SHA-512, PLAIN or OAUTHBEARER",
    "sasl.login.": "leave it out; for OAUTHBEARER use sasl.oauthbearer.token.function",
    "sasl.client.callback.": "leave it out; for OAUTHBEARER use sasl.oauthbearer.token.function",
    "sasl.oauthbearer.": "use sasl.oauthbearer.token.function, a Python function that returns the token",
    "ssl.truststore.password": "leave it out: a PEM file has no password",
    "ssl.keystore.password": "leave it out: a PEM file has none; the key's password is ssl.key.password",
    "schema.registry.": "leave it out: Roster talks to brokers only",
    "basic.auth.": "leave it out: Roster talks to brokers only",
}
"""Beginnings of names that other clients know, with the fix."""

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """Contents of a properties file: security, and bootstrap servers and client id, empty if absent."""

    security: Security
    bootstrap: str = ""
    client_id: str = ""


def load_properties(path: str | Path) -> ClientProperties:
    """Read a properties file, as Kafka's tools take it for `--command-config`.

    Raises:
        SettingError: the file cannot be read, or a setting is unknown, wrong or contradicts another; `key` is the file
            or the setting.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SettingError(str(path), f"cannot be read ({reason})", "name a properties file") from None
    return parse_properties(text)


def parse_properties(text: str) -> ClientProperties:
    """Read the text of a properties file. Raises SettingError as `load_properties` does."""
    properties = read_properties(text)
    bootstrap, client_id = properties.pop("bootstrap.servers", ""), properties.pop("client.id", "")
    secure = {key: value for key, value in properties.items() if key not in _ELSEWHERE}
    return ClientProperties(parse_security(secure), bootstrap, client_id)


def parse_security(given: Security | Mapping[str, object] | None) -> Security:
    """Return checked settings, given by their names in Kafka's clients; None stands for PLAINTEXT.

    Files are read here. Raises SettingError for a name that is unknown, a value that is wrong, and settings that
    contradict each other.
    """
    if given is None:
        return PLAINTEXT
    if isinstance(given, Security):
        return given
    if not isinstance(given, Mapping):
        raise SettingError("security", f"is a {type(given).__name__}", 'pass {"security.protocol": "SASL_SSL", …}')
    values = _Values(given)
    protocol = _protocol(values)
    security = Security(protocol=protocol)
    if security.uses_sasl:
        security = _with_sasl(values, protocol)
    return _with_tls(values, security) if security.uses_tls else security


class _Values:
    """The settings by name, known names only."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self.given: dict[str, object] = {}
        for name, value in given.items():
            key = _ALIASES.get(name, name)
            check_name(key, SECURITY_OPTIONS, "a security setting", _OTHERWISE)
            if key in self.given and self.given[key] != value:
                raise SettingError(name, f"contradicts {key}", "give one of them")
            if value is not None:
                self.given[key] = value

    def text(self, key: str) -> str:
        """Return the value, "" where there is none."""
        value = self.given.get(key, "")
        if not isinstance(value, str):
            raise SettingError(key, f"is a {type(value).__name__}", "give text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SettingError(key, "is not Unicode text", "give text that has a UTF-8 form") from None
        return value

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """Return one of the values allowed, in any case, or ""."""
        value = self.text(key).strip().upper()
        if value and value not in allowed:
            fix = f"use {', '.join(allowed[:-1])} or {allowed[-1]}"
            raise SettingError(key, f"{value[:60]!r} is not one that Roster knows", fix)
        return value

    def flag(self, key: str) -> bool:
        """Return a yes or no; the option's default where there is none."""
        value = self.given.get(key, SECURITY_OPTIONS[key].default)
        text = str(value).strip().lower()
        if text not in (*_TRUE, *_FALSE):
            raise SettingError(key, f"{text[:60]!r} is neither true nor false", "write true or false")
        return text in _TRUE

    def first(self, *keys: str) -> str:
        """Return the first key of these that is given, "" if there is none."""
        return next((key for key in keys if key in self.given), "")

    def one_of(self, *keys: str) -> str:
        """Return the one key of these that is given, "" if there is none; two are a contradiction."""
        given_keys = [key for key in keys if self.given.get(key)]
        if len(given_keys) > 1:
            raise SettingError(given_keys[1], f"contradicts {given_keys[0]}", "give one of them")
        return given_keys[0] if given_keys else ""


_OTHERWISE = "leave it out: only security, bootstrap.servers and client.id count"


def check_name(key: object, known: Collection[str], what: str, otherwise: str) -> None:
    """Raise SettingError unless the name is known. otherwise: the fix for a name like none of these."""
    if key in known:
        return
    if not isinstance(key, str):
        raise SettingError(repr(key)[:60], "is not the name of a setting", "give names such as 'security.protocol'")
    for beginning, fix in _REFUSED.items():
        if key.startswith(beginning):
            raise SettingError(key, "is not supported", fix)
    near = difflib.get_close_matches(key, known, 1)
    raise SettingError(key, f"is not {what} that Roster knows", f"did you mean {near[0]}?" if near else otherwise)


def _protocol(values: _Values) -> str:
    """Return the protocol. A setting without effect under it is refused: the connection would look safer than it is."""
    protocol = values.choice("security.protocol", PROTOCOLS)
    has_sasl = any(key.startswith("sasl.") for key in values.given)
    for key in values.given:
        is_sasl, is_tls = key.startswith("sasl."), "ssl." in key
        if not protocol and (is_sasl or is_tls):
            wanted = "SASL_SSL (or SASL_PLAINTEXT)" if is_sasl else "SASL_SSL" if has_sasl else "SSL"
            problem = f"is missing, and {key} is given"
            raise SettingError("security.protocol", problem, f"set security.protocol={wanted}")
        if is_sasl and not protocol.startswith("SASL"):
            better = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT or SASL_SSL"
        elif is_tls and not protocol.endswith("SSL"):
            better = "SASL_SSL" if protocol.startswith("SASL") else "SSL or SASL_SSL"
        else:
            continue
        fix = f"set it to {better}, or leave {key} out"
        raise SettingError(key, f"has no effect with security.protocol={protocol}", fix)
    return protocol or "PLAINTEXT"


# SASL.


def _with_sasl(values: _Values, protocol: str) -> Security:
    named = values.text("sasl.mechanism").strip().upper()
    if named == "GSSAPI":
        raise SettingError("sasl.mechanism", "GSSAPI is not supported", f"use {', '.join(MECHANISMS)}")
    mechanism = values.choice("sasl.mechanism", MECHANISMS)
    if not mechanism:
        raise SettingError(
            "sasl.mechanism", f"is missing with security.protocol={protocol}", f"set one of {', '.join(MECHANISMS)}"
        )
    if mechanism == "OAUTHBEARER":
        token, extensions = _bearer(values)
        return Security(protocol=protocol, mechanism=mechanism, token=token, extensions=extensions)
    username, password = _credentials(values, mechanism)
    return Security(protocol=protocol, mechanism=mechanism, username=username, password=password)


def _credentials(values: _Values, mechanism: str) -> tuple[str, str]:
    if key := values.first("sasl.oauthbearer.token.function", "sasl.oauthbearer.extensions"):
        raise SettingError(key, f"has no effect with sasl.mechanism={mechanism}", "set sasl.mechanism=OAUTHBEARER")
    names = ("sasl.username", "sasl.password")
    if not (jaas := values.text("sasl.jaas.config")):
        credentials = [values.text(name) for name in names]
    elif key := values.first(*names):
        raise SettingError(key, "contradicts sasl.jaas.config", "give one of them")
    else:
        credentials = [*read_jaas(jaas, mechanism)]
    for name, value in zip(names, credentials, strict=True):
        if not value:
            raise SettingError(name, f"is missing with sasl.mechanism={mechanism}", "set it, or sasl.jaas.config")
    for name, value in zip(names, credentials, strict=True):
        if "\0" in value:
            raise SettingError(name, "has a zero byte, which SASL cannot carry", "correct it")
    return credentials[0], credentials[1]


def _bearer(values: _Values) -> tuple[TokenFunction, tuple[tuple[str, str], ...]]:
    if key := values.first("sasl.username", "sasl.password", "sasl.jaas.config"):
        fix = f"leave it out, or set sasl.mechanism={SCRAM_MECHANISMS[-1]} or PLAIN"
        raise SettingError(key, "has no effect with sasl.mechanism=OAUTHBEARER", fix)
    key = "sasl.oauthbearer.token.function"
    source = values.given.get(key)
    if isinstance(source, TokenFunction):
        function = source
    elif callable(source):
        function = TokenFunction(source)
    elif isinstance(source, str) and _FUNCTION.fullmatch(source.strip()):
        function = TokenFunction(source.strip())
    else:
        problem = "is missing with sasl.mechanism=OAUTHBEARER" if source is None else "is not a function"
        raise SettingError(key, problem, "give a function, or module:function, that returns the token")
    function.resolve()
    return function, _extensions(values.text("sasl.oauthbearer.extensions"))


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for name, equals, _ in pairs:
        if not equals or not re.fullmatch("[A-Za-z]+", name.strip()) or name.strip() == "auth":
            raise SettingError(
                "sasl.oauthbearer.extensions", f"{name[:40]!r} is not name=value", "write name=value,name=value"
            )
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


# TLS.


def _with_tls(values: _Values, security: Security) -> Security:
    from roster.security.tls import tls_context  # noqa: PLC0415 - ssl is loaded only where it is needed

    _check_types(values)
    ca = _pem(values, "ssl.ca.location", "ssl.ca.pem", "ssl.truststore.location", "ssl.truststore.certificates")
    certificate, key = _client_certificate(values)
    secured = replace(
        security,
        ca=ca,
        certificate=certificate,
        key=key,
        key_password=values.text("ssl.key.password"),
        check_hostname=_checks_hostname(values),
        verify=values.flag("enable.ssl.certificate.verification"),
    )
    if not secured.verify and secured.ca:
        name = "enable.ssl.certificate.verification"
        raise SettingError(name, "contradicts the CA that is given", "leave it out")
    tls_context(secured)
    return secured


def _pem(values: _Values, *keys: str) -> str:
    """Return the certificates of the one key that is given, "" without one."""
    key = values.one_of(*keys)
    return certificates(key, _content(values, key, "-nokeys")) if key else ""


def _content(values: _Values, key: str, to_convert: str) -> str:
    return read_pem(key, values.text(key), to_convert=to_convert) if key.endswith(".location") else values.text(key)


def _check_types(values: _Values) -> None:
    for kind in ("ssl.truststore.type", "ssl.keystore.type"):
        named = values.text(kind).strip().upper()
        if named not in ("", "PEM"):
            fix = "convert the store to PEM (`openssl pkcs12 -in STORE.p12 -out store.pem`; a JKS first to PKCS12 with"
            raise SettingError(kind, f"{named[:20]} is not supported", f"{fix} `keytool -importkeystore`) and set PEM")


def _client_certificate(values: _Values) -> tuple[str, str]:
    chain = values.one_of(
        "ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location", "ssl.keystore.certificate.chain"
    )
    private = values.one_of("ssl.key.location", "ssl.key.pem", "ssl.keystore.key")
    if chain == "ssl.keystore.location":
        if private:
            raise SettingError(private, f"contradicts {chain}, which holds the key", "give one of them")
        private = chain
    if not chain and not private:
        if "ssl.key.password" in values.given:
            raise SettingError("ssl.key.password", "is given without a key", "set ssl.key.location")
        return "", ""
    if not chain:
        raise SettingError(private, "is given without a certificate", "set ssl.certificate.location")
    if not private:
        raise SettingError(chain, "is given without its private key", "set ssl.key.location")
    key = private_key(private, _content(values, private, ""))
    if is_encrypted(key) and not values.text("ssl.key.password"):
        raise SettingError("ssl.key.password", f"is missing: the key of {private} is encrypted", "set it")
    return certificates(chain, _content(values, chain, "")), key


def _checks_hostname(values: _Values) -> bool:
    key = "ssl.endpoint.identification.algorithm"
    named = str(values.given.get(key, "https")).strip().lower()
    if named not in ("https", "", "none"):
        raise SettingError(
            key, f"{named[:20]!r} is not one that Roster knows", "use https, or leave it empty for no check"
        )
    return named == "https"
