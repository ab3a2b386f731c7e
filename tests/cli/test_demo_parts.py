"""The demo's parts, each alone: plain computation, the applications' work, state, view, parent_death."""

from __future__ import annotations

import contextlib
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
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from roster.cli.demo import jobs, oracle, view
from roster.cli.demo.environment import Environment, flights, flights_of, users_file
from roster.cli.demo.oracle import Figures
from roster.cli.demo.processes import Child, ChildMessage, end_all
from roster.cli.demo.state import SESSION_TIMEOUT_S, Application, DemoState, Group
from roster.cli.errors import UserError
from roster.cli.groups import live
from roster.cli.groups.picture import Size
from roster.cli.load.formats import open_source
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


@pytest.fixture(scope="module")
def flights_source(tmp_path_factory):
    workload = flights()
    if is_quick():  # the first ones
        whole = pd.read_csv(workload.path, dtype=str, keep_default_na=False, nrows=20_000)
        path = tmp_path_factory.mktemp("flights") / "flights.csv"
        whole.to_csv(path, index=False)
        workload = flights_of(path, workload.jobs)
    (job,) = workload.jobs
    source = open_source(workload.path, job.key, nulls=("NA",))
    checked = source.check()
    expected = workload.expected()
    assert expected.records == oracle.total_of(expected.groups[job.group])
    return job, source, checked, expected.groups[job.group]


def test_the_flights_are_all_there_and_keyed_by_carrier_and_tail_number(flights_source):
    _, source, checked, expected = flights_source
    assert checked.rows == oracle.total_of(expected) == FLIGHTS
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


def test_a_users_file_is_counted_by_key_and_null_is_a_key(tmp_path):
    (tmp_path / "f.csv").write_text("k,v\na,1\nb,2\na,3\n,4\n")
    expected = jobs.keys_in_file(open_source(tmp_path / "f.csv", ("k",)))
    assert expected == {("a",): Figures(2), ("b",): Figures(1), (None,): Figures(1)}
    batch = pa.record_batch({"key": pa.array([b"a", None, b"b", b"a"], pa.binary())})
    (tmp_path / "out").mkdir()
    pq.write_table(pa.Table.from_batches([jobs.records_by_key(batch)]), tmp_path / "out" / "0.parquet")
    assert jobs.keys_in_output(tmp_path / "out") == expected


def test_no_output_at_all_is_everything_lost(tmp_path):
    expected = {("a",): Figures(2)}
    assert oracle.compare(expected, jobs.keys_in_output(tmp_path / "none")).lost == 2


@pytest.mark.parametrize("name", sorted(jobs.SUMS))
def test_the_declared_schema_names_the_columns_the_function_returns(name):
    function, schema = jobs.SUMS[name]
    value = b'{"carrier": "UA", "time_hour": "2013-01-01T10:00:00Z", "dep_delay": 1}'
    batch = pa.record_batch({"key": pa.array([b"k"], pa.binary()), "value": pa.array([value], pa.binary())})
    assert [column.split()[0] for column in schema.split(", ")] == function(batch).schema.names


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


def batch(rows: int, generation: int) -> dict[str, int]:
    return {"rows": rows, "generation": generation, "restored": 0, "late": 0}


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
    assert [row.lag for row in made.groups["demo"].rows.partitions] == [0, 6, 10, 10]
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
    made.hear_application("A", batch(7, 3))
    made.hear_application("A", batch(5, 4))
    made.loaded["loader"] = 12
    app = made.applications["A"]
    assert (app.rows, app.batches, app.generation) == (12, 2, 4)
    assert view.in_a_line(made).count("generation") == 1


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
    made.loaded["loader"] = 12
    assert made.hint() == "first batch of A and B: compiling"
    for name in "AB":
        made.hear_application(name, batch(7, 3))
    made.killed("B")
    made.now += 3.0
    assert made.hint() == f"the broker waits for the session of B to end: {SESSION_TIMEOUT_S - 3:.0f} s"
    made.hear_group("demo", Away(0.0, "refused"))
    assert made.hint().startswith("the broker is away")
    made.hear_group("demo", seen("Stable", {"demo-A": (0, 1, 2, 3)}))
    assert made.hint() == "waiting until A and B share the partitions"


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (80, 45), (120, 45)])
@pytest.mark.parametrize("events", [0, 1, 40])
def test_the_picture_fits_and_shows_members_partitions_and_the_newest_event(width, height, events):
    made = state()
    made.events += [replace(made.events[-1], text=f"happened {number}") for number in range(events)]
    made.happened("the newest one")
    lines = [line.plain for line in view.lines_of(made, Size(width, height))]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert any(line.rstrip().endswith("batches") for line in lines) or width < 71
    for words in ("A PySpark", "B PySpark", "broker up", "the newest one", "0 of 100", "lag 40"):
        assert words in text
    assert all(any(f"{number} {owner}" in " ".join(line.split()) for line in lines) for number, owner in OWNERS)


OWNERS = [(0, "A"), (1, "A"), (2, "B"), (3, "B")]


def test_the_last_picture_has_all_events():
    out = io.StringIO()
    made = state()
    console = Console(file=out, width=80, height=24, force_terminal=True, color_system=None)
    shown = live.LiveView(console, partial(view.lines_of, made))
    for number in range(60):
        made.happened(f"event number {number}.")
    shown.seen(made.events, made.now)
    shown.close()
    rest = out.getvalue().split("\x1b[?1049l")[-1]
    assert all(f"event number {number}." in rest for number in range(60))


def test_plain_lines_show_each_event_once(capsys):
    made = state()
    plain = live.open_view(partial(view.lines_of, made), partial(view.in_a_line, made), view.stamp, 5.0)
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


@pytest.mark.parametrize(
    ("content", "key", "words"),
    [
        (None, ("a",), "--input: "),
        ("a,b\n1,2\n", ("c",), "--key: no column c"),
        ("a,b\n1\n", ("a",), "--input: "),
        ("a,b\n", ("a",), "holds no records"),
    ],
)
def test_a_bad_file_or_key_is_found_before_anything_starts_and_names_the_option(tmp_path, content, key, words):
    if content is not None:
        (tmp_path / "f.csv").write_text(content)
    with pytest.raises(UserError) as raised:
        users_file(tmp_path / "f.csv", key, None)
    assert words in raised.value.message
    assert "FILE:" not in raised.value.message


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
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_paused_child_stands_still_until_it_is_resumed_and_can_be_killed(tmp_path):
    inbox: queue.Queue = queue.Queue()
    ticks = "import json, time\nwhile True: print(json.dumps({'tick': 1}), flush=True); time.sleep(0.01)"
    child = Child("c", [sys.executable, "-c", ticks], tmp_path / "c.log", inbox)
    try:
        inbox.get(timeout=60)
        child.pause()
        while state_of(child.pid) != "T":
            time.sleep(0.01)
        child.resume()
        while state_of(child.pid) == "T":
            time.sleep(0.01)
        while not inbox.empty():
            inbox.get()
        inbox.get(timeout=60)
        child.pause()
    finally:
        end_all([child])
    assert child.exit_code == -signal.SIGKILL


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
    environment = Environment(tmp_path, flights(), 3)
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
