"""The demo's parts, each alone: plain computation, the applications' work, scene, view, leash."""

from __future__ import annotations

import datetime
import io
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from roster.cli.demo import oracle, view, work
from roster.cli.demo.oracle import Figures
from roster.cli.demo.processes import Child, Said, end_all
from roster.cli.demo.scene import Application, BrokerAway, GroupSeen, Scene
from roster.cli.demo.stage import Stage, flights
from roster.cli.readers import open_source

groups = st.dictionaries(st.integers(0, 5).map(lambda n: (n,)), st.integers(1, 9).map(Figures), max_size=6)


@given(groups)
def test_the_same_groups_hold(expected):
    verdict = oracle.compare(expected, dict(expected))
    total = sum(figures.records for figures in expected.values())
    assert verdict.holds
    assert str(verdict) == f"{total} records in, {total} counted once, 0 lost, 0 double"


@given(groups, groups)
def test_lost_and_double_do_not_cancel_out(expected, got):
    wanted = Counter({group: figures.records for group, figures in expected.items()})
    found = Counter({group: figures.records for group, figures in got.items()})
    verdict = oracle.compare(expected, got)
    assert verdict.lost == (wanted - found).total()
    assert verdict.double == (found - wanted).total()
    assert verdict.once == (wanted & found).total()
    assert verdict.holds == (wanted == found)


def test_equal_counts_with_another_sum_do_not_hold():
    verdict = oracle.compare({("UA", 1): Figures(3, (3, 10))}, {("UA", 1): Figures(3, (3, 11))})
    assert not verdict.holds
    assert str(verdict) == "3 records in, 3 counted once, 0 lost, 0 double, 1 sums differ"


@pytest.fixture(scope="module")
def flights_source():
    material = flights()
    source = open_source(material.path, material.key, nulls=("NA",))
    checked = source.check()
    return material, source, checked


def test_the_flights_are_all_there_and_keyed_by_carrier_and_tail_number(flights_source):
    material, source, checked = flights_source
    assert checked.rows == 336_776
    assert oracle.total_of(material.expected()) == 336_776
    records = next(source.batches())
    assert records.keys[0] == b'["UA", "N14228"]'
    assert json.loads(records.values[0])["dep_delay"] == 2


def test_partial_aggregates_of_any_slicing_add_up_to_the_plain_computation(flights_source, tmp_path):
    material, source, _ = flights_source
    for number, records in enumerate(source.batches()):
        for part, (start, stop) in enumerate([(0, 7), (7, 4000), (4000, None)]):
            values = records.values[start:stop]
            if values:
                result = work.flights_by_carrier_and_hour(pa.record_batch({"value": pa.array(values, pa.binary())}))
                pq.write_table(pa.Table.from_batches([result]), tmp_path / f"{number}-{part}.parquet")
    verdict = oracle.compare(material.expected(), material.output(tmp_path))
    assert verdict.holds
    assert verdict.expected == 336_776
    (tmp_path / "0-1.parquet").unlink()
    assert oracle.compare(material.expected(), material.output(tmp_path)).lost == 3993


def test_a_cancelled_flight_counts_but_adds_no_delay():
    lines = [
        {"carrier": "UA", "time_hour": "2013-01-01T10:00:00Z", "dep_delay": None, "tailnum": None},
        {"carrier": "UA", "time_hour": "2013-01-01T10:00:00Z", "dep_delay": -3, "tailnum": "N1"},
        {"carrier": "AA", "time_hour": "2013-01-01T11:00:00Z", "dep_delay": None, "tailnum": "N2"},
    ]
    values = pa.array([json.dumps(line).encode() for line in lines], pa.binary())
    rows = work.flights_by_carrier_and_hour(pa.record_batch({"value": values})).to_pylist()
    at = datetime.datetime(2013, 1, 1, 10, tzinfo=datetime.UTC)
    assert sorted(rows, key=lambda row: row["carrier"], reverse=True) == [
        {"carrier": "UA", "hour": at, "flights": 2, "departed": 1, "delay_minutes": -3},
        {"carrier": "AA", "hour": at.replace(hour=11), "flights": 1, "departed": 0, "delay_minutes": 0},
    ]


def test_a_users_file_is_counted_by_key_and_null_is_a_key(tmp_path):
    (tmp_path / "f.csv").write_text("k,v\na,1\nb,2\na,3\n,4\n")
    expected = oracle.keys_in_file(open_source(tmp_path / "f.csv", ("k",)))
    assert expected == {("a",): Figures(2), ("b",): Figures(1), (None,): Figures(1)}
    batch = pa.record_batch({"key": pa.array([b"a", None, b"b", b"a"], pa.binary())})
    (tmp_path / "out").mkdir()
    pq.write_table(pa.Table.from_batches([work.records_by_key(batch)]), tmp_path / "out" / "0.parquet")
    assert oracle.keys_in_output(tmp_path / "out") == expected


def test_no_output_at_all_is_everything_lost(tmp_path):
    expected = {("a",): Figures(2)}
    assert oracle.compare(expected, oracle.keys_in_output(tmp_path / "none")).lost == 2


@pytest.mark.parametrize("name", sorted(work.WORK))
def test_the_declared_schema_names_the_columns_the_function_returns(name):
    function, schema = work.WORK[name]
    value = b'{"carrier": "UA", "time_hour": "2013-01-01T10:00:00Z", "dep_delay": 1}'
    batch = pa.record_batch({"key": pa.array([b"k"], pa.binary()), "value": pa.array([value], pa.binary())})
    assert [column.split()[0] for column in schema.split(", ")] == function(batch).schema.names


def scene() -> Scene:
    made = Scene(4, total=100)
    made.applications = {name: Application(name) for name in "AB"}
    made.hear_group(GroupSeen("Stable", {"demo-A": (0, 1), "demo-B": (2, 3)}, {}, dict.fromkeys(range(4), 10)))
    return made


def test_a_scene_knows_who_owns_what_and_the_lag():
    made = scene()
    assert made.shared_by({"A", "B"})
    assert not made.shared_by({"A"})
    assert made.owner_of(2).name == "B"
    assert made.lag == made.in_topic == 40
    made.now = 2.0
    made.hear_group(GroupSeen("Stable", {"demo-A": (0, 1, 2, 3)}, {0: 10, 1: 4}, dict.fromkeys(range(4), 10)))
    assert (made.counted, made.lag, made.lag_of(1), made.speed) == (14, 26, 6, 7.0)
    assert made.shared_by({"A"})
    assert [event.text for event in made.events] == [
        "the broker answers",
        "partitions: A 0-1, B 2-3",
        "partitions: A 0-3",
    ]
    assert made.rebalances == 2


def test_a_scene_notices_that_the_broker_is_away_and_back_once_each():
    made = scene()
    for _ in range(3):
        made.hear_group(BrokerAway())
    for _ in range(2):
        made.hear_group(GroupSeen("Stable", {"demo-A": (0, 1), "demo-B": (2, 3)}, {}, {}))
    texts = [event.text for event in made.events]
    assert texts.count("the broker does not answer") == texts.count("the broker answers again") == 1


def test_a_group_that_is_rebalancing_is_not_shared():
    made = scene()
    made.hear_group(GroupSeen("PreparingRebalance", {"demo-A": (0, 1), "demo-B": (2, 3)}, {}, {}))
    assert not made.shared_by({"A", "B"})


def test_applications_and_the_loader_report():
    made = scene()
    made.hear_application("A", {"rows": 7, "generation": 3})
    made.hear_application("A", {"rows": 5, "generation": 4})
    made.hear_loader({"acknowledged": 12})
    app = made.applications["A"]
    assert (app.rows, app.batches, app.generation, made.generation, made.loaded) == (12, 2, 4, 4, 12)


def test_the_picture_shows_members_partitions_and_events():
    out = io.StringIO()
    live = view.LiveView(Console(file=out, width=100, height=40, force_terminal=True, color_system=None))
    made = scene()
    made.happened("something happened")
    live.show(made)
    live.close(made)
    text = out.getvalue()
    for words in ("PySpark A", "PySpark B", "broker up", "generation -", "something happened", "0 of 100", "lag 40"):
        assert words in text


def test_plain_lines_show_each_event_once(capsys):
    plain = view.PlainView()
    made = scene()
    plain.show(made)
    plain.show(made)
    made.now = 9.0
    plain.close(made)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("s  ")[1] for line in lines] == ["the broker answers", "partitions: A 0-1, B 2-3"]
    made.now = 20.0
    plain.show(made)
    assert "lag 40" in capsys.readouterr().out


def alive(pid: int) -> bool:
    try:
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]  # noqa: PTH123, SIM115
    except OSError:
        return False
    return state not in "ZX"


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


TALKS = (
    "import json, os, sys, time; print('noise'); print(json.dumps({'pid': os.getpid()}), flush=True); time.sleep(600)"
)
# A grandchild in a process group of its own, as Spark's worker daemon makes one.
HAS_A_CHILD = (
    "import json, os, subprocess, sys, time\n"
    "kid = subprocess.Popen([sys.executable, '-c', 'import os, time; os.setpgid(0, 0); time.sleep(600)'])\n"
    "time.sleep(0.3); print(json.dumps({'pid': kid.pid}), flush=True); time.sleep(600)"
)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_is_heard_and_killed_with_all_it_started(tmp_path):
    inbox: queue.Queue = queue.Queue()
    child = Child("c", [sys.executable, "-c", HAS_A_CHILD], tmp_path / "c.log", inbox)
    try:
        said = inbox.get(timeout=30)
        assert isinstance(said, Said)
        assert said.child == "c"
        assert alive(said.message["pid"])
    finally:
        end_all([child])
    assert child.exit_code == -signal.SIGKILL
    assert gone_within(said.message["pid"], 5)


def test_a_child_that_is_asked_to_end_ends(tmp_path):
    inbox: queue.Queue = queue.Queue()
    child = Child("c", [sys.executable, "-c", TALKS], tmp_path / "c.log", inbox)
    try:
        inbox.get(timeout=30)
        child.terminate()
        assert child.process.wait(10) == -signal.SIGTERM
        assert child.last_words().splitlines()[0] == "noise"
    finally:
        end_all([child])


@pytest.mark.skipif(sys.platform != "linux", reason="the leash is the kernel's")
def test_a_child_does_not_outlive_a_parent_killed_with_9(tmp_path):
    parent = (
        "import queue, sys, time\nfrom pathlib import Path\nfrom roster.cli.demo.processes import Child\n"
        "inbox = queue.Queue()\n"
        f"Child('c', [sys.executable, '-c', {TALKS!r}], Path({str(tmp_path / 'c.log')!r}), inbox)\n"
        "print(inbox.get().message['pid'], flush=True); time.sleep(600)"
    )
    started = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    pid = int(started.stdout.readline())
    assert alive(pid)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    started.stdout.close()
    assert gone_within(pid, 10)


def test_temporary_files_of_the_demos_processes_are_in_its_own_directory(tmp_path):
    stage = Stage(tmp_path, flights(), 3)
    tell = """
import json, os, tempfile
print(json.dumps({"python": tempfile.gettempdir(), "java": os.environ["JDK_JAVA_OPTIONS"]}))
"""
    child = stage._start("c", [sys.executable, "-c", tell])
    assert child.process.wait(30) == 0
    said = stage.inbox.get(timeout=10).message
    scratch = str(tmp_path / "tmp")
    assert said["python"] == scratch
    assert f'"-Djava.io.tmpdir={scratch}"' in said["java"]
