"""The members of `benchmarks.group_load`: any broker takes their subscriptions, and no wait of theirs is endless."""

from __future__ import annotations

import multiprocessing
import socket

from benchmarks.group_members import process, subscription
from roster.wire.consumer.messages import decode_subscription


def test_a_subscription_is_whole_and_differs_by_its_number() -> None:
    """Apache Kafka never completes a rebalance in which it cannot parse a subscription."""
    numbers = (0, 1, 2, 300, 2**40)
    assert [list(decode_subscription(subscription(n)).topics) for n in numbers] == [[]] * len(numbers)
    assert len({subscription(n) for n in numbers}) == len(numbers)
    assert {len(subscription(n)) for n in numbers} == {200}


def test_a_broker_that_says_nothing_is_one_error() -> None:
    mine, theirs = multiprocessing.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as silent, mine, theirs:
        port = silent.getsockname()[1]
        process(f"127.0.0.1:{port}", "g", "t", theirs, None, 0.2)
        number, reason = mine.recv()
    assert number is None
    assert reason.startswith("no coordinator of group g at ('127.0.0.1', ")
