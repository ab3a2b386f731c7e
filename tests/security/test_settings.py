"""Security settings by Kafka's names: what is accepted, and one error with key and fix for each mistake."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from roster.security import PLAINTEXT, Security, SettingError, load_properties, parse_properties, parse_security
from roster.security.settings import SECURITY_OPTIONS
from tests.real.realparts.secured import Certificates, make_certificates

SCRAM = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "u", "sasl.password": "hidden"}
PLAIN_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p\\"w";'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def a_token() -> str:
    return "token"


def test_without_settings_it_is_plaintext() -> None:
    assert parse_security(None) == parse_security({}) == PLAINTEXT
    assert parse_security({"security.protocol": "plaintext"}) == PLAINTEXT
    assert parse_security(PLAINTEXT) is PLAINTEXT


def test_scram_by_librdkafkas_names_and_by_javas() -> None:
    ours = parse_security({"security.protocol": "SASL_PLAINTEXT", **SCRAM})
    assert (ours.mechanism, ours.username, ours.password) == ("SCRAM-SHA-256", "u", "hidden")
    alias = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "SCRAM-SHA-256"}
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = {**alias, "sasl.jaas.config": f"{module} required username='u' password=hidden ;"}
    assert parse_security(jaas) == ours


def test_jaas_with_quotes_and_escapes() -> None:
    found = parse_security(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_JAAS}
    )
    assert found.password == 'p"w'


def test_certificates_are_read_at_once(files: Certificates) -> None:
    given = {
        "security.protocol": "SSL",
        "ssl.ca.location": files["ca"],
        "ssl.certificate.location": files["client"],
        "ssl.key.location": files["client-encrypted-key"],
        "ssl.key.password": "pa55",
    }
    found = parse_security(given)
    assert found.uses_tls
    assert "BEGIN CERTIFICATE" in found.ca
    assert "PRIVATE KEY" not in found.certificate
    assert "ENCRYPTED PRIVATE KEY" in found.key
    inline = {
        "security.protocol": "SSL",
        "ssl.ca.pem": Path(files["ca"]).read_text(),
        "ssl.certificate.pem": Path(files["client"]).read_text(),
        "ssl.key.pem": Path(files["client-encrypted-key"]).read_text(),
        "ssl.key.password": "pa55",
    }
    assert parse_security(inline) == found


def test_javas_pem_stores(files: Certificates) -> None:
    found = parse_security(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": files["ca"],
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": files["client"],
        }
    )
    theirs = parse_security(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": files["ca"],
            "ssl.certificate.location": files["client"],
            "ssl.key.location": files["client-key"],
        }
    )
    assert found == theirs


@pytest.mark.parametrize(("text", "checks"), [("https", True), ("HTTPS", True), ("", False), ("none", False)])
def test_the_host_name_is_checked_unless_switched_off(text: str, checks: bool) -> None:
    found = parse_security({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": text})
    assert found.check_hostname is checks


BEARER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def test_a_token_function_given_or_named() -> None:
    given = parse_security({**BEARER, "sasl.oauthbearer.token.function": a_token})
    named = parse_security({**BEARER, "sasl.oauthbearer.token.function": f"{__name__}:a_token"})
    assert given.token is not None
    assert named.token is not None
    assert given.token.token() == named.token.token() == "token"
    again = pickle.loads(pickle.dumps(named))
    assert again == named
    assert hash(again) == hash(named)
    assert given != parse_security({**BEARER, "sasl.oauthbearer.token.function": a_token})


def test_extensions_of_a_token() -> None:
    extended = {**BEARER, "sasl.oauthbearer.token.function": a_token, "sasl.oauthbearer.extensions": "a=1, b=x=y"}
    assert parse_security(extended).extensions == (("a", "1"), ("b", "x=y"))


SASL = {"security.protocol": "SASL_PLAINTEXT"}
SSL = {"security.protocol": "SSL"}
MISTAKES = [
    ({"security.protocol": "TLS"}, "security.protocol", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    ({"security.protocol": 5}, "security.protocol", "give text"),
    ({"securty.protocol": "SSL"}, "securty.protocol", r"did you mean security\.protocol"),
    ({"ssl.ca.lokation": "x"}, "ssl.ca.lokation", r"did you mean ssl\.ca\.location"),
    ({"foo": "x"}, "foo", "leave it out"),
    ({3: "x"}, "3", "give names"),
    ({"sasl.password": "hidden"}, "security.protocol", "SASL_SSL"),
    ({"ssl.ca.location": "x"}, "security.protocol", "set security.protocol=SSL"),
    ({"security.protocol": "PLAINTEXT", **SCRAM}, "sasl.mechanism", "SASL_PLAINTEXT or SASL_SSL"),
    ({**SSL, **SCRAM}, "sasl.mechanism", "set it to SASL_SSL"),
    ({**SASL, **SCRAM, "ssl.ca.location": "x"}, "ssl.ca.location", "set it to SASL_SSL"),
    (SASL, "sasl.mechanism", "is missing"),
    ({**SASL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism", "GSSAPI is not supported"),
    ({**SASL, "sasl.mechanism": "SCRAM-SHA-1"}, "sasl.mechanism", "SCRAM-SHA-256"),
    ({**SASL, "sasl.mechanism": "PLAIN"}, "sasl.username", "is missing"),
    ({**SASL, "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password", "is missing"),
    ({**SASL, **SCRAM, "sasl.password": "hid\0den"}, "sasl.password", "zero byte"),
    ({**SASL, **SCRAM, "sasl.password": "hid\ud800"}, "sasl.password", "Unicode"),
    ({**SASL, **SCRAM, "sasl.jaas.config": PLAIN_JAAS}, "sasl.username", "contradicts"),
    (
        {**SASL, "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": PLAIN_JAAS},
        "sasl.jaas.config",
        "sasl.mechanism=PLAIN",
    ),
    ({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": "hidden"}, "sasl.jaas.config", "LoginModule required"),
    (
        {**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_JAAS.replace("username", "user")},
        "sasl.jaas.config",
        "no username",
    ),
    (
        {**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": "com.sun.Krb5LoginModule required a=b;"},
        "sasl.jaas.config",
        "Krb5LoginModule",
    ),
    ({**BEARER}, "sasl.oauthbearer.token.function", "is missing"),
    ({**BEARER, "sasl.oauthbearer.token.function": "nowhere:f"}, "sasl.oauthbearer.token.function", "PYTHONPATH"),
    ({**BEARER, "sasl.oauthbearer.token.function": "json:nothing"}, "sasl.oauthbearer.token.function", "PYTHONPATH"),
    ({**BEARER, "sasl.oauthbearer.token.function": "nonsense"}, "sasl.oauthbearer.token.function", "module:function"),
    ({**BEARER, "sasl.password": "hidden"}, "sasl.password", "OAUTHBEARER"),
    ({**SASL, **SCRAM, "sasl.oauthbearer.token.function": a_token}, "sasl.oauthbearer.token.function", "OAUTHBEARER"),
    ({**SASL, **SCRAM, "sasl.mechanisms": "PLAIN"}, "sasl.mechanisms", "contradicts"),
    ({**SASL, "sasl.kerberos.service.name": "kafka"}, "sasl.kerberos.service.name", "SCRAM"),
    ({"sasl.oauthbearer.token.endpoint.url": "x"}, "sasl.oauthbearer.token.endpoint.url", "token.function"),
    ({**SSL, "ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location", "No such file"),
    ({**SSL, "ssl.ca.location": "/"}, "ssl.ca.location", "cannot be read"),
    ({**SSL, "ssl.ca.pem": "nonsense"}, "ssl.ca.pem", "no certificate"),
    (
        {**SSL, "ssl.ca.pem": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"},
        "ssl.ca.location",
        "cannot be used",
    ),
    ({**SSL, "ssl.ca.pem": "x", "ssl.ca.location": "y"}, "ssl.ca.pem", "contradicts ssl.ca.location"),
    ({**SSL, "ssl.truststore.type": "JKS"}, "ssl.truststore.type", "openssl pkcs12"),
    ({**SSL, "ssl.truststore.password": "hidden"}, "ssl.truststore.password", "leave it out"),
    ({**SSL, "ssl.endpoint.identification.algorithm": "ldaps"}, "ssl.endpoint.identification.algorithm", "https"),
    ({**SSL, "enable.ssl.certificate.verification": "perhaps"}, "enable.ssl.certificate.verification", "true or false"),
    ({**SSL, "ssl.key.password": "hidden"}, "ssl.key.password", "without a key"),
    ({**SSL, "ssl.cipher.suites": "x"}, "ssl.cipher.suites", "is not a security setting"),
]


@pytest.mark.parametrize(("given", "key", "said"), MISTAKES)
def test_a_mistake_is_one_error_with_its_key_and_the_fix(given: dict[str, object], key: str, said: str) -> None:
    with pytest.raises(SettingError, match=said) as caught:
        parse_security(given)
    assert caught.value.key == key
    assert caught.value.fix
    assert "hid" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_and_certificates_that_do_not_fit(files: Certificates, tmp_path: Path) -> None:
    chain, key = {"ssl.certificate.location": files["client"]}, {"ssl.key.location": files["client-key"]}
    locked = {"ssl.key.location": files["client-encrypted-key"]}
    cases = [
        (chain, "ssl.certificate.location", "without its private key"),
        (key, "ssl.key.location", "without a certificate"),
        ({**chain, "ssl.key.location": files["ca"]}, "ssl.key.location", "no private key"),
        ({**chain, "ssl.key.location": files["broker-key"]}, "ssl.key.location", "not the key of the certificate"),
        ({**chain, **locked}, "ssl.key.password", "is encrypted"),
        ({**chain, **locked, "ssl.key.password": "hidden"}, "ssl.key.password", "does not open"),
        ({"ssl.keystore.location": files["client"], **key}, "ssl.key.location", "contradicts"),
        ({**chain, "ssl.keystore.location": files["client"]}, "ssl.keystore.location", "contradicts"),
    ]
    for given, at, said in cases:
        with pytest.raises(SettingError, match=said) as caught:
            parse_security({**SSL, **given})
        assert caught.value.key == at
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("head", "said"), [(b"\xfe\xed\xfe\xed", "keytool -importkeystore"), (b"\x30\x82", "openssl pkcs12")]
)
def test_a_store_of_java_says_how_to_convert_it(head: bytes, said: str, tmp_path: Path) -> None:
    store = tmp_path / "kafka.truststore"
    store.write_bytes(head + bytes(40))
    with pytest.raises(SettingError, match=said):
        parse_security({**SSL, "ssl.truststore.location": str(store)})


def test_no_repr_shows_a_secret(files: Certificates) -> None:
    found = parse_security(
        {
            "security.protocol": "SASL_SSL",
            **SCRAM,
            "ssl.ca.location": files["ca"],
            "ssl.certificate.location": files["client"],
            "ssl.key.location": files["client-encrypted-key"],
            "ssl.key.password": "pa55",
        }
    )
    shown = repr(found) + str(found)
    assert "'u'" in shown
    assert [secret for secret in ("hidden", "pa55", "BEGIN") if secret in shown] == []
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_file_of_properties(tmp_path: Path, files: Certificates) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "# as a provider hands it out\n"
        "bootstrap.servers=kafka.example.org:9093\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=PLAIN\n"
        f"sasl.jaas.config={PLAIN_JAAS.replace(chr(92), chr(92) * 2)}\n"
        f"ssl.ca.location = {files['ca']}\n"
        "client.dns.lookup=use_all_dns_ips\n"
        "session.timeout.ms=45000\n"
        "acks=all\n"
        "client.id: me\n"
    )
    found = load_properties(path)
    assert (found.bootstrap, found.client_id) == ("kafka.example.org:9093", "me")
    assert (found.security.protocol, found.security.password) == ("SASL_SSL", 'p"w')


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        load_properties(tmp_path / "none")
    path = tmp_path / "latin.properties"
    path.write_bytes(b"sasl.password=\xe9")
    with pytest.raises(SettingError, match="not UTF-8"):
        load_properties(path)


def test_secrets_among_the_options_are_called_so() -> None:
    secret = {name for name, option in SECURITY_OPTIONS.items() if "secret" in option.kind}
    assert secret == {
        *("sasl.password", "sasl.jaas.config", "ssl.key.pem", "ssl.key.password", "ssl.keystore.key"),
    }


def test_every_property_of_a_file_must_be_known() -> None:
    with pytest.raises(SettingError, match=r"did you mean sasl\.username"):
        parse_properties("security.protocol=SASL_SSL\nsasl.usrname=x")
    assert isinstance(parse_properties("").security, Security)
