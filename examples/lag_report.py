"""The lag of every consumer group, one JSON object for each group and topic.

    python lag_report.py BOOTSTRAP

Where a partition has no committed offset its lag is not known, and `known` is false: the sum is a lower bound.
"""

import argparse
import json
from collections import defaultdict

from roster.client import Admin, group_lag


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    arguments = parser.parse_args()

    with Admin(arguments.bootstrap) as admin:
        counts = admin.list_topics()
        for listing in admin.list_groups():
            lags: dict[str, list[int]] = defaultdict(list)
            for found in group_lag(admin, listing.group_id, listing.state).partitions.values():
                if found.lag is not None:
                    lags[found.topic].append(found.lag)
            for topic, each in lags.items():
                line = {"group": listing.group_id, "topic": topic, "lag": sum(each)}
                print(json.dumps({**line, "known": len(each) == counts.get(topic), "state": listing.state}))


if __name__ == "__main__":
    main()
