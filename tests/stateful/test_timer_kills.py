"""Applications with timers killed, paused and started again: what each timer sends is there once.

Some timers become due while nobody has their task, and without further records. ROSTER_TIMER_KILL_ROUNDS sets the
number of blows, ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.state.processor.batch import TimeMode
from tests.librdkafka import idempotent_producer
from tests.sinks.test_transactional_kills import PARTITIONS, Application, Told, blows, check, quick_broker
from tests.spark.apps.stateful import KEYS
from tests.spark.apps.timers import SPAN, STEP_MS
from tests.spark.programs import APPS
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.realparts.apache import ApacheKafka

ROUNDS = int(os.environ.get("ROSTER_TIMER_KILL_ROUNDS", "1"))
PROGRAM = APPS / "timers.py"
FAR = 6_000_000
"""Records from this number on only make the stream's time go on."""

pytestmark = [pytest.mark.process, pytest.mark.timeout(500 + 60 * ROUNDS)]


def numbers_of(topics: Topics, topic: str) -> Counter[int]:
    found = (int(value or b"") for _, _, value in committed_records(topics, topic))
    return Counter(n for n in found if n < FAR)


def results(topics: Topics, told: Told) -> list[dict[str, int]]:
    return [json.loads(value or b"") for _, _, value in committed_records(topics, told.out)]


def move_time_on(topics: Topics, topic: str) -> None:
    producer = idempotent_producer(topics.bootstrap)
    for partition in range(PARTITIONS):
        producer.produce(topic, str(FAR + partition), partition=partition)
    assert producer.flush(120) == 0


def check_timers(
    topics: Topics, tmp_path: Path, restart: Callable[[], object] | None, mode: TimeMode, standbys: str
) -> None:
    """Deal blows, let timers become due while nobody has their task, and compare what was sent with all records."""
    program = [str(PROGRAM), str(tmp_path / "state"), mode.value, standbys]
    told = blows(topics, tmp_path, restart, program, ROUNDS)
    sent, before = numbers_of(topics, told.topic), len(results(topics, told))
    if mode is TimeMode.EVENT:
        move_time_on(topics, told.topic)
    else:
        ended = time.monotonic()
        until(lambda: time.monotonic() - ended > STEP_MS * SPAN / 1000, what="timers due while nobody has their task")
    heir = Application(program, topics.bootstrap, told.group, told.topic, told.out, tmp_path / "heir.log")
    try:
        until(
            lambda: check([heir]) and len(results(topics, told)) >= len(sent),
            300,
            "what the timers that are left send",
        )
    finally:
        code = heir.end()
    assert code == 0, heir.log.read_text()[-3000:]
    found = results(topics, told)
    assert Counter(each["n"] for each in found) == sent
    assert all(each["k"] == each["n"] % KEYS for each in found)
    if mode is TimeMode.EVENT:
        assert all(each["due"] == 1000 * (each["n"] + 2 + each["n"] % SPAN) for each in found)
    print(f"{mode.value}: {len(sent)} timers, {len(sent) - before} of them due without an owner")


@pytest.mark.parametrize("mode", [TimeMode.PROCESSING, TimeMode.EVENT])
@pytest.mark.parametrize("standbys", ["0", "1"] if ROUNDS >= 10 else ["0"])
@pytest.mark.gate
def test_what_a_timer_sends_is_there_once_whatever_befalls_its_owner(
    tmp_path: Path, mode: TimeMode, standbys: str
) -> None:
    with quick_broker(tmp_path / "data") as (topics, restart):
        check_timers(topics, tmp_path, restart, mode, standbys)


if ROUNDS >= 10:  # one broker is enough by default

    @pytest.mark.parametrize("mode", [TimeMode.PROCESSING, TimeMode.EVENT])
    def test_what_a_timer_sends_is_there_once_on_apache_kafka(
        apache_kafka: ApacheKafka, tmp_path: Path, mode: TimeMode
    ) -> None:
        with Topics(apache_kafka.bootstrap) as topics:
            check_timers(topics, tmp_path, None, mode, "0")
