"""The stateful demo's parts, each alone, and all of it with a part of the flights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pandas as pd
import pytest

from roster.cli.demo import oracle, view
from roster.cli.demo.environment import flights, in_order
from roster.cli.demo.jobs import AIRCRAFT, CARRIERS, GRACE, totals_of, windows_of
from roster.cli.demo.oracle import Figures, Outcome, read_flights
from roster.cli.demo.state import SESSION_TIMEOUT_S, Application, DemoState, Group
from roster.cli.demo.takeover import ask
from roster.cli.groups.picture import Size
from roster.console.snapshot import Away, MemberSeen, Snapshot
from roster.model import Address, GroupPosition, TopicPartition
from tests.cli.demo_processes import left_behind, read_until
from tests.waiting import until

JOBS = (AIRCRAFT, CARRIERS)
ROWS = [
    ("UA", "N1", "2013-01-01T10:00:00Z", 2, 100),
    ("UA", "N1", "2013-01-01T23:00:00Z", None, 50),
    ("AA", None, "2013-01-01T10:00:00Z", -3, 70),
]


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(ROWS, columns=["carrier", "tailnum", "time_hour", "dep_delay", "distance"])


def test_totals_of_aircraft_leave_out_flights_without_a_tail_number(frame):
    assert AIRCRAFT.expected(frame) == {("N1",): Figures(2, (1, 2, 150))}


def test_a_flight_is_in_each_window_that_has_its_hour(frame):
    expected = CARRIERS.expected(frame)
    midnight = int(pd.Timestamp("2013-01-01T00:00:00Z").timestamp())
    starts = {at: (at - midnight) // 3600 for _, at in expected}
    assert {(name, starts[at]): figures for (name, at), figures in expected.items()} == {
        **{("UA", start): Figures(1, (1, 2)) for start in (-12, -6)},
        **{("UA", start): Figures(2, (1, 2)) for start in (0, 6)},
        **{("UA", start): Figures(1, (0, 0)) for start in (12, 18)},
        **{("AA", start): Figures(1, (1, -3)) for start in (-12, -6, 0, 6)},
    }


def test_output_records_are_the_groups_of_the_plain_computation():
    totals = {"tailnum": "N1", "flights": 2, "departed": 1, "minutes": 2, "miles": 150}
    assert totals_of([json.dumps(totals).encode()]) == {("N1",): Figures(2, (1, 2, 150))}
    delays = {"window_start": "2013-01-01T06:00:00Z", "carrier": "UA", "flights": 1, "departed": 0, "minutes": None}
    at = int(pd.Timestamp("2013-01-01T06:00:00Z").timestamp())
    assert windows_of([json.dumps(delays).encode()]) == {("UA", at): Figures(1, (0, 0))}


def outcome(records: int = 3, late: int = 0) -> Outcome:
    verdict = oracle.compare({("a",): Figures(3)}, {("a",): Figures(records)})
    return Outcome(3, {"aircraft": verdict, "windows": oracle.compare({}, {})}, late)


def test_the_outcome_says_that_all_is_equal_or_what_is_not():
    assert outcome().holds
    assert str(outcome()) == "3 flights, the state of 1 aircraft and 0 windows equals a plain computation"
    assert not outcome(late=1).holds
    assert not outcome(records=4).holds
    assert "NOT equal to a plain computation: aircraft: 3 records in, 3 counted once, 0 lost, 1 double" in str(
        outcome(records=4)
    )


def seen(owners: dict[str, range], committed: int = 5, end: int = 20) -> Snapshot:
    members = tuple(
        MemberSeen(name, f"demo-{name}", partitions=frozenset(TopicPartition("t", number) for number in numbers))
        for name, numbers in owners.items()
    )
    positions = {TopicPartition("t", number): GroupPosition(committed, end) for number in range(4)}
    return Snapshot(0.0, "Stable", members=members, positions=positions)


@pytest.fixture
def state() -> DemoState:
    """A runs tasks 0 and 1 of both groups, B 2 and 3; of those of A there are copies in B."""
    made = DemoState({job.group: Group(4) for job in JOBS}, copied=True, total=80)
    for name in "AB":
        made.applications[name] = Application(name)
        made.hear_application(name, {"spark": "up"})
    for job in JOBS:
        made.hear_group(job.group, seen({"A": range(2), "B": range(2, 4)}))
        made.hear_application("B", {"group": job.group, "copies": {"0": 7, "1": 12_000}})
    return made


def test_owners_copies_and_gaps_are_known(state):
    assert state.shared_by({"A", "B"})
    assert not state.shared_by({"A"})
    assert (state.counted, state.lag, state.share) == (40, 120, 0.25)
    assert state.copies("aircraft", 0) == {"B": 7}
    assert state.copies("aircraft", 2) == {}
    assert not state.is_covered()
    for job in JOBS:
        state.hear_application("A", {"group": job.group, "copies": {"2": 0, "3": 0}})
        state.hear_application("B", {"group": job.group, "copies": {"0": 0, "1": 10_000}})
    assert state.is_covered()


def test_a_task_that_an_application_runs_is_no_copy_of_its_own(state):
    state.hear_group("aircraft", seen({"B": range(4)}))
    assert state.copies("aircraft", 0) == {}
    assert state.copies("carriers", 0) == {"B": 7}


def test_a_killed_application_keeps_its_tasks_until_its_session_ends_but_no_copies(state):
    state.now = 10.0
    state.killed("B")
    state.hear_application("B", {"group": "aircraft", "copies": {"0": 0}})
    assert state.copies("aircraft", 0) == {}
    state.now = 12.0
    assert state.hint() == f"the broker waits for the session of B to end: {SESSION_TIMEOUT_S - 2:.0f} s"
    for job in JOBS:
        state.hear_group(job.group, seen({"A": range(4)}, 20))
    state.waiting = "all flights are counted"
    assert state.hint() == "waiting until all flights are counted"
    assert state.shared_by({"A"})
    assert state.is_counted
    state.total = 81
    assert not state.is_counted, "the file has more records than the topics"


def test_batches_add_up(state):
    for rows in (5, 6):
        state.hear_application("A", {"group": "aircraft", "rows": rows, "generation": 1, "restored": 1, "late": 0})
    app = state.applications["A"]
    assert (app.rows, app.batches, app.restored, app.late) == (11, 2, 2, 0)


def test_a_broker_that_does_not_answer_is_said(state):
    state.hear_group("aircraft", Away(0.0, "refused"))
    assert state.broker == "away"


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (120, 45), (80, None)])
def test_the_picture_fits_and_shows_owner_standby_and_gap_of_each_task(state, width, height):
    for number in range(40):
        state.happened(f"happened {number}")
    lines = [line.plain for line in view.lines_of(state, Size(width, height))]
    assert height is None or len(lines) <= height
    assert max(map(len, lines)) <= width
    texts = [" ".join(line.split("│")[0].split()) for line in lines]
    assert "aircraft 0_0 A B 7 15" in texts
    assert "carriers 0_1 A B 12,000 15" in texts
    assert any("happened 39" in line for line in lines)


def test_a_line_has_owners_and_copies_too(state):
    line = view.in_a_line(state)
    assert "aircraft [0 A+B:7, 1 A+B:12000, 2 B, 3 B]" in line
    assert "counted 40 of 160" in line


@pytest.mark.gate
def test_flights_are_streamed_in_the_order_of_time_so_that_none_is_late(tmp_path):
    """The grace is longer than any flight is behind the latest one before it."""
    ordered = read_flights(in_order(flights(JOBS), tmp_path, None).path)
    hours = pd.to_datetime(ordered["time_hour"], utc=True)
    assert (hours.cummax() - hours).max() < pd.Timedelta(GRACE)
    assert len(ordered) == len(read_flights(flights().path))
    first = read_flights(in_order(flights(JOBS), tmp_path, 250).path)
    pd.testing.assert_frame_equal(first, ordered.head(250), check_dtype=False)


def test_a_question_has_an_answer_or_none(tmp_path):
    answers = {"/stores/totals/get?key=N1": (200, {"row": {"flights": 3}}), "/stores/totals/get?key=N2": (503, {})}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, document = answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_):
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = Address("127.0.0.1", server.server_port)
        assert ask(address, "/stores/totals/get", key="N1") == {"row": {"flights": 3}}
        assert ask(address, "/stores/totals/get", key="N2") is None
        server.shutdown()
        thread.join()
    assert ask(address, "/stores/totals/get", key="N1") is None


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.gate
def test_some_flights_equal_a_plain_computation_through_a_kill(tmp_path):
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", "from roster.cli import main; main()", "demo", "--stateful"]
    demo = subprocess.run(
        [*command, "--records", "6000", "--rate", "3000", "--deadline", "840"],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    *_, last = demo.stdout.splitlines()
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert last.startswith("demo: 6,000 flights, the state of ")
    assert last.endswith(" windows of carriers equals a plain computation")
    assert "B is killed with -9" in demo.stdout
    assert "A has results of all of them" in demo.stdout
    assert "asked of A, kept in B" in demo.stdout, "state of another application, over HTTP"
    assert "as the plain computation" in demo.stdout
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.gate
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_amid_the_take_over_ends_everything_and_removes_the_directory(tmp_path):
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", "from roster.cli import main; main()", "demo", "--stateful"]
    demo = subprocess.Popen(
        [*command, "--records", "6000", "--rate", "3000", "--deadline", "840"],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        read_until(demo, "B is killed")
        demo.send_signal(signal.SIGINT)
        output, _ = demo.communicate(timeout=180)
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()
    assert demo.returncode == 130
    assert "Traceback" not in output
    until(lambda: not left_behind(tmp_path), what=lambda: left_behind(tmp_path))
    assert not list((tmp_path / "tmp").glob("roster-demo-*"))
