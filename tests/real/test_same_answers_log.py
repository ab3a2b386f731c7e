"""Topics and records: Roster's broker answers as Apache Kafka does."""

from __future__ import annotations

import struct
import time
import zlib
from uuid import UUID

import google_crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.broker.batches import record
from tests.real.realparts.exchange import ACCIDENTAL, Exchange, scenario
from tests.waiting import until

NOW = 1_700_000_000_000
UNKNOWN_ID = UUID(int=0x1234)

DUPLICATE = {
    r"repeated.*: responses\[0\].partition_responses\[0\].log_append_time_ms 17\d* but -1$": "whose time it is"
}


def batch(
    *values: bytes, timestamp: int = NOW, producer: int = -1, epoch: int = -1, sequence: int = -1, codec: int = 0
) -> bytes:
    """One record batch; record i has the timestamp + i."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, producer, epoch, sequence, 1 << 20)
    for index, value in enumerate(values):
        builder.append(index, timestamp + index, b"key", value, [])
    return bytes(builder.build())


def topic_data(topic: str, *records: tuple[int, bytes | None]) -> list[dict]:
    return [{"name": topic, "partition_data": [{"index": index, "records": data} for index, data in records]}]


def produce(x: Exchange, label: str, topic: str, data: bytes | None, *, version: int = 9, acks: int = -1, partition=0):
    fields = {"acks": acks, "timeout_ms": 5_000, "topic_data": topic_data(topic, (partition, data))}
    return x.call(label, "Produce", version, transactional_id=None, **fields)


def keyed(
    *keys: bytes | None, codec: int = 0, deltas: tuple[int, ...] = (), body: bytes = b"", count: int = 0
) -> bytes:
    """One record batch of records with these keys, not checked at all: offset deltas, bytes and count may be wrong."""
    records = [record(delta, 0, key, b"v") for delta, key in zip(deltas or range(len(keys)), keys, strict=True)]
    body = body or b"".join(records)
    body = zlib.compress(body, wbits=31) if codec else body
    number = count or len(keys)
    rest = struct.pack(">hiqqqhii", codec, number - 1, NOW, NOW, -1, -1, -1, number) + body
    return struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, google_crc32c.value(rest)) + rest


def timed(*times: int, codec: int = 0) -> bytes:
    """One record batch of records with these times."""
    records = [record(index, at - times[0], b"k", b"v") for index, at in enumerate(times)]
    body = zlib.compress(b"".join(records), wbits=31) if codec else b"".join(records)
    count = len(times)
    rest = struct.pack(">hiqqqhii", codec, count - 1, times[0], max(times), -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, google_crc32c.value(rest)) + rest


def fetch_fields(topic: str, offset: int = 0, partition: int = 0, version: int = 12, **more) -> dict:
    wanted = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
        **{key: more.pop(key) for key in ("partition_max_bytes", "current_leader_epoch") if key in more},
    }
    if version < 12:
        del wanted["last_fetched_epoch"]
    fields = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "topics": [{"topic": topic, "partitions": [wanted]}],
        "forgotten_topics_data": [],
        **more,
    }
    if version <= 14:
        fields["replica_id"] = -1
    if version >= 7:
        fields = {"session_id": 0, "session_epoch": -1, **fields}
    return fields


def offsets_fields(topic: str, *wanted: tuple[int, int], epoch: int = -1) -> dict:
    partitions = [
        {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
        for partition, timestamp in wanted
    ]
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": partitions}]}


@scenario
def test_metadata_of_topics(x):
    topic = x.topic(partitions=3)
    for version in range(13):
        more = {"allow_auto_topic_creation": False} if version >= 4 else {}
        unknown = [{"name": topic}, {"name": x.stem + "-no"}, {"name": "not a name!"}]
        x.call(f"v{version}", "Metadata", version, topics=unknown, **more)
        if version >= 1:
            x.call(f"v{version} none", "Metadata", version, topics=[], **more)
    every = x.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False)
    x.note("among all topics", [entry for entry in every["topics"] if entry["name"] == topic])
    identity = next(entry["topic_id"] for entry in every["topics"] if entry["name"] == topic)
    for version in (10, 11, 12, 13):
        by_id = [{"name": None, "topic_id": identity}, {"name": None, "topic_id": UNKNOWN_ID}]
        x.call(f"v{version} by id", "Metadata", version, topics=by_id, allow_auto_topic_creation=False)
    for version in (10, 11):
        both = [{"name": topic, "topic_id": identity}, {"name": topic, "topic_id": UNKNOWN_ID}]
        x.call(f"v{version} by name and id", "Metadata", version, topics=both, allow_auto_topic_creation=False)
        x.call(f"v{version} by name again", "Metadata", version, topics=[{"name": topic}])


NUMBERS = {
    "message.timestamp.after.max.ms": (
        "0",
        "-1",
        "9223372036854775807",
        "9223372036854775808",
        "x",
        "",
        " 1",
        "+1",
        "+-1",
        "1 1",
        "\n2 ",
    ),
    "message.timestamp.before.max.ms": ("0", "-1"),
    "retention.ms": ("-1", "-2", "0"),
    "retention.bytes": ("-1", "-2", "-9223372036854775808"),
    "max.message.bytes": ("0", "-1"),
    "segment.ms": ("0", "1"),
    "flush.ms": ("0", "-1"),
    "flush.messages": ("0", "1"),
    "delete.retention.ms": ("0", "-1"),
    "min.compaction.lag.ms": ("0", "-1"),
    "max.compaction.lag.ms": ("0", "1"),
    "min.insync.replicas": ("0", "1"),
}


@scenario
def test_creating_topics(x):
    taken = x.topic("taken")

    def create(label: str, version: int = 7, validate_only: bool = False, name: str | None = None, **change) -> None:
        topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **change}
        topic["name"] = name if name is not None else f"{x.stem}-{len(x.log)}"
        fields = {"topics": [topic], "timeout_ms": 10_000, "validate_only": validate_only}
        result = x.ask("CreateTopics", version, **fields)["topics"][0]
        unsettled = {"topic_id", "configs"}  # ids are random even where nothing is created; brokers know other settings
        x.note(f"v{version} {label}", {key: value for key, value in result.items() if key not in unsettled})

    for version in range(2, 8):
        create("good", version)
        create("exists", version, name=taken)
        create("only validated", version, validate_only=True)
    for name in ("", ".", "..", "with space", "slash/", "x" * 249, "x" * 250, "ümlaut"):
        create(f"name {name[:8]!r}", name=name, validate_only=True)
    create("no partitions", num_partitions=0)
    create("default partitions", num_partitions=-1, replication_factor=-1)
    create("negative partitions", num_partitions=-2)
    for count in (9_999, 10_000, 10_001):
        create(f"{count} partitions", num_partitions=count, validate_only=True)
    create("too many replicas", replication_factor=3)
    create("no replicas", replication_factor=0)
    create("negative replicas", replication_factor=-2)
    assigned = {"num_partitions": -1, "replication_factor": -1}
    create("assigned", **assigned, assignments=[{"partition_index": 0, "broker_ids": [1]}])
    create("assigned to a stranger", **assigned, assignments=[{"partition_index": 0, "broker_ids": [7]}])
    create("assigned with a gap", **assigned, assignments=[{"partition_index": 1, "broker_ids": [1]}])
    create("assigned and counted", assignments=[{"partition_index": 0, "broker_ids": [1]}])
    create("known setting", configs=[{"name": "cleanup.policy", "value": "compact"}])
    create("unknown setting", configs=[{"name": "no.such.setting", "value": "1"}])
    create("bad value", configs=[{"name": "cleanup.policy", "value": "nonsense"}])
    for value in ("compact,delete", "delete,compact", "compact, delete", "compact,compact", "compact,nonsense"):
        create(f"policies {value}", configs=[{"name": "cleanup.policy", "value": value}], validate_only=True)
    for value in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd", "none", "GZIP", "", " gzip\t"):
        create(f"compression {value}", configs=[{"name": "compression.type", "value": value}], validate_only=True)
    for name, values in NUMBERS.items():
        for value in values:
            create(f"{name} {value!r}", configs=[{"name": name, "value": value}], validate_only=True)
    for lags in (("2", "1"), ("1", "2")):
        names = ("min.compaction.lag.ms", "max.compaction.lag.ms")
        configs = [{"name": name, "value": lag} for name, lag in zip(names, lags, strict=True)]
        create(f"lags {lags}", configs=configs, validate_only=True)
    dotted, stem = x.stem.replace("_", "-"), x.stem.replace("_", "-")
    create("dots", name=f"{stem}.a.b")
    for name in ("_a_b", ".a_b", "_a.b", ".a.b", "-a.b", ".a.c"):
        create(f"beside dots {name}", name=dotted + name, validate_only=True)
    x.call("gone", "DeleteTopics", 4, topic_names=[f"{stem}.a.b"], timeout_ms=10_000)
    create("in place of dots", name=f"{stem}_a_b")
    twice = {"name": x.stem + "-twice", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    x.call("twice", "CreateTopics", 7, topics=[twice, dict(twice)], timeout_ms=1_000, validate_only=False)
    x.call("none", "CreateTopics", 7, topics=[], timeout_ms=1_000, validate_only=False)


def compacted_topic(x: Exchange) -> str:
    """Kafka's cleaner deletes old records of such topics every 15 s, and these are of a fixed old time."""
    name = x.stem + "-compacted"
    values = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    settings = [{"name": each, "value": value} for each, value in values.items()]
    new = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": settings}
    x.ask("CreateTopics", 5, topics=[new], timeout_ms=10_000, validate_only=False)
    until(lambda: x.ask("Metadata", 9, topics=[{"name": name}])["topics"][0]["error_code"] == 0)
    return name


BAD_RECORDS = {
    r"^(garbage 0|the same offset twice|a gap).*: error_code -1 but 87$": f"{ACCIDENTAL}Kafka's UNKNOWN_SERVER_ERROR"
}


@scenario(known=BAD_RECORDS)
def test_records_of_compacted_topics(x):
    """Words about single records aside."""
    topic = compacted_topic(x)

    def send(label: str, data: bytes, version: int = 9) -> None:
        fields = {"acks": -1, "timeout_ms": 5_000, "topic_data": topic_data(topic, (0, data))}
        answer = x.ask("Produce", version, transactional_id=None, **fields)["responses"][0]["partition_responses"][0]
        said = {name: answer[name] for name in ("error_code", "base_offset", "log_start_offset")}
        x.note(label, {**said, "records": [each["batch_index"] for each in answer.get("record_errors", [])]})

    for codec in (0, 1):
        send(f"keys {codec}", keyed(b"a", b"", b"b", codec=codec))
        send(f"no keys {codec}", keyed(b"a", None, b"b", None, codec=codec))
        send(f"no keys {codec}, v7", keyed(b"a", None, codec=codec), version=7)
        send(f"garbage {codec}", keyed(body=b"\xff" * 100, count=3, codec=codec))
        send(f"too few {codec}", keyed(b"a", b"b", count=3, codec=codec))
        send(f"too many {codec}", keyed(b"a", b"b", count=1, codec=codec))
    send("the same offset twice, compressed", keyed(b"a", b"b", codec=1, deltas=(0, 0)))
    send("a gap, compressed", keyed(b"a", b"b", codec=1, deltas=(0, 2)))
    x.call(
        "deletes records",
        "DeleteRecords",
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}],
        timeout_ms=10_000,
    )


@scenario
def test_growing_topics(x):
    topic = x.topic(partitions=2)

    def grow(label: str, version: int = 3, name: str = topic, count: int = 3, assignments=None, **more) -> None:
        wanted = [{"name": name, "count": count, "assignments": assignments}]
        fields = {"topics": wanted, "timeout_ms": 10_000, "validate_only": False, **more}
        x.call(label, "CreatePartitions", version, **fields)

    grow("unknown topic", name=x.stem + "-no")
    grow("same", count=2)
    grow("fewer", count=1)
    grow("zero", count=0)
    grow("10,000 more", count=10_002, validate_only=True)
    grow("only validated", validate_only=True)
    for version in range(4):
        grow(f"v{version}", version, count=3 + version)
    twice = {"name": topic, "count": 9, "assignments": None}
    x.call("twice", "CreatePartitions", 3, topics=[twice, dict(twice)], timeout_ms=1_000, validate_only=False)
    grow("placed", count=7, assignments=[{"broker_ids": [1]}])
    grow("placed on a stranger", count=8, assignments=[{"broker_ids": [9]}])
    grow("placed, too few", count=10, assignments=[{"broker_ids": [1]}])


@scenario
def test_deleting_topics(x):
    for version in range(1, 6):
        topic = x.topic(f"v{version}")
        names = [topic, x.stem + "-no"]
        x.call(f"v{version}", "DeleteTopics", version, topic_names=names, timeout_ms=10_000)
    first, second = x.topic("first"), x.topic("second")
    told = x.ask("Metadata", 12, topics=[{"name": second}], allow_auto_topic_creation=False)
    identity = told["topics"][0]["topic_id"]
    x.call("v6 by name", "DeleteTopics", 6, topics=[{"name": first}], timeout_ms=10_000)
    x.note("second", identity)
    x.note("unknown", UNKNOWN_ID)
    chosen = [{"name": None, "topic_id": identity}, {"name": None, "topic_id": UNKNOWN_ID}]
    x.call("v6 by id", "DeleteTopics", 6, topics=chosen, timeout_ms=10_000)
    third = x.topic("third")
    x.call("v6 twice", "DeleteTopics", 6, topics=[{"name": third}, {"name": third}], timeout_ms=10_000)
    x.call("v6 none", "DeleteTopics", 6, topics=[], timeout_ms=10_000)


@scenario(
    known={"^a base offset other than 0": "harmless: the broker sets it anyway", "^end: .*offset 23 but 25": "so"}
)
def test_producing(x):
    topic = x.topic()
    for version in range(3, 13):
        produce(x, f"v{version}", topic, batch(b"one", b"two"), version=version)
        produce(x, f"v{version} unknown topic", x.stem + "-no", batch(b"one"), version=version)
        produce(x, f"v{version} unknown partition", topic, batch(b"one"), version=version, partition=9)
    for acks in (0, 1, -1, 2, -2):
        if acks:
            produce(x, f"acks {acks}", topic, batch(b"one"), acks=acks)
    produce(x, "compressed", topic, batch(b"one" * 50, codec=1))
    good = batch(b"one", b"two")
    produce(x, "empty records", topic, b"")
    produce(x, "two batches in one", topic, good + good)
    produce(x, "wrong checksum", topic, good[:-1] + bytes([good[-1] ^ 1]))
    produce(x, "truncated", topic, good[:-3])
    produce(x, "header only", topic, good[:61])
    produce(x, "old magic", topic, good[:16] + b"\1" + good[17:])
    produce(x, "too large", topic, batch(b"x" * 1_100_000))
    produce(x, "a base offset other than 0", topic, struct.pack(">q", 77) + good[8:])
    x.call("end", "ListOffsets", 7, **offsets_fields(topic, (0, -1)))
    quiet = x.connect()
    quiet.send("Produce", 9, {"acks": 0, "timeout_ms": 1, "topic_data": topic_data(topic, (1, good))})
    told = quiet.send("Heartbeat", 4, {"group_id": x.group, "generation_id": 1, "member_id": "m"}).result()
    x.note("acks 0 has no response", told)
    x.call("end", "ListOffsets", 7, **offsets_fields(topic, (1, -1)))


@scenario
def test_times_of_records(x):
    """Which times a topic takes, and by which it finds its records; words about single records aside."""

    def topic(name: str, **limits: int) -> str:
        full = f"{x.stem}-{name}"
        settings = [{"name": f"message.timestamp.{key}.max.ms", "value": str(value)} for key, value in limits.items()]
        settings.append({"name": "retention.ms", "value": "-1"})
        new = {"name": full, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": settings}
        x.ask("CreateTopics", 5, topics=[new], timeout_ms=10_000, validate_only=False)
        until(lambda: x.ask("Metadata", 9, topics=[{"name": full}])["topics"][0]["error_code"] == 0)
        return full

    def send(label: str, name: str, *times: int, codec: int = 0) -> None:
        data = timed(*times, codec=codec)
        fields = {"acks": -1, "timeout_ms": 5_000, "topic_data": topic_data(name, (0, data))}
        answer = x.ask("Produce", 9, transactional_id=None, **fields)["responses"][0]["partition_responses"][0]
        said = {key: answer[key] for key in ("error_code", "base_offset", "log_start_offset")}
        x.note(label, {**said, "records": [each["batch_index"] for each in answer["record_errors"]]})

    now = int(time.time() * 1000)
    usual, all_times, narrow = (
        topic("usual"),
        topic("all", before=2**63 - 1, after=2**63 - 1),
        topic("narrow", before=60_000),
    )
    for codec in (0, 1):
        send(f"now {codec}", usual, now, codec=codec)
        send(f"in half an hour {codec}", usual, now + 1_800_000, codec=codec)
        send(f"in two hours {codec}", usual, now, now + 7_200_000, now, codec=codec)
        send(f"microseconds {codec}", usual, now * 1000, codec=codec)
        send(f"nanoseconds {codec}", usual, now, now * 1_000_000, codec=codec)
        send(f"greatest {codec}", usual, 2**63 - 1, codec=codec)
        send(f"none {codec}", usual, -1, codec=codec)
        send(f"before 1970 {codec}", usual, -2, now, codec=codec)
        send(f"long before {codec}", usual, -(2**62), codec=codec)
        send(f"least {codec}", usual, -(2**63), codec=codec)
        send(f"narrow {codec}", narrow, now, now - 120_000, codec=codec)
        send(f"narrow, none {codec}", narrow, -1, codec=codec)
        send(f"all times {codec}", all_times, 5, 2**63 - 1, now + 10**9, now * 1_000_000, 7, codec=codec)
    for name in (usual, narrow):
        for at in (0, now - 200_000, now, now + 1, now + 1_800_001):
            found = x.ask("ListOffsets", 7, **offsets_fields(name, (0, at)))["topics"][0]["partitions"][0]
            told = found["timestamp"] - now if found["offset"] >= 0 else None
            x.note(f"found {name[-5:]} {at - now if at else 0}", {"offset": found["offset"], "after": told})


@scenario(known=DUPLICATE)
def test_idempotent_producers(x):
    topic = x.topic()
    mine = x.producer()
    again = x.ask("InitProducerId", 0, transactional_id=None, transaction_timeout_ms=60_000)
    x.note("another id", {"error": again["error_code"], "differs": again["producer_id"] != mine})

    def send(label: str, sequence: int, count: int = 2, epoch: int = 0, producer: int = mine, partition: int = 0):
        data = batch(*[b"v"] * count, producer=producer, epoch=epoch, sequence=sequence)
        produce(x, label, topic, data, partition=partition)

    send("first", 0)
    send("second", 2)
    send("second repeated", 2)
    send("first repeated", 0)
    send("gap", 9)
    send("overlap", 3)
    send("other partition starts at 0", 0, partition=1)
    for sequence in range(4, 16, 2):
        send(f"sequence {sequence}", sequence)
    send("repeated after five more", 4)
    send("repeated, still remembered", 8)
    send("newer epoch must start at 0", 5, epoch=1)
    send("newer epoch", 0, epoch=1)
    send("older epoch", 16, epoch=0)
    send("unknown producer in the middle", 7, producer=mine + 1_000_000)
    x.call("end", "ListOffsets", 7, **offsets_fields(topic, (0, -1), (1, -1)))


@scenario(known=DUPLICATE)
def test_sequences_that_wrap_around(x):
    topic = x.topic()
    mine = x.producer()
    top = 2**31 - 1
    produce(
        x, "an unknown producer may start anywhere", topic, batch(b"v", b"v", producer=mine, epoch=0, sequence=top - 1)
    )
    produce(x, "wrapped", topic, batch(b"v", producer=mine, epoch=0, sequence=0))
    produce(x, "wrapped, repeated", topic, batch(b"v", producer=mine, epoch=0, sequence=0))


@scenario
def test_fetching(x):
    topic = x.topic()
    x.ask("Produce", 9, acks=-1, timeout_ms=5_000, topic_data=topic_data(topic, (0, batch(b"one", b"two", b"three"))))
    x.ask("Produce", 9, acks=-1, timeout_ms=5_000, topic_data=topic_data(topic, (0, batch(b"four"))))
    for version in range(4, 13):
        x.call(f"v{version}", "Fetch", version, **fetch_fields(topic, version=version))
        x.call(f"v{version} unknown topic", "Fetch", version, **fetch_fields(x.stem + "-no", version=version))
        x.call(f"v{version} unknown partition", "Fetch", version, **fetch_fields(topic, partition=7, version=version))
    for offset in (0, 1, 3, 4, 5, 99, -1, 2**62):
        x.call(f"at {offset}", "Fetch", 12, **fetch_fields(topic, offset))
    x.call("empty partition", "Fetch", 12, **fetch_fields(topic, partition=1))
    x.call("one byte at most", "Fetch", 12, **fetch_fields(topic, max_bytes=1))
    x.call("one byte of the partition", "Fetch", 12, **fetch_fields(topic, partition_max_bytes=1))
    x.call("leader epoch ahead", "Fetch", 12, **fetch_fields(topic, current_leader_epoch=5))
    x.call("leader epoch 0", "Fetch", 12, **fetch_fields(topic, current_leader_epoch=0))
    x.call("session that is not there", "Fetch", 12, **fetch_fields(topic, session_id=12345, session_epoch=3))
    x.call("committed records only", "Fetch", 12, **fetch_fields(topic, isolation_level=1))
    told = x.ask("Metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
    identity = told["topics"][0]["topic_id"]
    for version in (13, 15, 16):
        for label, chosen in (("by id", identity), ("by an unknown id", UNKNOWN_ID)):
            fields = fetch_fields(topic, version=version)
            fields["topics"][0] = {"topic_id": chosen, "partitions": fields["topics"][0]["partitions"]}
            x.call(f"v{version} {label}", "Fetch", version, **fields)


@scenario
def test_a_fetch_waits_for_records(x):
    topic = x.topic()
    reader = x.connect()
    waiting = reader.send("Fetch", 12, fetch_fields(topic, max_wait_ms=10_000, min_bytes=1))
    x.note("waits", not waiting.answered(0.2))
    produce(x, "meanwhile", topic, batch(b"late"))
    x.finish("what it waited for", waiting)
    waiting = reader.send("Fetch", 12, fetch_fields(topic, 1, max_wait_ms=200, min_bytes=1))
    x.finish("its time is over", waiting)
    waiting = reader.send("Fetch", 12, fetch_fields(topic, 9, max_wait_ms=10_000, min_bytes=1))
    x.finish("an error does not wait", waiting)


@scenario
def test_listing_offsets(x):
    topic = x.topic()
    for at, values in ((NOW, (b"a", b"b", b"c")), (NOW + 5_000, (b"d", b"e")), (NOW + 1_000, (b"f",))):
        data = topic_data(topic, (0, batch(*values, timestamp=at)))
        x.ask("Produce", 9, acks=-1, timeout_ms=5_000, topic_data=data)
    times = (-1, -2, 0, NOW, NOW + 1, NOW + 2, NOW + 3, NOW + 4_999, NOW + 5_000, NOW + 5_001, NOW + 5_002)
    for version in range(1, 10):
        for at in times:
            fields = offsets_fields(topic, (0, at))
            if version < 2:
                del fields["isolation_level"]
            x.call(f"v{version} at {at - NOW if at > 0 else at}", "ListOffsets", version, **fields)
        x.call(f"v{version} unknown partition", "ListOffsets", version, **offsets_fields(topic, (9, -1), (1, -1)))
        x.call(f"v{version} unknown topic", "ListOffsets", version, **offsets_fields(x.stem + "-no", (0, -1)))
    for version in (7, 8, 9):
        x.call(f"v{version} largest timestamp", "ListOffsets", version, **offsets_fields(topic, (0, -3), (1, -3)))
    x.call("v6 largest timestamp", "ListOffsets", 6, **offsets_fields(topic, (0, -3)))
    x.call("v8 local start", "ListOffsets", 8, **offsets_fields(topic, (0, -4)))
    x.call("unknown special time", "ListOffsets", 7, **offsets_fields(topic, (0, -77)))
    x.call("leader epoch ahead", "ListOffsets", 7, **offsets_fields(topic, (0, -1), epoch=9))
    x.call("the same partition twice", "ListOffsets", 7, **offsets_fields(topic, (0, -1), (0, -2)))


@scenario
def test_describing_settings(x):
    topic = x.topic()

    def described(label: str, version: int, kind: int, name: str, keys: list[str] | None = None) -> None:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        result = x.ask("DescribeConfigs", version, resources=[resource])["results"][0]
        x.note(label, {**result, "configs": bool(result["configs"])})

    for version in range(1, 5):
        described(f"v{version} topic", version, 2, topic)
        described(f"v{version} unknown topic", version, 2, x.stem + "-no")
        described(f"v{version} broker", version, 4, "1")
        described(f"v{version} one key", version, 2, topic, ["cleanup.policy"])
        described(f"v{version} unknown key", version, 2, topic, ["no.such.setting"])
        described(f"v{version} no keys", version, 2, topic, [])
    described("unknown broker", 4, 4, "77")
    described("broker that is no number", 4, 4, "x")
    described("unknown kind", 4, 99, "x")
