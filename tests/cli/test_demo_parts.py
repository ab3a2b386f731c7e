"""The demo's parts, each alone: plain computation, the applications' work, state, parent_death."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.cli.demo import jobs, oracle
from roster.cli.demo.environment import Environment, flights
from roster.cli.demo.oracle import Figures
from roster.cli.demo.processes import Child, ChildMessage, end_all
from roster.cli.demo.state import SESSION_TIMEOUT_S, Application, DemoState, Group, in_a_line, stamp
from roster.cli.groups.live import PlainView
from roster.cli.load.command import open_source
from roster.console.snapshot import Away, MemberSeen, Snapshot
from roster.model import GroupPosition, TopicPartition
from tests.examples_tried import is_quick

FLIGHTS = 20_000 if is_quick() else 336_776

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


def total_of(groups: oracle.Groups) -> int:
    return sum(figures.records for figures in groups.values())


@pytest.fixture(scope="module")
def flights_source(tmp_path_factory):
    job = jobs.FLIGHTS
    workload = flights((job,), tmp_path_factory.mktemp("flights"), FLIGHTS)
    source = open_source(workload.path, job.key, "csv")
    rows = source.check()
    expected = workload.expected()
    assert expected.records == total_of(expected.groups[job.group])
    return job, source, rows, expected.groups[job.group]


def test_the_flights_are_all_there_and_keyed_by_carrier_and_tail_number(flights_source):
    _, source, rows, expected = flights_source
    assert rows == total_of(expected) == FLIGHTS
    records = next(source.batches())
    assert records["key"][0].as_py() == b'["UA", "N14228"]'
    assert json.loads(records["value"][0].as_py())["dep_delay"] == 2


def test_partial_aggregates_of_any_slicing_add_up_to_the_plain_computation(flights_source, tmp_path):
    job, source, _, expected = flights_source
    for number, records in enumerate(source.batches()):
        for part, (start, stop) in enumerate([(0, 7), (7, 4000), (4000, None)]):
            values = records.slice(start, None if stop is None else stop - start).select(["value"])
            if values.num_rows:
                result = jobs.flights_by_carrier_and_hour(values)
                pq.write_table(pa.Table.from_batches([result]), tmp_path / f"{number}-{part}.parquet")
    verdict = oracle.compare(expected, job.results("", tmp_path))
    assert verdict.holds
    assert verdict.expected == FLIGHTS
    (tmp_path / "0-1.parquet").unlink()
    assert oracle.compare(expected, job.results("", tmp_path)).lost == 3993


def test_a_cancelled_flight_counts_but_adds_no_delay():
    lines = [
        {"carrier": "UA", "time_hour": "2013-01-01T10:00:00Z", "dep_delay": None, "tailnum": None},
        {"carrier": "UA", "time_hour": "2013-01-01T10:00:00Z", "dep_delay": -3, "tailnum": "N1"},
        {"carrier": "AA", "time_hour": "2013-01-01T11:00:00Z", "dep_delay": None, "tailnum": "N2"},
    ]
    values = pa.array([json.dumps(line).encode() for line in lines], pa.binary())
    rows = jobs.flights_by_carrier_and_hour(pa.record_batch({"value": values})).to_pylist()
    at = datetime.datetime(2013, 1, 1, 10, tzinfo=datetime.UTC)
    assert sorted(rows, key=lambda row: row["carrier"], reverse=True) == [
        {"carrier": "UA", "hour": at, "flights": 2, "departed": 1, "delay_minutes": -3},
        {"carrier": "AA", "hour": at.replace(hour=11), "flights": 1, "departed": 0, "delay_minutes": 0},
    ]


@pytest.mark.gate
def test_ctrl_c_is_no_fault_of_the_file_that_is_read(tmp_path):
    path = tmp_path / "flights.csv"
    path.write_text("carrier,tailnum,time_hour,dep_delay,distance\n" + "UA,,,1,\n" * 1_000_000)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for moment in range(1, 9):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, moment / 100)
                oracle.read_flights(path)
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_no_output_at_all_is_everything_lost(tmp_path):
    expected = {("a",): Figures(2)}
    assert oracle.compare(expected, jobs.flights_in_output(tmp_path / "none")).lost == 2


def test_the_declared_schema_names_the_columns_the_function_returns():
    value = b'{"carrier": "UA", "time_hour": "2013-01-01T10:00:00Z", "dep_delay": 1}'
    batch = pa.record_batch({"key": pa.array([b"k"], pa.binary()), "value": pa.array([value], pa.binary())})
    names = jobs.flights_by_carrier_and_hour(batch).schema.names
    assert [column.split()[0] for column in jobs.SUMS.split(", ")] == names


def seen(state: str, owned: dict[str, tuple[int, ...]], committed=(), end: int = 10) -> Snapshot:
    """The group with these owners of topic t's four partitions, and what is committed of each."""
    members = tuple(
        MemberSeen(f"{name}-id", name, partitions=frozenset(TopicPartition("t", number) for number in numbers))
        for name, numbers in owned.items()
    )
    committed = dict(committed)
    positions = {TopicPartition("t", n): GroupPosition(committed.get(n), end, 0) for n in range(4)}
    return Snapshot(0.0, state, "range", "127.0.0.1:9092", members, positions)


BOTH = {"demo-A": (0, 1), "demo-B": (2, 3)}


BATCH = {"restored": 0, "late": 0}


def state() -> DemoState:
    made = DemoState({"demo": Group(4)}, total=100)
    made.applications = {name: Application(name) for name in "AB"}
    made.hear_group("demo", Snapshot(0.0))
    made.hear_group("demo", seen("Stable", BOTH))
    return made


def test_a_scene_knows_who_owns_what_and_the_lag():
    made = state()
    assert made.shared_by({"A", "B"})
    assert not made.shared_by({"A"})
    assert made.tasks_of("B") == [("demo", 2), ("demo", 3)]
    assert made.lag == made.in_topics == 40
    made.now = 2.0
    made.hear_group("demo", seen("Stable", {"demo-A": (0, 1, 2, 3)}, {0: 10, 1: 4}))
    assert (made.counted, made.lag, made.groups["demo"].history.rate) == (14, 26, 7.0)
    assert made.shared_by({"A"})
    assert [event.text for event in made.events] == [
        "the broker answers",
        "A joined",
        "B joined",
        "rebalance, over between two looks: A 2, B 2",
        "no member → A: t 0-1",
        "no member → B: t 2-3",
        "B left (or its session ended)",
        "rebalance, over between two looks: A 4",
        "B → A: t 2-3",
    ]
    assert made.groups["demo"].history.rebalances == 2


def test_sharing_is_timed_and_a_rebalance_begins_it_anew():
    made = state()
    made.now = 9.0
    made.hear_group("demo", seen("Stable", BOTH))
    assert made.shared_for({"A", "B"}) == 9.0
    assert made.shared_for({"A"}) == 0.0
    made.hear_group("demo", seen("PreparingRebalance", BOTH))
    assert made.shared_for({"A", "B"}) == 0.0
    made.now = 11.0
    made.hear_group("demo", seen("Stable", BOTH))
    made.now = 12.5
    assert made.shared_for({"A", "B"}) == 1.5


def test_a_scene_notices_that_the_broker_is_away_and_back_once_each():
    made = state()
    for _ in range(3):
        made.hear_group("demo", Away(0.0, "refused"))
    for _ in range(2):
        made.hear_group("demo", seen("Stable", BOTH))
    texts = [event.text for event in made.events]
    assert texts.count("the broker does not answer") == texts.count("the broker answers again") == 1
    assert len([text for text in texts if "answer" in text]) == 3


def test_a_group_that_is_rebalancing_is_not_shared():
    made = state()
    made.hear_group("demo", seen("PreparingRebalance", BOTH))
    assert not made.shared_by({"A", "B"})


def test_applications_report():
    made = DemoState({"demo": Group(4)}, total=100, applications={"A": Application("A")})
    made.hear_application("A", {"spark": "up"})
    assert made.applications["A"].status == "ready"
    made.hear_application("A", BATCH)
    made.hear_application("A", BATCH)
    assert made.applications["A"].batches == 2


def test_it_says_what_it_waits_for():
    made = DemoState({"demo": Group(4)}, total=100)
    assert made.hint() == "the broker is starting"
    made.applications = {name: Application(name) for name in "ABC"}
    made.hear_group("demo", Snapshot(0.0))
    assert made.hint().startswith("Spark is starting in A, B and C (10–30 s")
    for name in "ABC":
        made.hear_application(name, {"spark": "up"})
    made.waiting = "A and B share the partitions"
    assert made.hint() == "waiting until A and B share the partitions"
    made.hear_group("demo", seen("Stable", BOTH))
    assert made.hint() == "first batch of A and B: compiling"
    for name in "AB":
        made.hear_application(name, BATCH)
    made.killed("B")
    made.now += 3.0
    assert made.hint() == f"the broker waits for the session of B to end: {SESSION_TIMEOUT_S - 3:.0f} s"
    made.hear_group("demo", Away(0.0, "refused"))
    assert made.hint().startswith("the broker is away")
    made.hear_group("demo", seen("Stable", {"demo-A": (0, 1, 2, 3)}))
    assert made.hint() == "waiting until A and B share the partitions"


def test_plain_lines_show_each_event_once(capsys):
    made = state()
    plain = PlainView(partial(in_a_line, made), stamp, 5.0)
    plain.seen(made.events, 0.0)
    plain.tick()
    plain.seen([], 4.9)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("s  ")[1] for line in lines] == [event.text for event in made.events]
    plain.seen([], 5.0)
    plain.seen([], 9.9)
    (figures,) = capsys.readouterr().out.splitlines()
    assert "lag 40" in figures
    plain.close()
    assert not capsys.readouterr().out


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    return state_of(pid) not in "ZX"


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


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_is_heard_and_killed_with_all_it_started(tmp_path):
    inbox: queue.Queue = queue.Queue()
    child = Child("c", [sys.executable, "-c", HAS_A_CHILD], tmp_path / "c.log", inbox)
    try:
        said = inbox.get(timeout=60)
        assert isinstance(said, ChildMessage)
        assert said.child == "c"
        assert alive(said.message["pid"])
    finally:
        end_all([child])
    assert child.exit_code == -signal.SIGKILL
    assert gone_within(said.message["pid"], 60)


@pytest.mark.process
def test_a_child_that_is_asked_to_end_ends(tmp_path):
    inbox: queue.Queue = queue.Queue()
    child = Child("c", [sys.executable, "-c", TALKS], tmp_path / "c.log", inbox)
    try:
        inbox.get(timeout=60)
        child.terminate()
        assert child.process.wait(60) == -signal.SIGTERM
        assert child.last_words().splitlines()[0] == "noise"
    finally:
        end_all([child])


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the parent_death is the kernel's")
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
    assert gone_within(pid, 60)


@pytest.mark.process
def test_temporary_files_of_the_demos_processes_are_in_its_own_directory(tmp_path):
    environment = Environment(tmp_path, 3)
    tell = """
import json, os, tempfile
print(json.dumps({"python": tempfile.gettempdir(), "java": os.environ["JDK_JAVA_OPTIONS"]}))
"""
    child = environment._start("c", [sys.executable, "-c", tell])
    assert child.process.wait(60) == 0
    said = environment.inbox.get(timeout=60).message
    scratch = str(tmp_path / "tmp")
    assert said["python"] == scratch
    assert f'"-Djava.io.tmpdir={scratch}"' in said["java"]
