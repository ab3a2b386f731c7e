"""Counts and sums by key with quix-streams, exactly once: BOOTSTRAP GROUP SOURCE TARGET DIRECTORY."""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found,unused-ignore]


def add(price: str, state: Any) -> dict[str, float]:
    """The key's totals with one more record."""
    total = state.get("total") or {"n": 0, "total": 0.0}
    total = {"n": total["n"] + 1, "total": total["total"] + float(price)}
    state.set("total", total)
    return total


def main(bootstrap: str, group: str, source: str, target: str, directory: str) -> None:
    """Run until the process is ended."""
    application = Application(
        broker_address=bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        state_dir=directory,
        processing_guarantee="exactly-once",
        commit_interval=0.5,
        loglevel="ERROR",
    )
    rows = application.dataframe(application.topic(source, key_deserializer="str", value_deserializer="str")).apply(
        add, stateful=True
    )
    rows.to_topic(application.topic(target, key_serializer="str", value_serializer="json"))
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
