"""`roster history` without Spark: what is shown, and mistakes."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PythonException

from roster.cli.root import run
from roster.client import Admin, GroupMember
from roster.history.folder import HistoryFolder
from roster.history.recorders import record_ends
from roster.model import TopicPartition
from roster.testing import running_broker
from tests.history.made_up import Group, write_history
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC, GROUP = "orders", "shops"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with running_broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(TOPIC, 3)
        yield broker.bootstrap


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert run(["history", "show", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_shown_of_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "history")
    recorded = Group(random.Random(1), topics={TOPIC: 3})
    joined = recorded.join()
    recorded.rebalance(joined)
    recorded.now += 60_000
    left = recorded.leave()
    recorded.rebalance(left)
    tps = {TopicPartition(TOPIC, number) for number in range(3)}
    ends = {tp: [(recorded.now, 0)] for tp in tps}
    write_history(tmp_path / "history", {GROUP: recorded}, ends, ends)
    first, last = shown(capsys, GROUP, "--from", folder)["rebalances"]
    assert (first["members"], first["partitions"]) == (1, 3)
    assert [cause["kind"] for cause in last["causes"]] == ["left_or_expired"]
    assert (last["members"], last["partitions"]) == (0, 0)
    (owner,) = shown(capsys, GROUP, "--from", folder, "--partition", f"{TOPIC}:2")
    assert (owner["from"], owner["until"]) == (first["ended_at"], last["ended_at"])
    for option, time, count in (("--since", last, 0), ("--since", first, 1), ("--at", first, 1), ("--at", last, 0)):
        asked = [GROUP, "--from", folder, "--partition", f"{TOPIC}:2", option, time["ended_at"]]
        assert len(shown(capsys, *asked)) == count, option
    assert len(shown(capsys, *asked[:-2], "--until", "2001-01-01")) == 0
    assert run(["history", "show", GROUP, "--from", folder]) == 0
    assert "m1 left or expired (" in capsys.readouterr().out


def test_ends_of_a_minute_are_written_once(bootstrap: str, tmp_path: Path) -> None:
    place = HistoryFolder(tmp_path)
    rows = pa.table(
        {
            "topic": ["t"],
            "partition": pa.array([0], pa.int32()),
            "end": [1],
            "at": pa.array([0], pa.timestamp("us", "UTC")),
        }
    )
    assert place.put("ends", 60_000, rows)
    assert not place.put("ends", 60_000, rows)
    with Admin(bootstrap) as admin:
        record_ends(admin, place)
    ends = ds.dataset(tmp_path / "ends", partitioning="hive").to_table()
    assert ends.filter(ds.field("topic") == "t").num_rows == 1
    assert sorted(ends.filter(ds.field("topic") == TOPIC)["partition"].to_pylist()) == [0, 1, 2]
    assert list(tmp_path.rglob(".*")) == [], "no scratch file is left"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "orders"], "--partition: 'orders' is not TOPIC:NUMBER, such as orders:7"),
        (["--at", "2026-01-01"], "--at: needs --partition"),
        (["--partition", "orders:1", "--generation", "3"], "--generation: goes without --partition"),
        (["--since", "yesterday"], "--since: 'yesterday' is not a time like 2026-01-31T12:00"),
        ([], "has no history; `roster history record --to "),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["history", "show", "g", "--from", str(tmp_path), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_replay_says_before_it_starts_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["history", "replay", "--from", str(tmp_path / "none"), "--to", str(tmp_path / "new")]
    assert run(command) == 2
    assert "has no history" in capsys.readouterr().err
    assert run([*command, "--assignors", "range,best"]) == 2
    assert "'best' is not one of" in capsys.readouterr().err
    assert run([*command[:-1], str(tmp_path)]) == 2
    assert "exists; name a new folder" in capsys.readouterr().err


def test_a_failure_of_spark_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no such thing\n\nJVM stacktrace:\n'

    class Failing:
        def stop(self) -> None:
            pass

        def __getattr__(self, name: str) -> object:
            raise PythonException(text)

    monkeypatch.setattr("roster.spark.session", lambda _: Failing(), raising=False)
    (tmp_path / "history" / "records").mkdir(parents=True)
    assert run(["history", "replay", "--from", str(tmp_path / "history"), "--to", str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err == "roster: error: Spark: ValueError: no such thing\n"


def test_a_group_without_history_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = Group(random.Random(1))
    recorded.rebalance(recorded.join())
    tp = TopicPartition("t0", 0)
    write_history(tmp_path, {"some": recorded}, {tp: [(recorded.now, 0)]}, {tp: [(recorded.now, 9)]})
    assert run(["history", "show", "other", "--from", str(tmp_path)]) == 2
    assert "no rebalances of group other" in capsys.readouterr().err


def test_a_plan_weighs_partitions_by_what_the_history_says(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = Group(random.Random(1), topics={TOPIC: 3})
    recorded.join()
    recorded.rebalance(set())
    begin = recorded.now
    tps = {TopicPartition(TOPIC, number) for number in range(3)}
    ends = {tp: [(begin + i * 30_000, 300 * i * tp.partition) for i in range(5)] for tp in tps}
    write_history(tmp_path / "history", {"weighed": recorded}, {tp: [(begin, 0)] for tp in tps}, ends)
    with GroupMember(bootstrap, "weighed", [TOPIC]) as member:
        until(lambda: member.ownership().partitions == tps)
        command = ["plan", "--group", "weighed", "--history", str(tmp_path / "history"), "-b", bootstrap]
        assert run([*command, "--json"]) == 0
        out, err = capsys.readouterr()
        assert "in a minute, by the history" in err
        found = json.loads(out)
        assert list(found["now"]["lag"].values()) == [600 * (0 + 1 + 2)]
        assert "lag" in found["plans"]
    assert run(["plan", "--history", "h"]) == 2
    assert "--history goes with --group" in capsys.readouterr().err


def test_a_generation_that_was_not_recorded_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = Group(random.Random(1), assignor="roundrobin")
    recorded.join()
    recorded.rebalance(set())
    tp = TopicPartition("t0", 0)
    write_history(tmp_path / "history", {"g": recorded}, {tp: [(recorded.now, 0)]}, {tp: [(recorded.now, 9)]})
    for name in ("show", "export-case"):
        command = ["history", name, "g", "--from", str(tmp_path / "history"), "--generation"]
        assert run([*command, "2"]) == 2
        assert "--generation: generation 2 is not in the history" in capsys.readouterr().err
    assert run([*command, "1"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["partitions"] == {"t0": 6, "t1": 4}
    assert "the assignment of m1 differs" in err, "it was encoded in another version"
