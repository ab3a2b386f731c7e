"""DeleteRecords: Roster's broker answers as Apache Kafka does."""

from __future__ import annotations

from tests.real.realparts.exchange import scenario
from tests.real.test_same_answers_log import batch, fetch_fields, offsets_fields, topic_data
from tests.waiting import until


def fill(x, topic: str, *partitions: int, value: bytes = b"value") -> None:
    for partition in partitions:
        x.ask("Produce", 9, acks=-1, timeout_ms=9_000, topic_data=topic_data(topic, (partition, batch(value))))


@scenario
def test_deleting_records(x):
    topic = x.topic(partitions=2)
    compacted = x.stem + "-compacted"
    settings = [{"name": "cleanup.policy", "value": "compact"}]
    new = {"name": compacted, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": settings}
    x.ask("CreateTopics", 5, topics=[new], timeout_ms=10_000, validate_only=False)
    until(lambda: x.ask("Metadata", 9, topics=[{"name": compacted}])["topics"][0]["error_code"] == 0)
    for _ in range(4):
        fill(x, topic, 0)
    fill(x, compacted, 0)

    def delete(label: str, offset: int, *, name: str = topic, partition: int = 0, version: int = 2) -> None:
        asked = [{"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}]
        x.call(label, "DeleteRecords", version, topics=asked, timeout_ms=10_000)

    for version in range(3):
        delete(f"v{version} two", 1 + version, version=version)
    delete("less than before", 1)
    delete("behind the end", 5)
    delete("far behind the end", 1 << 40)
    delete("negative", -2)
    delete("unknown topic", 0, name=x.stem + "-no")
    delete("unknown partition", 0, partition=7)
    delete("of an empty partition", 0, partition=1)
    delete("of a compacted topic", 0, name=compacted)
    for offset in (2, 3, 4):
        x.call(f"fetch at {offset}", "Fetch", 12, **fetch_fields(topic, offset))
    x.call("offsets", "ListOffsets", 6, **offsets_fields(topic, (0, -2), (0, -1)))
    x.call("earliest", "ListOffsets", 6, **offsets_fields(topic, (0, -2)))
    delete("all", -1)
    x.call("earliest is the end", "ListOffsets", 6, **offsets_fields(topic, (0, -2)))
    fill(x, topic, 0)
    x.call("fetch what came later", "Fetch", 12, **fetch_fields(topic, 4))
    delete("the rest", 5)
