"""A kafka-python consumer with Roster's cooperative assignor, in one group with Java's and with pipelines.

python cooperative_kafka_python.py BOOTSTRAP [--follow]
"""

import argparse
from collections import Counter

from kafka import KafkaConsumer

from roster.plugins.kafka_python import RosterCooperativeSticky


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    consumer = KafkaConsumer(
        bootstrap_servers=arguments.bootstrap,
        group_id="cooperative-kafka-python",
        partition_assignment_strategy=[RosterCooperativeSticky],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    # kafka-python may lose a join that new metadata make it repeat: know the topic before joining.
    consumer.partitions_for_topic("orders")
    consumer.subscribe(["orders"])
    seen: Counter[str] = Counter()
    quiet = 0
    try:
        while arguments.follow or quiet < 3:
            records = consumer.poll(timeout_ms=1_000)
            for batch in records.values():
                seen.update((record.key or b"(no key)").decode() for record in batch)
            if records:
                consumer.commit()
            quiet = 0 if records or not seen else quiet + 1
    except KeyboardInterrupt:
        pass
    consumer.close()
    for shop, orders in sorted(seen.items()):
        print(shop, orders)


if __name__ == "__main__":
    main()
