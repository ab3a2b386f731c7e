"""A group member without Spark: Roster decides what it owns, confluent-kafka reads it.

    python worker_without_spark.py BOOTSTRAP [--follow]

The worker commits after each round. When partitions are to move it finishes, commits and releases them; when they are
lost a commit for them is refused, so nothing of the new owner's progress is overwritten.
"""

import argparse
from collections import Counter

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position

from roster.client import CommitFenced, GroupMember, OffsetAndMetadata, Ownership
from roster.model import TopicPartition

GROUP, TOPIC = "worker-without-spark", "orders"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    seen: Counter[str] = Counter()
    reader = Consumer({"bootstrap.servers": arguments.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    with GroupMember(arguments.bootstrap, GROUP, [TOPIC]) as member:
        following: dict[TopicPartition, int] = {}
        try:
            while arguments.follow or following != member.end_offsets(member.ownership().partitions) or not following:
                owned = member.ownership()
                if owned.error is not None:
                    raise owned.error
                if owned.revoking:  # each round below is committed, so there is nothing left to finish
                    member.release(owned.revoking)
                if owned.partitions != following.keys():
                    following = follow(reader, member, owned.partitions)
                following = one_round(reader, member, owned, following, seen)
        except KeyboardInterrupt:
            pass
    reader.close()
    for shop, orders in sorted(seen.items()):
        print(shop, orders)


def follow(reader: Consumer, member: GroupMember, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
    """Start reading each partition where the group left off; the next offset of each."""
    beginning = member.beginning_offsets(partitions)
    starts = {
        partition: committed.offset if committed is not None else beginning[partition]
        for partition, committed in member.committed(partitions).items()
    }
    reader.assign([Position(tp.topic, tp.partition, offset) for tp, offset in starts.items()])
    return starts


def one_round(
    reader: Consumer,
    member: GroupMember,
    owned: Ownership,
    following: dict[TopicPartition, int],
    seen: Counter[str],
) -> dict[TopicPartition, int]:
    """Process the records at hand and commit; the next offset of each partition."""
    records = reader.consume(500, timeout=0.5)
    if not records:
        return following
    done, counts = dict(following), Counter()
    for record in records:
        if record.error():
            raise SystemExit(f"worker: {record.error()}")
        counts[(record.key() or b"(no key)").decode()] += 1
        done[TopicPartition(record.topic(), record.partition())] = record.offset() + 1
    changed = {tp: OffsetAndMetadata(offset) for tp, offset in done.items() if offset != following.get(tp)}
    try:
        member.commit(changed, owned)
    except CommitFenced:
        return {}  # they moved: start again from what the group has
    seen.update(counts)
    return done


if __name__ == "__main__":
    main()
