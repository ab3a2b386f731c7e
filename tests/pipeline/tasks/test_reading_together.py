"""Small splits are read by one request, and each has the records that it would read alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from roster.pipeline.batch import Split
from roster.pipeline.tasks import reader
from roster.pipeline.tasks.reader import ReaderConfig, ReadError, are_held, read_splits, read_together
from roster.records.connections import Connections
from roster.testing.embedded import EmbeddedBroker
from roster.wire.messages import FetchRequest
from tests.pipeline.tasks.test_unreadable_batches import garbage, send

if TYPE_CHECKING:
    from collections.abc import Iterator

SPLITS = [Split("a", 0, 0, 3), Split("a", 1, 1, 2), Split("a", 2, 0, 0), Split("b", 0, 0, 2)]


@pytest.fixture
def config() -> Iterator[ReaderConfig]:
    with EmbeddedBroker() as broker:
        broker.create_topic("a", 3)
        broker.create_topic("b", 1)
        for topic, partition, values in (("a", 0, "pqr"), ("a", 1, "stu"), ("a", 2, "v"), ("b", 0, "wxy")):
            broker.produce(topic, list(values), partition=partition)
        send(broker, broker.create_topic("bad"), garbage(2))
        yield ReaderConfig(broker.bootstrap, "group", read_timeout_ms=5_000)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[FetchRequest]:
    sent, send_on = list[FetchRequest](), Connections.send

    def noted(self: Connections, broker: int, address: Any, request: Any) -> None:
        if isinstance(request, FetchRequest):
            sent.append(request)
        send_on(self, broker, address, request)

    monkeypatch.setattr(Connections, "send", noted)
    return sent


def values(config: ReaderConfig, split: Split) -> list[bytes]:
    return [value for batch in read_splits(config, [split]) for value in batch.column("value").to_pylist()]


def test_one_request_for_all_splits(config: ReaderConfig, fetches: list[FetchRequest]) -> None:
    alone = [values(config, split) for split in SPLITS]
    assert alone == [[b"p", b"q", b"r"], [b"t"], [], [b"w", b"x"]]
    assert len(fetches) == 3
    fetches.clear()
    with read_together(config, SPLITS):
        assert are_held(SPLITS)
        assert [values(config, split) for split in SPLITS] == alone
        (fetch,) = fetches
        assert sum(len(topic.partitions) for topic in fetch.topics) == 3
        assert values(config, SPLITS[0]) == alone[0], "and once more, as a task that is repeated does"
        assert len(fetches) == 2
    with read_together(config, SPLITS[:2]):
        assert not are_held(SPLITS)
    fetches.clear()
    assert values(config, SPLITS[0]) == alone[0]
    assert len(fetches) == 1, "nothing is held for later"


def test_what_cannot_be_read_together_is_left_to_each(
    config: ReaderConfig, fetches: list[FetchRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, gone, good = Split("bad", 0, 0, 2), Split("a", 1, 9, 10), SPLITS[0]
    for wrong, match in ((bad, "cannot be read"), (gone, "a-1")):
        with read_together(config, [wrong, good]):
            assert values(config, good) == [b"p", b"q", b"r"]
            with pytest.raises(ReadError, match=match):
                values(config, wrong)
    for limit in ("_MOST_BYTES", "_MOST_OFFSETS"):
        with monkeypatch.context() as patch:
            patch.setattr(reader, limit, 3)
            fetches.clear()
            with read_together(config, SPLITS):
                assert [len(values(config, split)) for split in SPLITS] == [3, 1, 0, 2]
            assert (len(fetches) == 3) is (limit == "_MOST_OFFSETS"), "what is too much is not asked for together"


def test_a_broker_that_is_away_is_waited_for_once(config: ReaderConfig) -> None:
    away = ReaderConfig("127.0.0.1:1", "group", read_timeout_ms=300)
    with pytest.raises(ReadError, match="no record for 300 ms"), read_together(away, SPLITS):
        raise AssertionError("it waited and went on")
