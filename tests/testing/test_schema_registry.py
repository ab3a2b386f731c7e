"""The registry of the test kit, and Roster's client of registries: held to by Confluent's own client."""

from __future__ import annotations

import json
import pickle
import socketserver
import ssl
import threading
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from roster.schemas import Registered, Registry, RegistryError
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
    with pytest.raises(RegistryError, match=r"409 .*the writer's long cannot be read as string") as refused:
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
            "'registry:8081' is not a URL of a registry; for example http://registry:8081",
        ),
        (lambda: Registry([]), "[] is not a URL of a registry; for example http://registry:8081"),
        (lambda: Registry(None), "None is not a URL of a registry; for example http://registry:8081"),  # type: ignore[arg-type]
        (
            lambda: Registry("http://registry", auth=("secret",)),  # type: ignore[arg-type]
            "auth: it is neither ('user', 'password') nor a bearer token as text",
        ),
        (lambda: Registry("http://registry", timeout=0), "timeout: 0 is not a number of seconds; for example 10.0"),
        (
            lambda: Registry("http://registry", timeout="5s"),  # type: ignore[arg-type]
            "timeout: '5s' is not a number of seconds; for example 10.0",
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


class _Answering(socketserver.BaseRequestHandler):
    """Reads a request and sends the server's `answer`, slowly if that has several parts."""

    def handle(self) -> None:
        self.request.recv(65_536)
        server: Any = self.server
        with suppress(OSError):
            for part in server.answer:
                self.request.sendall(part)
                if len(server.answer) > 1:
                    threading.Event().wait(0.02)


@contextmanager
def answering(*answer: bytes) -> Iterator[str]:
    """The URL of a registry that answers everything with these bytes."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Answering) as server:
        server.answer = answer  # type: ignore[attr-defined]
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


_ONE = '{"id":1,"schema":"x",'
BODIES = [
    *("[]", "{}", "5", "null", '"x"', "true", "[{}]", "<html></html>", "{"),
    *('{"id":1}', '{"schema":5}', '{"schema":null}', '{"schema":[]}'),
    *(f'{{"schema":"x","id":{each}}}' for each in ("null", "true", "1.5", '"x"', "[]", "{}")),
    *(f'{_ONE}"schemaType":{each}}}' for each in ("5", "true", '["AVRO"]')),
    *(f'{_ONE}"references":{each}}}' for each in ("5", "true", '"ab"', '{"a":1}', '["ab"]', "[5]", "[{}]", "[[]]")),
    *(
        f'{_ONE}"references":[{{{each}}}]}}'
        for each in (
            '"name":"a"',
            '"name":"a","subject":5,"version":1',
            '"name":"a","subject":"s","version":"x"',
            '"name":1,"subject":"s","version":1',
        )
    ),
]
BAD = {each: [http(each.encode())] for each in BODIES} | {
    "nothing": [b""],
    "no JSON": [http(b"\xff\xfe\x00")],
    "deep": [http(b"[" * 100_000)],
    "deep objects": [http(b'{"a":' * 100_000)],
    "digits": [http(b'{"id":' + b"9" * 100_000 + b"}")],
    "junk": [b"\x00\x01\x02junk\r\n\r\n"],
    "no status": [b"HTTP/1.1 abc\r\n\r\n"],
    "half an answer": [http(b"{}").replace(b"Length: 2", b"Length: 50")],
    "a negative length": [http(b"{}").replace(b"Length: 2", b"Length: -5")],
    "a chunk that is none": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    "many headers": [b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1_000 + b"\r\n{}"],
    "a long header": [b"HTTP/1.1 200 OK\r\na: " + b"x" * 100_000 + b"\r\n\r\n{}"],
    "a redirect": [http(b"", "302 Found\r\nLocation: http://127.0.0.1:1/x")],
    "a redirect to nowhere": [http(b"", "301 Moved")],
    "an error": [http(b"oops\x1b[31m\n\r\x00", "500 Internal")],
    "an error as JSON": [http(b'{"message": ["\\u001b[2J"], "error_code": {}}', "503 Away")],
    "an error that is deep": [http(b"[" * 50_000, "400 Bad")],
    "an error without an end": [http(b"x", "500 Internal").replace(b"Length: 1", b"Length: 90")],
    "continue for ever": [b"HTTP/1.1 100 Continue\r\n\r\n"] * 2_000,
    "a byte a moment": [b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", *[b" "] * 5_000],
    "a header a moment": [b"HTTP/1.1 200 OK\r\n", *[b"a: b\r\n"] * 90, *[b"a"] * 5_000],
    "an error a byte a moment": [b"HTTP/1.1 500 No\r\nContent-Length: 5000\r\n\r\n", *[b" "] * 5_000],
    "blanks without end": [b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (1 << 20)] + [b" " * (1 << 20)] * 40,
}


@pytest.mark.parametrize("what", BAD)
def test_an_answer_of_any_kind_is_one_error(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roster.schemas.registry._PAUSES", ())
    monkeypatch.setattr("roster.schemas.registry._MOST_BYTES", 2 << 20)
    with answering(*BAD[what]) as url:
        calls: list[Callable[[Registry], Any]] = [lambda r: r.latest("s"), lambda r: r.schema(1)]
        calls += [lambda r: r.register("s", "x"), lambda r: r.schema("a-b"), lambda r: r.schema(7)]
        for call in calls if len(BAD[what]) == 1 and what[:2] not in ('{"', "an") else calls[:1]:
            with pytest.raises(RegistryError) as caught:
                call(Registry(url, timeout=0.5))
            assert str(caught.value).isprintable()


def test_references_are_asked_for_once_each_however_often_they_are_named(registry: SchemaRegistry) -> None:
    registry.register("s0", "x0", "PROTOBUF")
    for n in range(1, 17):
        registry.register(
            f"s{n}", f"x{n}", "PROTOBUF", references=((f"a{n}", f"s{n - 1}", 1), (f"b{n}", f"s{n - 1}", 1))
        )
    registry.requests.clear()
    assert len(Registry(registry.url).latest("s16").references) == 16
    assert len(registry.requests) == 17


def test_a_registry_may_leave_the_id_out_of_what_a_guid_names() -> None:
    with answering(http(b'{"schema": "x", "guid": "a-b"}')) as url:
        assert Registry(url).schema("a-b") == Registered(-1, "AVRO", "x", {})
