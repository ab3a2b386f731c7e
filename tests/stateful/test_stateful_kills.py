"""Applications of one stateful group killed, paused and started again in the middle of batches.

Every running update that a reader of committed records finds, and the state in the changelog, are compared with a plain
computation, exactly. ROSTER_STATE_KILL_ROUNDS sets the number of blows, ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import json
import os
import struct
from collections import defaultdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.state.definition import STATE_KEY
from tests.librdkafka import idempotent_producer
from tests.sinks.test_transactional_kills import Told, blows, quick_broker
from tests.spark.apps.stateful import GROUPS, KEYS
from tests.spark.programs import APPS
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from tests.real.realparts.apache import ApacheKafka

ROUNDS = int(os.environ.get("ROSTER_STATE_KILL_ROUNDS", "1"))
PROGRAM = APPS / "stateful.py"

pytestmark = [pytest.mark.process, pytest.mark.timeout(300 + 60 * ROUNDS)]


def compare(topics: Topics, told: Told) -> None:
    numbers: dict[str, list[int]] = defaultdict(list)
    for _, _, value in committed_records(topics, told.topic):
        numbers[str(int(value or b"") % KEYS)].append(int(value or b""))
    updates: dict[str, list[dict[str, int]]] = defaultdict(list)
    for _, key, value in committed_records(topics, told.out):
        updates[(key or b"").decode()].append(json.loads(value or b""))
    assert updates.keys() == numbers.keys()
    for key, found in updates.items():
        sums, most = list(accumulate(numbers[key])), list(accumulate(numbers[key], max))
        for update in found:
            n = update["count"]
            assert update == {"k": int(key), "count": n, "sum": sums[n - 1], "most": most[n - 1]}
        assert all(one["count"] < other["count"] for one, other in pairwise(found)), f"twice or out of order: {key}"
        assert found[-1]["count"] == len(numbers[key])
    state = {key: value for _, key, value in committed_records(topics, f"{told.group}-totals-changelog")}
    decoded = [struct.unpack("<?q?q?q", value or b"") for key, value in state.items() if key != STATE_KEY]
    assert sorted(decoded) == sorted((True, len(n), True, sum(n), True, max(n)) for n in numbers.values())
    print(f"{sum(map(len, numbers.values()))} records, {sum(map(len, updates.values()))} updates", flush=True)


def compare_several(topics: Topics, told: Told) -> None:
    """Numbers come in their order within a key, so the number of each row is known."""
    numbers = sorted(int(value or b"") for _, _, value in committed_records(topics, told.topic))
    assert numbers == list(range(len(numbers)))
    updates: dict[int, list[dict[str, int]]] = defaultdict(list)
    for _, _, value in committed_records(topics, told.out):
        update = json.loads(value or b"")
        assert update["first"] == update["second"], "of which each comes from a store of its own"
        updates[update["g"]].append(update)
    none = {"count": 0, "sum": 0, "most": 0, "first": 0}
    for group, found in updates.items():
        assert all(one["count"] < other["count"] for one, other in pairwise(found)), f"twice or out of order: {group}"
        for one, other in pairwise([none, *found]):
            count, total, first = (other[name] - one[name] for name in ("count", "sum", "first"))
            assert one["most"] <= other["most"], f"a largest number becomes smaller: {group}"
            # a row's number in its key is n // KEYS + 1, so what is left of the sum are the keys
            assert 0 <= total - KEYS * (first - count) <= (KEYS - 1) * count, f"not sums of the same rows: {group}"
    expected = {}
    for group in range(GROUPS):
        of = numbers[group::GROUPS]
        given = sum(n // KEYS + 1 for n in of)
        sums = {"sum": sum(of), "most": max(of), "first": given, "second": given}
        expected[group] = {"g": group, "count": len(of), **sums}
    assert {group: found[-1] for group, found in updates.items()} == expected
    counts = sorted(len(numbers[key::KEYS]) for key in range(KEYS))
    for store in ("first", "second"):
        state = {key: value for _, key, value in committed_records(topics, f"{told.group}-{store}-changelog")}
        assert sorted(int(value or b"") for key, value in state.items() if key != STATE_KEY) == counts
    totals = {key: value for _, key, value in committed_records(topics, f"{told.group}-totals-changelog")}
    decoded = [struct.unpack("<" + "?q" * 5, value or b"") for key, value in totals.items() if key != STATE_KEY]
    wanted = [[each[name] for name in ("count", "sum", "most", "first", "second")] for each in expected.values()]
    assert sorted(list(each[1::2]) for each in decoded) == sorted(wanted)
    assert all(all(each[::2]) for each in decoded), "no value is null"
    print(f"{len(numbers)} records, {sum(map(len, updates.values()))} updates", flush=True)


def compare_named(topics: Topics, told: Told) -> None:
    numbers = [int(value or b"") for _, _, value in committed_records(topics, told.topic)]
    found = [(key, json.loads(value or b"")) for _, key, value in committed_records(topics, told.out)]
    wanted = ((n % KEYS, n) for n in numbers)
    expected = [(b"%d" % k, {"k": k, "n": n, "name": f"key {k}"}) for k, n in wanted]
    assert sorted(found, key=str) == sorted(expected, key=str)
    print(f"{len(numbers)} records, each once with its name", flush=True)


def names(topics: Topics, partitions: int) -> str:
    """Return a topic with a name for each key."""
    table = topics.create(partitions)
    producer = idempotent_producer(topics.bootstrap, {"partitioner": "murmur2_random"})
    for key in range(KEYS):
        producer.produce(table, json.dumps({"name": f"key {key}"}), str(key))
    assert producer.flush(120) == 0
    return table


def program(tmp_path: Path) -> list[str]:
    return [str(PROGRAM), str(tmp_path / "state")]


def test_state_and_results_are_exact_whatever_befalls_applications_and_broker(tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, restart):
        compare(topics, blows(topics, tmp_path, restart, program(tmp_path), ROUNDS))


def repartitioned(tmp_path: Path) -> list[str]:
    return [*program(tmp_path), "0", "4"]


def several(tmp_path: Path, standbys: str = "0") -> list[str]:
    return [*program(tmp_path), standbys, "4", "several"]


if ROUNDS >= 10:  # one broker, and one sub-topology, are enough by default

    def test_what_passes_a_repartition_topic_counts_once(tmp_path: Path) -> None:
        with quick_broker(tmp_path / "data") as (topics, restart):
            passing = blows(topics, tmp_path, restart, repartitioned(tmp_path), ROUNDS, "-by-k-repartition")
            compare(topics, passing)

    @pytest.mark.parametrize("standbys", ["0", "1"])
    def test_several_operators_lose_nothing_and_count_nothing_twice(tmp_path: Path, standbys: str) -> None:
        with quick_broker(tmp_path / "data") as (topics, restart):
            told = blows(topics, tmp_path, restart, several(tmp_path, standbys), ROUNDS, "-by-k-repartition")
            compare_several(topics, told)

    def test_several_operators_on_apache_kafka_lose_nothing_and_count_nothing_twice(
        apache_kafka: ApacheKafka, tmp_path: Path
    ) -> None:
        with Topics(apache_kafka.bootstrap) as topics:
            told = blows(topics, tmp_path, None, several(tmp_path), ROUNDS, "-by-k-repartition")
            compare_several(topics, told)

    def test_what_passes_a_repartition_topic_on_apache_kafka_counts_once(
        apache_kafka: ApacheKafka, tmp_path: Path
    ) -> None:
        with Topics(apache_kafka.bootstrap) as topics:
            compare(topics, blows(topics, tmp_path, None, repartitioned(tmp_path), ROUNDS, "-by-k-repartition"))

    def test_state_and_results_are_exact_on_apache_kafka(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
        with Topics(apache_kafka.bootstrap) as topics:
            compare(topics, blows(topics, tmp_path, None, program(tmp_path), ROUNDS))

    def test_rows_joined_by_another_key_count_once(tmp_path: Path) -> None:
        with quick_broker(tmp_path / "data") as (topics, restart):
            named = [*repartitioned(tmp_path), names(topics, 4)]
            compare_named(topics, blows(topics, tmp_path, restart, named, ROUNDS, "-by-k-repartition"))

    def test_rows_joined_by_another_key_on_apache_kafka_count_once(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
        with Topics(apache_kafka.bootstrap) as topics:
            named = [*repartitioned(tmp_path), names(topics, 4)]
            compare_named(topics, blows(topics, tmp_path, None, named, ROUNDS, "-by-k-repartition"))
