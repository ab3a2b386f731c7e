"""The lag of every consumer group, one JSON object for each group and topic.

    python lag_report.py BOOTSTRAP

Where a partition has no committed offset its lag is not known, and `known` is false: the sum is a lower bound.
"""

import argparse
import json
from collections import defaultdict

from roster.client import Admin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    arguments = parser.parse_args()

    with Admin(arguments.bootstrap) as admin:
        for listing in sorted(admin.list_groups(), key=lambda group: group.group_id):
            committed = admin.group_offsets(listing.group_id)
            ends = admin.end_offsets(committed)
            lag: dict[str, int] = defaultdict(int)
            known: dict[str, bool] = defaultdict(lambda: True)
            for partition, found in committed.items():
                lag[partition.topic] += max(ends[partition] - found.offset, 0)
            counts = admin.list_topics()
            for topic in lag:
                known[topic] = sum(partition.topic == topic for partition in committed) == counts.get(topic)
            for topic in sorted(lag):
                line = {"group": listing.group_id, "topic": topic, "lag": lag[topic], "known": known[topic]}
                print(json.dumps({**line, "state": listing.state}))


if __name__ == "__main__":
    main()
