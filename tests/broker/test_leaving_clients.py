"""Clients that leave, and brokers that stop, while the catalogue is being changed: disk, memory and offsets agree."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from roster._files import sync_path, write_atomically
from roster.broker import topics
from roster.testing.broker import running_broker
from roster.wire import ErrorCode
from roster.wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    MetadataRequest,
)
from tests.broker.rawclient import RawClient
from tests.broker.test_protocol import metadata
from tests.broker.test_restart import commit, committed, create
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roster.broker import Broker
    from roster.wire import Message

CREATE = CreateTopicsRequest(
    topics=[
        CreateTopicsRequest.Topic(name="new", num_partitions=2, replication_factor=1),
        CreateTopicsRequest.Topic(name="newer", num_partitions=1, replication_factor=1),
    ]
)
CHANGES: dict[str, tuple[Message, int]] = {
    "create": (CREATE, 5),
    "auto-create": (
        MetadataRequest(topics=[MetadataRequest.Topic(name="new"), MetadataRequest.Topic(name="newer")]),
        9,
    ),
    "grow": (CreatePartitionsRequest(topics=[CreatePartitionsRequest.Topic(name="old", count=3)]), 0),
    "delete": (DeleteTopicsRequest(topic_names=["old", "older"]), 4),
    "configure": (
        IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.Resource(
                    resource_type=2,
                    resource_name="old",
                    configs=[
                        IncrementalAlterConfigsRequest.Resource.Config(
                            name="max.message.bytes", config_operation=0, value="12345"
                        )
                    ],
                )
            ]
        ),
        1,
    ),
    "producer id": (InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 1),
}


class Gate:
    """Stops the threads of `asyncio.to_thread` that change the data directory until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()
        to_thread = asyncio.to_thread

        async def held(function: Callable[..., Any], *arguments: Any) -> Any:
            def waiting() -> Any:
                self.entered.set()
                assert self._opened.wait(60)
                return function(*arguments)

            return await to_thread(waiting)

        monkeypatch.setattr(asyncio, "to_thread", held)
        self._monkeypatch = monkeypatch

    def open(self) -> None:
        self._monkeypatch.undo()
        self._opened.set()


def on_disk(data_dir: Path) -> dict[str, tuple[int, str | None]]:
    found = {}
    for path in (data_dir / "topics").glob("*/topic.json"):
        what = json.loads(path.read_bytes())
        found[path.parent.name] = (what["partitions"], what["settings"].get("max.message.bytes"))
    return found


def in_memory(broker: Broker) -> dict[str, tuple[int, str | None]]:
    services = broker._services
    assert services is not None
    return {topic.name: (len(topic.logs), topic.settings.get("max.message.bytes")) for topic in services.topics}


def prepared(data_dir: Path) -> Any:
    """A broker with two topics that have committed offsets."""
    return running_broker(data_dir, auto_create_topics=True)


def fill(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        for name in ("old", "older"):
            create(client, name)
            assert commit(client, "g", name, 7) == ErrorCode.NONE


def idle(broker: Broker) -> None:
    """Wait until every connection has ended."""
    until(lambda: not broker._connections)


EXPECTED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "create": lambda old: {**old, "new": (2, None), "newer": (1, None)},
    "auto-create": lambda old: {**old, "new": (1, None), "newer": (1, None)},
    "grow": lambda old: {**old, "old": (3, None)},
    "delete": lambda old: {name: what for name, what in old.items() if name not in ("old", "older")},
    "configure": lambda old: {**old, "old": (1, "12345")},
    "producer id": dict,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_runs_to_its_end_when_the_client_leaves_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The client leaves while a thread is about to write; the next client and the next start see the change."""
    request, version = CHANGES[change]
    with prepared(tmp_path) as broker:
        fill(broker)
        before = in_memory(broker)
        gate = Gate(monkeypatch)
        with RawClient(broker.address) as client:
            client.send(request, version)
            assert gate.entered.wait(60)
        until(lambda: any(connection._gone for connection in broker._connections.values()))
        gate.open()
        idle(broker)
        expected = EXPECTED[change](before)
        assert in_memory(broker) == on_disk(tmp_path) == expected
        with RawClient(broker.address) as client:
            offsets = {} if change == "delete" else {"old": 7, "older": 7}
            until(lambda: committed(client, "g") == offsets)  # tombstones are written after the topics are gone
            assert {topic.name for topic in client.ask(MetadataRequest(topics=None), 9).topics} == set(expected)
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        assert in_memory(broker) == expected
        assert committed(client, "g") == offsets


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_runs_to_its_end_when_the_broker_stops_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    request, version = CHANGES[change]
    with prepared(tmp_path) as broker, RawClient(broker.address) as client:
        fill(broker)
        before = in_memory(broker)
        gate = Gate(monkeypatch)
        client.send(request, version)
        assert gate.entered.wait(60)
        opener = threading.Thread(
            target=lambda: (until(lambda: any(c._stopping for c in broker._connections.values())), gate.open())
        )
        opener.start()
    opener.join(60)
    expected = EXPECTED[change](before)
    assert on_disk(tmp_path) == expected
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        assert in_memory(broker) == expected
        assert committed(client, "g") == ({} if change == "delete" else {"old": 7, "older": 7})


def test_producer_ids_are_reserved_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, version = CHANGES["producer id"]
    with running_broker(tmp_path) as broker:
        gate = Gate(monkeypatch)
        with RawClient(broker.address) as client:
            client.send(request, version)
            assert gate.entered.wait(60)
        with RawClient(broker.address) as other:
            other.send(request, version)
            until(lambda: any(connection._gone for connection in broker._connections.values()))
            gate.open()
            _, response = other.receive(request, version)
        assert response.producer_id == 1


class Refusals:
    """Disk operations that fail after they were done, as when the sync of a directory is refused; all of one kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.on = False

        def failing(name: str, function: Callable[..., None]) -> Callable[..., None]:
            def wrapped(*arguments: Any) -> None:
                function(*arguments)
                if self.on and kind == name:
                    raise OSError(5, "Input/output error")

            return wrapped

        monkeypatch.setattr(topics, "sync_path", failing("sync", sync_path))
        monkeypatch.setattr(topics, "write_atomically", failing("write", write_atomically))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("create", "write"),
        ("create", "sync"),
        ("auto-create", "sync"),
        ("grow", "write"),
        ("delete", "sync"),
        ("configure", "write"),
    ],
)
def test_a_change_the_disk_refuses_half_way_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, kind: str
) -> None:
    request, version = CHANGES[change]
    refusals = Refusals(monkeypatch, kind)
    with prepared(tmp_path) as broker, RawClient(broker.address) as client:
        fill(broker)
        before = in_memory(broker)
        refusals.on = True
        client.ask(request, version)
        refusals.on = False
        assert in_memory(broker) == on_disk(tmp_path) == before
        assert committed(client, "g") == {"old": 7, "older": 7}
        client.ask(request, version)
        assert in_memory(broker) == on_disk(tmp_path) == EXPECTED[change](before)
    assert not list((tmp_path / "scratch").iterdir())


def test_metadata_of_a_topic_that_could_not_be_created_creates_it_later(tmp_path: Path) -> None:
    with running_broker(tmp_path, auto_create_topics=True) as broker, RawClient(broker.address) as client:
        name = f"t-{uuid.uuid4().hex[:8]}"
        obstacle = tmp_path / "topics" / name
        (obstacle / "x").mkdir(parents=True)
        (refused,) = metadata(client, name, create=True)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (obstacle / "x").rmdir()
        (made,) = metadata(client, name, create=True)
        assert made.error_code == ErrorCode.NONE
