"""librdkafka's clients with the settings that tests want of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer


def idempotent_producer(bootstrap: str, settings: Mapping[str, Any] | None = None) -> Producer:
    """Return a producer whose records arrive once and in the order in which they were sent.

    Without idempotence a request that is sent again, as for a partition that has no leader yet, comes behind those sent
    after it, and one whose answer was lost counts twice.
    """
    fixed = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    return Producer({"log_level": 2, **(settings or {}), **fixed})
