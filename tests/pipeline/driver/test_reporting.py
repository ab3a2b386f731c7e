"""What a pipeline says by default: which lines, when, and where they go."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace

import pytest

from roster.client import Ownership
from roster.model import TopicPartition
from roster.pipeline.batch import StoreProgress
from roster.pipeline.driver.reporting import INTERVAL, Reporter, brief, level_of
from roster.spark import PipelineError, Progress

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
OWNED = Ownership(generation=3, member_id="m-1", partitions=frozenset({P0, P1}), epoch=1)
BATCH = Progress("g", "m-1", 3, 0, 0, 500, {}, {P0: 5, P1: 2}, 1, rows=1_000)


class Heard:
    """A reporter on a clock of the test's, and its lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "roster.pipeline")
        self.now = 100.0
        self.reporter = Reporter("g", now=lambda: self.now)
        self._caplog = caplog

    def lines(self) -> list[str]:
        found = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Heard:
    return Heard(caplog)


def test_joining_is_one_line_with_the_member_id_once(heard: Heard) -> None:
    heard.reporter.owns(Ownership(), None)
    heard.reporter.owns(OWNED, "range")
    heard.reporter.owns(OWNED, "range")
    assert heard.lines() == ['g: joined partitions="t 0-1" generation=3 assignor=range member=m-1']


def test_what_moves_is_named(heard: Heard) -> None:
    heard.reporter.owns(OWNED, "range")
    heard.reporter.owns(replace(OWNED, partitions=frozenset({P1, P2}), generation=4), "range")
    heard.reporter.owns(replace(OWNED, partitions=frozenset({P1}), lost=frozenset({P2}), generation=-1), "range")
    assert heard.lines()[1:] == [
        'g: handed over partitions="t 0" owned=2 generation=4',
        'g: took over partitions="t 2" owned=2 generation=4',
        'g: lost partitions="t 2" owned=1',
    ]


def test_progress_is_a_line_at_most_every_interval_and_no_batch_is_left_out(heard: Heard) -> None:
    heard.reporter.progress(BATCH)
    assert heard.lines() == ["g: progress batches=1 rows=1000 rows_per_second=2000 lag=7 owned=2 batch=0 generation=3"]
    for number in (1, 2):
        heard.now += 3.0
        heard.reporter.progress(replace(BATCH, batch=number))
    assert heard.lines() == []
    heard.now += INTERVAL - 6.0
    heard.reporter.tick()
    assert heard.lines() == ["g: progress batches=2 rows=2000 rows_per_second=2000 lag=7 owned=2 batch=2 generation=3"]
    heard.now += INTERVAL
    heard.reporter.tick()
    assert heard.lines() == [], "nothing new"
    heard.reporter.ended("SIGTERM")
    assert heard.lines() == ["g: stopped reason=SIGTERM batches=3 rows=3000"]


def test_a_failure_is_an_error_with_its_one_telling_line(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    heard.reporter.ended("", ValueError("no\nsuch thing"))
    assert caplog.records[0].levelno == logging.ERROR
    assert heard.lines() == ['g: failed reason="ValueError: no" batches=0 rows=0']
    heard.reporter.ended(
        "", PipelineError("'x' is not a schema: [PARSE] no", field="json_columns", fix="Mend it\nhere")
    )
    told = "json_columns: 'x' is not a schema: [PARSE] no. Mend it"
    assert heard.lines() == [f'g: failed reason="{told}" batches=0 rows=0'], "all of what the user is to mend"


def test_switched_off_only_warnings_are_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    reporter = Reporter("g", enabled=False)
    reporter.owns(OWNED, "range")
    reporter.left("stalled")
    assert [record.getMessage() for record in caplog.records] == ['g: handed back partitions="t 0-1" reason=stalled']


def test_partitions_are_written_as_runs_and_cut() -> None:
    assert brief({P0, P1, P2, TopicPartition("a", 7)}) == "a 7; t 0-2"
    assert brief({TopicPartition("t", 2 * n) for n in range(9)}) == "t 0,2,4,6,8,10,12,14 and more, 9 in all"
    assert brief(set()) == ""


@pytest.mark.parametrize(
    ("switch", "environment", "level"),
    [
        (None, "", logging.INFO),
        (None, "off", None),
        (None, "DEBUG", logging.DEBUG),
        (True, "off", logging.INFO),
        (False, "debug", None),
        ("warning", "", logging.WARNING),
    ],
)
def test_the_switch_and_the_environment(
    switch: bool | str | None, environment: str, level: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSTER_LOG", environment)
    assert level_of(switch) == level


def test_a_switch_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match=r"log: 'loud' is not known\. Use one of 0, 1, debug"):
        level_of("loud")
    monkeypatch.setenv("ROSTER_LOG", "loud")
    with pytest.raises(PipelineError, match="ROSTER_LOG: 'loud' is not known"):
        level_of(None)


@pytest.mark.process
@pytest.mark.parametrize(
    ("configured", "lines"),
    [
        ("", ["INFO roster.pipeline: g: stopped reason=now batches=0 rows=0"]),
        ("logging.basicConfig(level=logging.INFO)", ["INFO:roster.pipeline:g: stopped reason=now batches=0 rows=0"]),
        ("logging.basicConfig()", []),
        ("logging.getLogger('roster').addHandler(logging.NullHandler())", []),
    ],
)
def test_lines_go_to_stderr_unless_logging_is_configured_and_never_twice(configured: str, lines: list[str]) -> None:
    """In a process of its own: pytest configures logging."""
    program = (
        f"import logging\n{configured}\n"
        "from roster.pipeline.driver.reporting import Reporter, enable_logging\n"
        "enable_logging(logging.INFO); enable_logging(logging.INFO)\n"
        "Reporter('g').ended('now')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    written = ended.stderr.splitlines()
    assert [line[line.find("INFO") :] for line in written] == lines


def test_a_run_that_found_nothing_new_says_so(heard: Heard) -> None:
    heard.reporter.ended("")
    assert heard.lines() == ['g: stopped reason="nothing is new since the group\'s offsets" batches=0 rows=0']
    heard.reporter.progress(BATCH)
    heard.reporter.ended("")
    assert heard.lines()[-1].startswith('g: stopped reason="all that was available is done" batches=1')


def test_late_rows_are_warned_of_once_a_minute_if_they_are_many(heard: Heard) -> None:
    def ran(late: int, seconds: float) -> list[str]:
        heard.now += seconds
        behind = {60_000: late - late // 3, 7_200_000: late // 3} if late else {}
        told = StoreProgress(3, 9, late=late, late_behind_ms=behind, late_sources={"orders-1": late} if late else {})
        stores = {"totals": {"1_0": told}, "firsts": {"1_0": StoreProgress(3, 9)}}
        heard.reporter.progress(replace(BATCH, late=late, stores=stores))
        return [line for line in heard.lines() if "late rows" in line]

    assert ran(12, 30) == []
    assert ran(8, 31) == [], "20 of 2,000 rows are not more than 1 %"
    assert ran(21, 59) == []
    (line,) = ran(0, 2)
    assert line == (
        "g: late rows are left out late=21 rows=2000 stores=totals partitions=orders-1 median_s=60 most_s=7200"
        ' fix="a grace of 7200 s takes them, and late_topic keeps them"'
    )
    assert ran(500, 1) == []
    heard.reporter.ended("")
    first, last = heard.lines()
    assert "late=500 rows=1000" in first
    assert last.endswith("batches=5 rows=5000 late=541")


def test_late_rows_without_a_time_are_named_as_such(heard: Heard) -> None:
    stores = {"totals": {"0_1": StoreProgress(3, 9, late=50, late_behind_ms={1_500: 20}, late_sources={"a-1": 50})}}
    heard.reporter.progress(replace(BATCH, late=50, stores=stores))
    stores = {"totals": {"0_1": StoreProgress(3, 9, late=50, late_sources={"a-1": 50})}}
    heard.now += 60
    heard.reporter.progress(replace(BATCH, late=50, stores=stores))
    heard.reporter.progress(replace(BATCH, late=50, stores=stores))
    heard.reporter.ended("")
    first, last = (line for line in heard.lines() if "late rows" in line)
    assert "median_s=2 most_s=2 without_time=80" in first
    assert 'partitions=a-1 without_time=50 fix="give them a time"' in last


def test_progress_names_the_partition_that_holds_most_time_back(heard: Heard) -> None:
    tasks = {
        "1_0": StoreProgress(3, 9, held_by="orders-3", held_ms=7_200_000),
        "1_1": StoreProgress(3, 9, held_by="orders-1", held_ms=9_000_000),
        "1_2": StoreProgress(3, 9, held_by=""),
    }
    heard.reporter.progress(replace(BATCH, stores={"totals": tasks, "firsts": {"0_0": StoreProgress(3, 9)}}))
    assert "time_held_by=orders-1 held_s=9000" in heard.lines()[-1]
    heard.now += 60
    heard.reporter.progress(replace(BATCH, stores={"totals": {"1_2": tasks["1_2"]}}))
    assert "held" not in heard.lines()[-1]


def test_a_group_that_does_not_write_says_so_once(heard: Heard) -> None:
    for results in ("", "paused, shops writes", "paused, shops writes", "", "paused"):
        heard.reporter.paused(results)
    assert heard.lines() == [
        'g: writes no results results="paused, shops writes"',
        "g: writes no results results=paused",
    ]


def test_dead_letters_are_one_line_in_ten_seconds_with_their_sum_and_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard(caplog)
    heard.reporter = Reporter("g", now=lambda: heard.now, dead_letter_topic="bad")
    reporter = heard.reporter

    def told() -> list[str]:
        return [line for line in heard.lines() if "dead letters" in line]

    reporter.progress(replace(BATCH, dead_letters=2, first_dead_letter="t-0 offset 7: map_arrow: ValueError: no"))
    assert told() == ['g: dead letters records=2 topic=bad first="t-0 offset 7: map_arrow: ValueError: no"']
    for number in range(3):
        heard.now += 1.0
        reporter.progress(replace(BATCH, dead_letters=number, first_dead_letter=f"n{number}" if number else ""))
    assert told() == []
    heard.now += INTERVAL
    reporter.tick()
    assert told() == ["g: dead letters records=3 topic=bad first=n1"]
    reporter.progress(replace(BATCH, dead_letters=1, first_dead_letter="last"))
    reporter.ended("")
    assert told() == ["g: dead letters records=1 topic=bad first=last"], "not lost at the end"


@pytest.mark.parametrize(
    ("is_beside", "who"), [(True, "another pipeline of this session has"), (False, "other members have")]
)
def test_without_a_partition_it_does_not_say_that_all_is_read(is_beside: bool, who: str, heard: Heard) -> None:
    heard.reporter._is_beside = lambda: is_beside
    heard.reporter.owns(replace(OWNED, partitions=frozenset()), "range")
    heard.lines()
    heard.reporter.ended("")
    assert heard.lines() == [f'g: stopped reason="it owns no partition: {who} them" batches=0 rows=0']
