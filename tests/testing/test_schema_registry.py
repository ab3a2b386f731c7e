"""The registry of the test kit, and Roster's client of registries: held to by Confluent's own client."""

from __future__ import annotations

import json
import pickle
import ssl
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from roster.schemas import Registry, RegistryError
from roster.testing import SchemaRegistry

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies warn of theirs
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def order(**fields: Any) -> str:
    made = [{"name": name, **(kind if isinstance(kind, dict) else {"type": kind})} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": made})


ONE = order(id="long")
TWO = order(id="long", shop={"type": "string", "default": ""})


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def test_confluents_client_registers_and_finds_schemas(registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    one = client.register_schema("orders-value", Schema(ONE, "AVRO"))
    two = client.register_schema("orders-value", Schema(TWO, "AVRO"))
    assert (one, two) == (1, 2)
    assert client.register_schema("other/value", Schema(ONE, "AVRO")) == one
    fresh = SchemaRegistryClient({"url": registry.url})
    assert fresh.get_schema(two).schema_str == TWO
    latest = fresh.get_latest_version("orders-value")
    assert (latest.schema_id, latest.version, latest.schema.schema_str) == (two, 2, TWO)
    assert fresh.get_version("orders-value", 1).schema.schema_str == ONE
    assert fresh.get_subjects() == ["orders-value", "other/value"]
    assert fresh.get_versions("orders-value") == [1, 2]
    assert fresh.lookup_schema("orders-value", Schema(TWO, "AVRO")).version == 2
    assert fresh.get_schema_by_guid(latest.guid).schema_str == TWO
    assert fresh.delete_subject("other/value") == [1]
    for missing in (lambda: fresh.get_schema(99), lambda: fresh.get_latest_version("none")):
        with pytest.raises(SchemaRegistryError, match="not found"):
            missing()


def test_confluents_client_is_told_of_incompatible_schemas(registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    client.register_schema("orders-value", Schema(ONE, "AVRO"))
    without = Schema(order(id="long", shop="string"), "AVRO")
    assert client.get_compatibility() == "BACKWARD"
    assert not client.test_compatibility("orders-value", without)
    with pytest.raises(SchemaRegistryError, match="field shop: the writer has none, and it has no default"):
        client.register_schema("orders-value", without)
    assert client.set_compatibility("orders-value", "FORWARD") == {"compatibility": "FORWARD"}
    assert client.test_compatibility("orders-value", without)
    client.register_schema("orders-value", without)
    with pytest.raises(SchemaRegistryError, match="Invalid schema: there is no type 'nothing'"):
        client.register_schema("orders-value", Schema('"nothing"', "AVRO"))


@pytest.mark.parametrize(
    ("before", "after", "level", "fits"),
    [
        (order(v="int"), order(v="long"), "BACKWARD", True),
        (order(v="int"), order(v="long"), "FORWARD", False),
        (order(v="long"), order(v=["null", "long"]), "BACKWARD", True),
        (order(v=["null", "long"]), order(v="long"), "BACKWARD", False),
        (order(v=["null", "long"]), order(v="long"), "FULL", False),
        (order(v="long"), order(v="string"), "NONE", True),
    ],
)
def test_levels_of_compatibility(registry: SchemaRegistry, before: str, after: str, level: str, *, fits: bool) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    client.set_compatibility(level=level)
    client.register_schema("s", Schema(before, "AVRO"))
    assert client.test_compatibility("s", Schema(after, "AVRO")) is fits


def test_references_are_schemas_of_their_own(registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    item = '{"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "n", "type": "int"}]}'
    client.register_schema("item", Schema(item, "AVRO"))
    refers = Schema(order(item="shop.Item"), "AVRO", [SchemaReference("shop.Item", "item", 1)])
    made = client.register_schema("orders-value", refers)
    found = Registry(registry.url).schema(made)
    assert found is not None
    assert (found.kind, found.text, dict(found.references)) == (
        "AVRO",
        order(item="shop.Item"),
        {"shop.Item": (1, item)},
    )


def test_the_client_asks_once_for_an_id_and_for_a_guid(registry: SchemaRegistry) -> None:
    made = registry.register("orders-value", ONE)
    client = Registry(registry.url)
    for _ in range(3):
        found, latest = client.schema(made), client.latest("orders-value")
        assert found is not None
        assert (found.id, found.text, latest) == (made, ONE, found)
    assert registry.requests == [f"GET /schemas/ids/{made}", "GET /subjects/orders-value/versions/latest"]
    guid = SchemaRegistryClient({"url": registry.url}).get_latest_version("orders-value").guid
    by_guid = client.schema(guid)
    assert by_guid is not None
    assert by_guid.text == ONE
    assert client.schema(99) is None
    assert client.register("orders-value", TWO) == made + 1
    with pytest.raises(RegistryError, match=r"404 Subject 'none' not found. \(error code 40401\)"):
        client.latest("none")
    with pytest.raises(RegistryError, match=r"409 .*the writer's long is no string") as refused:
        client.register("orders-value", order(id="string"))
    assert refused.value.status == 409


def test_the_client_asks_again_while_a_registry_is_away(registry: SchemaRegistry) -> None:
    made = registry.register("orders-value", ONE)
    registry.fail(2, 503)
    found = Registry(["http://127.0.0.1:1", registry.url]).schema(made)
    assert found is not None
    assert registry.requests == [f"GET /schemas/ids/{made}"] * 3
    registry.fail(1, 403)
    with pytest.raises(RegistryError, match="403 told to fail"):
        Registry(registry.url).schema(made)


@pytest.mark.parametrize("auth", [("user", "secret"), "token"])
def test_a_login_by_tls_is_sent_and_never_shown(auth: Any, tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with SchemaRegistry(auth=auth, tls=context) as registry:
        made = registry.register("s", ONE)
        security = {"ssl.ca.location": str(tmp_path / "ca.pem")}
        client = Registry(registry.url, auth=auth, security=security)
        assert client.schema(made) is not None
        assert repr(client) == f"Registry({registry.url})"
        with pytest.raises(TypeError, match="stays on the driver"):
            pickle.dumps(client)
        with pytest.raises(RegistryError, match="401 Unauthorized"):
            Registry(registry.url, auth=("user", "wrong"), security=security).schema(made)
        conf = {"url": registry.url, "ssl.ca.location": str(tmp_path / "ca.pem")}
        if isinstance(auth, tuple):
            theirs = SchemaRegistryClient({**conf, "basic.auth.user.info": ":".join(auth)})
            assert theirs.get_schema(made).schema_str == ONE


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            lambda: Registry("registry:8081"),
            "'registry:8081' is no URL of a registry; for example http://registry:8081",
        ),
        (lambda: Registry([]), "[] is no URL of a registry; for example http://registry:8081"),
        (lambda: Registry(None), "None is no URL of a registry; for example http://registry:8081"),  # type: ignore[arg-type]
        (
            lambda: Registry("http://registry", auth=("secret",)),  # type: ignore[arg-type]
            "auth: it is neither ('user', 'password') nor a bearer token as text",
        ),
        (lambda: Registry("http://registry", timeout=0), "timeout: 0 is no number of seconds; for example 10.0"),
        (
            lambda: Registry("http://registry", timeout="5s"),  # type: ignore[arg-type]
            "timeout: '5s' is no number of seconds; for example 10.0",
        ),
        (
            lambda: Registry("http://registry", security={"ssl.ca.location": "ca.pem"}),
            "security: it has no effect, as the URL has no TLS; for example https://registry:8081",
        ),
    ],
)
def test_a_wrong_argument_is_refused_without_a_request(made: Callable[[], Registry], problem: str) -> None:
    with pytest.raises(RegistryError) as error:
        made()
    assert str(error.value) == problem
