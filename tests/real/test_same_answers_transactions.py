"""Transactions: Roster's broker answers as Apache Kafka does, with both versions of the protocol (KIP-98, KIP-890)."""

from __future__ import annotations

import struct
from time import time
from typing import Any

from roster.wire.records import Record, build_batch, read_batch, split_batches
from tests.real.realparts.exchange import Actor, Exchange, commit_topics, protocols, scenario
from tests.waiting import until

TIMEOUT_MS = 60_000
STARTED_MS = int(time() * 1000)
"""Of the records: Kafka begins a new segment where the times of two batches lie a week apart."""
CONCURRENT_TRANSACTIONS = 51
NOT_READY = {14, 15, 16, CONCURRENT_TRANSACTIONS}
"""Also what a broker says that creates `__transaction_state` first."""
AN_UNKNOWN_PRODUCER = 2**40
REPEATED = {r"log_append_time_ms \d+ but -1": "Kafka answers a repeated batch with its newest timestamp"}
MARKS = {bytes((0, 0, 0, 0)): "abort", bytes((0, 0, 0, 1)): "commit"}


class Producer:
    """A transactional producer by hand; `versions` are those of its generation of clients."""

    def __init__(self, x: Exchange, name: str = "tx", *, second: bool = True) -> None:
        self.x, self.name = x, name
        self.id = f"{x.stem}-{name}"
        self.pid, self.epoch = -1, -1
        self.second = second
        self.via = x.connect(name)
        coordinated(x, self.id)

    def settled(self, api: str, version: int, **fields: Any) -> Any:
        """The first answer that is not CONCURRENT_TRANSACTIONS: how long markers take is the broker's business."""

        def answer() -> Any:
            told = self.x.ask(api, version, via=self.via, **fields)
            return None if codes(told) & NOT_READY else told

        return until(answer, 60, "transactions stay concurrent")

    def call(self, label: str, api: str, version: int, **fields: Any) -> Any:
        told = self.settled(api, version, **fields)
        self.x.note(f"{self.name}: {label}", told)
        return told

    def init(self, label: str = "init", version: int = 4, **changed: Any) -> Any:
        fields = {"transactional_id": self.id, "transaction_timeout_ms": TIMEOUT_MS, **changed}
        told = self.call(label, "InitProducerId", version, **fields)
        if told["error_code"] == 0:
            self.pid, self.epoch = told["producer_id"], told["producer_epoch"]
        return told

    def own(self, **changed: Any) -> dict[str, Any]:
        return {"transactional_id": self.id, "producer_id": self.pid, "producer_epoch": self.epoch, **changed}

    def add(self, label: str, *partitions: tuple[str, int], version: int = 3, **changed: Any) -> Any:
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        named = {f"v3_and_below_{name}": value for name, value in self.own(**changed).items()}
        asked = [{"name": topic, "partitions": indexes} for topic, indexes in topics.items()]
        return self.call(label, "AddPartitionsToTxn", version, **named, v3_and_below_topics=asked)

    def add_offsets(self, label: str, group: str | None = None, version: int = 3, **changed: Any) -> Any:
        asked = self.own(**{"group_id": group or self.x.group, **changed})
        return self.call(label, "AddOffsetsToTxn", version, **asked)

    def produce(self, label: str, topic: str, partition: int = 0, sequence: int = 0, **changed: Any) -> Any:
        version = changed.pop("version", 12 if self.second else 11)
        fields = {**self.own(), "transactional": True, "count": 1, **changed}
        batch = build_batch(
            [Record(timestamp=STARTED_MS + n, key=b"k", value=b"v") for n in range(fields["count"])],
            producer_id=fields["producer_id"],
            producer_epoch=fields["producer_epoch"],
            base_sequence=sequence,
            transactional=fields["transactional"],
            control=fields.get("control", False),
        )
        data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
        asked = {"transactional_id": fields["transactional_id"], "acks": fields.get("acks", -1), "timeout_ms": 10_000}
        return self.call(label, "Produce", version, **asked, topic_data=data)

    def end(self, label: str, *, committed: bool = True, version: int | None = None, **changed: Any) -> Any:
        version = version or (5 if self.second else 3)
        told = self.call(label, "EndTxn", version, **self.own(committed=committed, **changed))
        if version >= 5 and told["error_code"] == 0:
            self.pid, self.epoch = told["producer_id"], told["producer_epoch"]
        return told

    def commit_offsets(self, label: str, topic: str, offset: int = 7, **changed: Any) -> Any:
        version = changed.pop("version", 5 if self.second else 4)
        fields = self.own(**{"group_id": self.x.group, "topics": commit_topics(topic, {0: offset}), **changed})
        return self.call(label, "TxnOffsetCommit", version, **fields)

    def describe(self, label: str) -> None:
        told = until(self._still, 60, "a transaction does not complete")
        state = told["transaction_states"][0]
        state["transaction_start_time_ms"] = state["transaction_start_time_ms"] > 0
        for topic in state["topics"]:
            if topic["topic"] == "__consumer_offsets":  # the brokers have different numbers of them
                topic["partitions"] = len(topic["partitions"])
        self.x.note(f"{self.name}: {label}", told)

    def state(self) -> str:
        """The state of the transaction, in Kafka's word."""
        told = self.x.ask("DescribeTransactions", 0, transactional_ids=[self.id])
        return str(told["transaction_states"][0]["transaction_state"])

    def _still(self) -> Any:
        told = self.x.ask("DescribeTransactions", 0, transactional_ids=[self.id])
        return None if told["transaction_states"][0]["transaction_state"].startswith("Prepare") else told


def coordinated(x: Exchange, *ids: str) -> None:
    """Wait for the coordinator; Kafka creates `__transaction_state` when it is looked for, not in InitProducerId."""
    until(
        lambda: codes(x.ask("FindCoordinator", 4, key_type=1, coordinator_keys=[*ids])) == {0},
        60,
        "no transaction coordinator",
    )


def codes(told: Any) -> set[int]:
    """Every error code in a response."""
    if isinstance(told, dict):
        here = {value for key, value in told.items() if key.endswith("error_code")}
        return here.union(*(codes(value) for value in told.values()))
    return set().union(*(codes(value) for value in told)) if isinstance(told, list) else set()


def ends(x: Exchange, label: str, topic: str, partition: int = 0) -> None:
    """The end of a partition at both isolation levels."""
    for level in (0, 1):
        asked = [{"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}]
        topics = [{"name": topic, "partitions": asked}]
        x.call(
            f"{label}: end at isolation {level}", "ListOffsets", 7, replica_id=-1, isolation_level=level, topics=topics
        )


def read(x: Exchange, label: str, topic: str, partition: int = 0, offset: int = 0) -> None:
    """What both isolation levels fetch, markers named."""
    for level in (0, 1):
        asked = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        told = x.ask(
            "Fetch",
            12,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=level,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": topic, "partitions": [asked]}],
            forgotten_topics_data=[],
            rack_id="",
        )
        (part,) = told["responses"][0]["partitions"]
        batches = []
        for header, batch in split_batches(part.pop("records") or b""):
            (first, *_) = read_batch(batch)
            batches.append(
                {
                    "offset": header.base_offset,
                    "producer_id": header.producer_id,
                    "epoch": header.producer_epoch,
                    "attributes": header.attributes,
                    "sequence": header.base_sequence,
                    "what": MARKS.get(first.key) if header.is_control else header.records_count,
                    "value": first.value if not header.is_control else first.value[:2],
                }
            )
        x.note(
            f"{label}: fetched at isolation {level}", {**part, "batches": {str(n): b for n, b in enumerate(batches)}}
        )


def producers(x: Exchange, label: str, topic: str) -> None:
    told = x.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0, 1, 7]}])
    for entry in told["topics"]:
        for partition in entry["partitions"]:
            for producer in partition["active_producers"]:
                del producer["last_timestamp"]
                producer["coordinator_epoch"] = min(producer["coordinator_epoch"], 0)
    x.note(label, told)


def offsets(x: Exchange, label: str, *, stable: bool = True, group: str | None = None) -> None:
    x.call(label, "OffsetFetch", 7, group_id=group or x.group, topics=None, require_stable=stable)


def until_stable(x: Exchange, topic: str) -> None:
    """Wait until no offset of the group is pending."""
    topics = [{"name": topic, "partition_indexes": [0]}]

    def stable() -> bool:
        return codes(x.ask("OffsetFetch", 7, group_id=x.group, topics=topics, require_stable=True)) == {0}

    until(stable, 60, "offsets stay pending")


def settle(x: Exchange, topic: str, partition: int = 0) -> None:
    """Wait until no transaction is open in a partition."""

    def stable() -> bool:
        asked = [{"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}]
        found = [
            x.ask("ListOffsets", 7, replica_id=-1, isolation_level=level, topics=[{"name": topic, "partitions": asked}])
            for level in (0, 1)
        ]
        one, other = (told["topics"][0]["partitions"][0]["offset"] for told in found)
        return one == other

    until(stable, 60, "a transaction stays open")


@scenario(
    known={
        "versions of 24": "4 and 5 are between brokers",
        "versions of 66": "2 has regular expressions of clients, which can take for ever to match",
    }
)
def test_finding_the_coordinator(x):
    coordinated(x, x.stem, x.stem + "2")
    for version in range(1, 4):
        x.call(f"v{version}", "FindCoordinator", version, key=x.stem, key_type=1)
    for version in range(4, 7):
        x.call(f"v{version}", "FindCoordinator", version, key_type=1, coordinator_keys=[x.stem, x.stem + "2"])
    told = x.ask("ApiVersions", 3, client_software_name="x", client_software_version="1")
    levels = {entry["name"]: entry["max_version_level"] for entry in told["finalized_features"]}
    x.note("transaction.version", levels["transaction.version"])
    x.note("epoch of the features is known", told["finalized_features_epoch"] >= 0)
    keys = {entry["api_key"]: [entry["min_version"], entry["max_version"]] for entry in told["api_keys"]}
    for key in (22, 24, 25, 26, 27, 61, 65, 66):
        x.note(f"versions of {key}", keys.get(key))
    x.note("versions of 28", [keys[28][0], min(keys[28][1], 5)])  # Kafka has 6 from 4.4 on


@scenario
def test_producer_ids_in_each_version(x):
    for version in range(6):
        p = Producer(x, f"v{version}")
        p.init(version=version)
        p.init("again", version=version)
        if version >= 3:
            p.init("own epoch", version=version, producer_id=p.pid, producer_epoch=p.epoch)
            p.init("the epoch before", version=version, producer_id=p.pid, producer_epoch=p.epoch - 1)
            p.init("an old epoch", version=version, producer_id=p.pid, producer_epoch=p.epoch - 2)
            p.init("an epoch from the future", version=version, producer_id=p.pid, producer_epoch=p.epoch + 5)
            p.init("another id", version=version, producer_id=AN_UNKNOWN_PRODUCER, producer_epoch=p.epoch)
            p.init("no epoch", version=version, producer_id=p.pid, producer_epoch=-1)
            p.init("no id", version=version, producer_id=-1, producer_epoch=p.epoch)
        p.init("longest timeout", version=version, transaction_timeout_ms=900_000)
        p.init("too long", version=version, transaction_timeout_ms=900_001)
        p.init("no timeout", version=version, transaction_timeout_ms=0)
        p.init("negative timeout", version=version, transaction_timeout_ms=-1)
        p.init("empty id", version=version, transactional_id="")
    p = Producer(x, "fresh")
    p.init("unknown id, own numbers", producer_id=AN_UNKNOWN_PRODUCER, producer_epoch=3)
    idle = {"transactional_id": None, "transaction_timeout_ms": TIMEOUT_MS}
    for own in ((5, 0), (-1, 0), (5, -1)):
        told = x.ask("InitProducerId", 4, **idle, producer_id=own[0], producer_epoch=own[1])
        x.note(f"idempotent with {own}", [told["error_code"], told["producer_epoch"]])


@scenario
def test_adding_partitions(x):
    topic = x.topic()
    for version in range(4):
        p = Producer(x, f"v{version}", second=False)
        p.init()
        p.describe("before")
        p.add("one", (topic, 0), version=version)
        p.add("the same", (topic, 0), version=version)
        p.add("another", (topic, 1), version=version)
        p.add("none", version=version)
        p.add("missing partition", (topic, 0), (topic, 9), version=version)
        p.add("missing topic", (x.stem + "-no", 0), (topic, 1), version=version)
        p.add("old epoch", (topic, 0), version=version, producer_epoch=p.epoch - 1)
        p.add("new epoch", (topic, 0), version=version, producer_epoch=p.epoch + 1)
        p.add("other producer", (topic, 0), version=version, producer_id=AN_UNKNOWN_PRODUCER)
        p.add("unknown id", (topic, 0), version=version, transactional_id=x.stem + "-no")
        p.add("empty id", (topic, 0), version=version, transactional_id="")
        p.add_offsets("offsets", version=min(version, 4))
        p.add_offsets("old epoch for offsets", version=version, producer_epoch=p.epoch - 1)
        p.add_offsets("other producer for offsets", version=version, producer_id=AN_UNKNOWN_PRODUCER)
        p.add_offsets("unknown id for offsets", version=version, transactional_id=x.stem + "-no")
        p.add_offsets("empty id for offsets", version=version, transactional_id="")
        p.describe("with partitions")
        p.end("commit", version=version + 1 if version < 3 else 4)
        p.describe("after")
        producers(x, f"v{version} producers", topic)


@scenario(known=REPEATED)
def test_transactions_of_the_first_version(x):
    topic = x.topic()
    p = Producer(x, second=False)
    p.init()
    p.produce("not added", topic)
    p.produce("not added, before it had a name", topic, version=10)
    p.add("one", (topic, 0))
    p.produce("added", topic)
    p.produce("repeated", topic)
    p.produce("the other partition", topic, 1)
    ends(x, "open", topic)
    read(x, "open", topic)
    producers(x, "producers while open", topic)
    p.describe("open")
    p.end("commit")
    settle(x, topic)
    p.end("commit again")
    p.end("abort instead", committed=False)
    ends(x, "committed", topic)
    read(x, "committed", topic)
    p.add("one", (topic, 0))
    p.produce("second", topic, sequence=1)
    p.end("abort", committed=False)
    settle(x, topic)
    p.end("abort again", committed=False)
    p.end("commit instead")
    read(x, "aborted", topic)
    read(x, "from the middle", topic, offset=2)
    p.add("one", (topic, 0))
    p.produce("sequences go on", topic, sequence=2, count=3)
    p.produce("a gap", topic, sequence=9)
    p.end("commit")
    settle(x, topic)
    read(x, "all", topic)
    p.describe("idle")
    producers(x, "producers at rest", topic)


@scenario(known=REPEATED)
def test_transactions_of_the_second_version(x):
    topic = x.topic()
    p = Producer(x)
    p.init(version=5)
    p.end("commit of nothing")
    p.end("abort of nothing", committed=False)
    p.describe("after an empty abort")
    p.produce("first", topic)
    p.produce("repeated", topic)
    p.produce("second", topic, sequence=1, count=2)
    p.produce("plain batch in an open transaction", topic, sequence=3, transactional=False)
    p.produce("other partition", topic, 1)
    p.describe("open")
    ends(x, "open", topic)
    read(x, "open", topic)
    before = p.epoch
    p.end("commit")
    settle(x, topic)
    p.end("commit again", producer_epoch=before)
    p.end("abort instead", committed=False, producer_epoch=before)
    p.produce("late, old epoch", topic, sequence=3, producer_epoch=before)
    p.produce("late, old epoch, repeated", topic, sequence=1, count=2, producer_epoch=before)
    p.produce("new epoch must begin at 0", topic, sequence=3)
    p.produce("new epoch", topic)
    p.produce("missing partition", topic, 9)
    before = p.epoch
    p.end("abort", committed=False)
    settle(x, topic)
    p.end("abort again", committed=False, producer_epoch=before)
    p.end("commit instead", producer_epoch=before)
    p.end("from the future", producer_epoch=p.epoch + 3)
    p.end("other producer", producer_id=AN_UNKNOWN_PRODUCER)
    p.end("unknown id", transactional_id=x.stem + "-no")
    p.end("empty id", transactional_id="")
    read(x, "all", topic)
    ends(x, "all", topic)
    p.describe("idle")
    producers(x, "producers", topic)


@scenario
def test_ends_of_nothing_right_after_an_end(x):
    topic = x.topic()
    p = Producer(x)
    p.init(version=5)
    for committed in (True, False):
        p.produce(f"before {committed}", topic)
        p.end(f"end {committed}", committed=committed)
        p.end(f"commit of nothing after {committed}")
        p.end(f"abort of nothing after {committed}", committed=False)
        p.end(f"another after {committed}", committed=False)
    p.describe("idle")


@scenario(known=REPEATED)
def test_mixed_versions(x):
    topic = x.topic()
    p = Producer(x)
    p.init(version=5)
    p.add("explicitly", (topic, 0))
    p.produce("implicitly too", topic)
    p.end("with a bump")
    settle(x, topic)
    p.produce("implicitly", topic)
    p.end("without a bump", version=4)
    settle(x, topic)
    p.produce("the next transaction, same epoch and sequence", topic)
    p.produce("the next transaction, next sequence", topic, sequence=1)
    p.end("with a bump again", committed=False)
    p.describe("complete")
    read(x, "all", topic)


@scenario(known=REPEATED)
def test_what_may_not_be_produced(x):
    topic = x.topic()
    p = Producer(x)
    p.init(version=5)
    p.produce("without a transactional id", topic, transactional_id=None)
    p.produce("plain batch with a transactional id", topic, transactional=False)
    p.produce("other producer", topic, producer_id=AN_UNKNOWN_PRODUCER)
    p.produce("old epoch", topic, producer_epoch=p.epoch - 1)
    p.produce("new epoch", topic, producer_epoch=p.epoch + 1)
    p.produce("unknown id", topic, transactional_id=x.stem + "-no")
    p.produce("a marker of its own", topic, control=True)
    p.produce("first sequence 4", topic, sequence=4)
    p.produce("internal topic", "__transaction_state")
    p.produce("acks 1", topic, acks=1)
    p.end("abort", committed=False)
    settle(x, topic)
    for version in (9, 10, 11):
        p.produce(f"v{version}: other producer", topic, version=version, producer_id=AN_UNKNOWN_PRODUCER)
        p.produce(f"v{version}: unknown id", topic, version=version, transactional_id=x.stem + "-no")
        p.produce(f"v{version}: not added", topic, version=version)
        p.produce(f"v{version}: old epoch", topic, version=version, producer_epoch=p.epoch - 1)
        p.produce(f"v{version}: without a transactional id", topic, version=version, transactional_id=None)
    read(x, "all", topic)


@scenario
def test_a_second_instance_fences_the_first(x):
    topic = x.topic()
    for second in (True, False):
        p = Producer(x, f"version {1 + second}", second=second)
        q = Producer(x, p.name, second=second)
        p.init("first instance")
        if not second:
            p.add("one", (topic, 0))
        p.produce("open", topic)
        q.init("second instance")
        settle(x, topic)
        p.produce("fenced", topic, sequence=1)
        p.add("fenced", (topic, 0))
        for version in (1, 3, 4, 5):
            p.end(f"fenced v{version}", version=version)
            p.end(f"fenced abort v{version}", version=version, committed=False)
        for version in (3, 4):
            own = {"producer_id": p.pid, "producer_epoch": p.epoch}
            p.x.note(
                f"fenced init v{version}",
                p.settled("InitProducerId", version, transactional_id=p.id, transaction_timeout_ms=TIMEOUT_MS, **own),
            )
        if not second:
            q.add("one", (topic, 0))
        q.produce("goes on", topic)
        q.end("commit")
        settle(x, topic)
        q.describe("at rest")
    read(x, "all", topic)


@scenario
def test_bumping_the_own_epoch_in_a_transaction(x):
    topic = x.topic()
    for second in (True, False):
        p = Producer(x, f"version {1 + second}", second=second)
        p.init()
        if not second:
            p.add("one", (topic, 0))
        p.produce("open", topic)
        p.init("own epoch", producer_id=p.pid, producer_epoch=p.epoch)
        settle(x, topic)
        if not second:
            p.add("one", (topic, 0))
        p.produce("again from 0", topic)
        p.end("commit")
        settle(x, topic)
    read(x, "all", topic)


@scenario
def test_transactions_time_out(x):
    producers = [
        (Producer(x, f"version {1 + second}", second=second), x.topic(f"t{1 + second}")) for second in (True, False)
    ]
    for p, topic in producers:
        p.init(transaction_timeout_ms=5_000)  # not over before `produce` on a slow machine
        if not p.second:
            p.add("one", (topic, 0))
        p.produce("open", topic)
    for p, topic in producers:
        until(lambda p=p: p.state() == "CompleteAbort", 60, "a transaction does not time out")
        settle(x, topic)
        p.describe("timed out")
        p.produce("late", topic, sequence=1)
        for version in (3, 4, 5):
            p.end(f"late v{version}", version=version)
            p.end(f"late abort v{version}", version=version, committed=False, producer_epoch=p.epoch)
        p.init("resumes", producer_id=p.pid, producer_epoch=0)
        p.describe("resumed")
        read(x, "all", topic)


@scenario
def test_listing_and_describing(x):
    topic = x.topic()
    open_, idle = Producer(x, "open"), Producer(x, "idle")
    open_.init(version=5)
    idle.init(version=5)
    open_.produce("open", topic)

    def listed(label: str, version: int = 1, **fields: Any) -> None:
        told = x.ask("ListTransactions", version, **{"state_filters": [], "producer_id_filters": [], **fields})
        told["transaction_states"] = [s for s in told["transaction_states"] if s["transactional_id"].startswith(x.stem)]
        x.note(f"{label} v{version}", told)

    for version in range(2):
        listed("all", version)
        listed("ongoing", version, state_filters=["Ongoing"])
        listed("several states", version, state_filters=["Empty", "CompleteAbort", "Nonsense", "ongoing"])
        listed("one producer", version, producer_id_filters=[idle.pid])
    listed("long", 1, duration_filter=3_600_000)
    listed("any duration", 1, duration_filter=0)
    told = x.ask("DescribeTransactions", 0, transactional_ids=[idle.id, open_.id, x.stem + "-no", ""])
    for state in told["transaction_states"]:
        state["transaction_start_time_ms"] = min(state["transaction_start_time_ms"], 1)
    x.note("described", told)
    producers(x, "producers", topic)
    x.call("producers of nothing", "DescribeProducers", 0, topics=[{"name": x.stem + "-no", "partition_indexes": [0]}])
    open_.end("commit")


def member(x: Exchange, topic: str) -> Actor:
    a = Actor(x, "a", protocols=protocols("range", topics=[topic]))
    a.join()
    a.sync("sync", {a.member_id: struct.pack(">hii", 0, 0, -1)})
    return a


@scenario
def test_offsets_in_transactions(x):
    topic = x.topic()
    for second in (True, False):
        p = Producer(x, f"version {1 + second}", second=second)
        p.init()
        p.commit_offsets("not added", topic, version=4)
        p.commit_offsets("not added, before it had a name", topic, version=3)
        if not second:
            p.add_offsets("add")
        p.commit_offsets("pending", topic, 10 + second)
        offsets(x, "pending, stable")
        offsets(x, "pending, any", stable=False)
        topics = [{"name": topic, "partition_indexes": [0, 1]}]
        x.call("pending, by name", "OffsetFetch", 7, group_id=x.group, topics=topics, require_stable=True)
        p.describe("open")
        p.end("commit")
        until_stable(x, topic)
        offsets(x, "committed")
        if not second:
            p.add_offsets("add")
        p.commit_offsets("pending", topic, 99)
        x.call(
            "a plain commit meanwhile",
            "OffsetCommit",
            8,
            group_id=x.group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=commit_topics(topic, {0: 50}),
        )
        offsets(x, "both, stable")
        offsets(x, "both, any", stable=False)
        p.end("abort", committed=False)
        until_stable(x, topic)
        offsets(x, "aborted")


@scenario
def test_which_commit_wins(x):
    topic = x.topic()
    p = Producer(x)
    p.init(version=5)

    def plain(offset: int) -> None:
        x.call(
            f"plain {offset}",
            "OffsetCommit",
            8,
            group_id=x.group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=commit_topics(topic, {0: offset}),
        )

    def ended(*, committed: bool) -> None:
        p.end("end", committed=committed)
        until_stable(x, topic)
        offsets(x, "ended")

    p.commit_offsets("pending", topic, 50)
    plain(40)
    ended(committed=True)
    plain(60)
    p.commit_offsets("pending", topic, 55)
    ended(committed=True)
    p.commit_offsets("pending", topic, 70)
    p.commit_offsets("pending again", topic, 71)
    ended(committed=True)
    q = Producer(x, "other")
    q.init(version=5)
    p.commit_offsets("the earlier one ends first", topic, 80)
    q.commit_offsets("the later one", topic, 81)
    p.end("commit")
    q.end("commit")
    until_stable(x, topic)
    offsets(x, "the later one counts")
    p.commit_offsets("the earlier one ends last", topic, 90)
    q.commit_offsets("the later one", topic, 91)
    q.end("commit")
    p.end("commit")
    until_stable(x, topic)
    offsets(x, "the later one counts again")


@scenario(
    known={
        "generation_id 2 but 3": "a generation that a member claims may have been announced by an earlier coordinator"
    }
)
def test_who_may_commit_in_a_transaction(x):
    topic = x.topic()
    a = member(x, topic)
    p = Producer(x)
    p.init(version=5)
    mine = {"member_id": a.member_id, "generation_id": a.generation}
    table: dict[str, dict[str, Any]] = {
        "good": mine,
        "no member and no generation": {},
        "no member": {"generation_id": a.generation},
        "no generation": {"member_id": a.member_id},
        "generation behind": {**mine, "generation_id": a.generation - 1},
        "generation ahead": {**mine, "generation_id": a.generation + 1},
        "unknown member": {**mine, "member_id": "nobody"},
        "unknown instance": {**mine, "group_instance_id": "nobody"},
        "unknown group": {"group_id": x.group + "-none", **mine},
        "unknown group, nobody": {"group_id": x.group + "-none"},
        "empty group id": {"group_id": ""},
        "old epoch": {**mine, "producer_epoch": -1},
        "new epoch": {**mine, "producer_epoch": p.epoch + 1},
        "other producer": {**mine, "producer_id": AN_UNKNOWN_PRODUCER},
        "unknown id": {**mine, "transactional_id": x.stem + "-no"},
        "unknown topic": {**mine, "topics": commit_topics(x.stem + "-no", {0: 1})},
        "unknown partition": {**mine, "topics": commit_topics(topic, {0: 1, 7: 1})},
        "no topics": {**mine, "topics": []},
        "long metadata": {**mine, "topics": commit_topics(topic, {0: 1}, "m" * 5_000)},
    }
    for version in (3, 4, 5):
        for label, change in table.items():
            if version < 5 and label in ("unknown group", "unknown group, nobody", "empty group id"):
                continue
            if version < 5:
                p.add_offsets("add")
            p.commit_offsets(f"v{version} {label}", topic, version=version, **change)
    b = Actor(x, "b", protocols=protocols("range", topics=[topic]))
    b_join = b.begin()
    x.until_state("PreparingRebalance")
    p.commit_offsets("preparing", topic, **mine)
    a.join("again")
    b.finish_join("join", b_join)
    p.commit_offsets("completing, old generation", topic, **mine)
    p.commit_offsets("completing", topic, **{**mine, "generation_id": a.generation})
    p.end("abort", committed=False)
    for version in range(3):
        q = Producer(x, f"q{version}", second=False)
        q.init()
        q.add_offsets("add", version=version)
        q.commit_offsets(f"v{version}", topic, version=version)
        q.end("commit", version=version + 1)


@scenario
def test_groups_with_pending_offsets(x):
    topic = x.topic()
    p = Producer(x)
    p.init(version=5)
    p.commit_offsets("pending", topic)
    x.call(
        "delete offsets",
        "OffsetDelete",
        0,
        group_id=x.group,
        topics=[{"name": topic, "partitions": [{"partition_index": 0}]}],
    )
    offsets(x, "after OffsetDelete")
    p.end("commit")
    until_stable(x, topic)
    offsets(x, "committed")
    p.commit_offsets("pending", topic, 33)
    x.call("delete the group", "DeleteGroups", 2, groups_names=[x.group])
    offsets(x, "after DeleteGroups")
    p.end("commit")
    until_stable(x, topic)
    offsets(x, "and committed")


@scenario
def test_looking_up_times_at_both_levels(x):
    topic = x.topic()
    p = Producer(x)
    p.init(version=5)
    p.produce("open", topic)
    for level in (0, 1):
        for moment in (-1, -2, -3, 0, STARTED_MS - 1, STARTED_MS, STARTED_MS + 5_000):
            asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": moment}]
            topics = [{"name": topic, "partitions": asked}]
            x.call(
                f"time {moment - STARTED_MS if moment > 0 else moment} at isolation {level}",
                "ListOffsets",
                7,
                replica_id=-1,
                isolation_level=level,
                topics=topics,
            )
    p.end("abort", committed=False)
    settle(x, topic)
    for level in (0, 1):
        for moment in (-1, -2, 0, STARTED_MS):
            asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": moment}]
            topics = [{"name": topic, "partitions": asked}]
            told = x.ask("ListOffsets", 7, replica_id=-1, isolation_level=level, topics=topics)
            x.note(f"aborted, time {min(moment, 1)} at isolation {level}", told)
