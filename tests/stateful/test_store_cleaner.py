"""Stores are cleaned, in time that a test says."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from roster.member.task_assignor import HeldTasks
from roster.model.tasks import TaskId
from roster.pipeline.errors import PipelineError
from roster.state.cleaning import sizes
from roster.stateful.store_cleaner import Cleaned, StoreCleaner, Wanted, clean_host
from roster.stateful.tasks.store_location import Place
from tests.state.test_cleaning import make
from tests.stateful.test_restore_schedule import Case, source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Host:
    def __init__(self, limit: int | None = None, *, is_local: bool = True) -> None:
        self.case = Case({0: 9, 1: 9, 2: 9, 3: 9})
        self.case.join({0: 9, 1: 9, 2: 9})
        self.case.member.become([0], [1])
        self.cleaner = StoreCleaner(
            self.case.copies, 600.0, limit, self.on_hosts, is_local=is_local, now=lambda: self.case.at
        )
        self.asked: list[Wanted] = []
        self.answer = Cleaned("p", [], {}, 0)

    def at(self, seconds: float) -> Sequence[Wanted]:
        self.case.at, before = seconds, len(self.asked)
        if seconds >= self.cleaner.due_at:
            self.cleaner.clean()
        return self.asked[before:]

    def on_hosts(self, wanted: Wanted) -> Sequence[Cleaned]:
        self.asked.append(wanted)
        return [self.answer, self.answer]


def test_own_stores_are_kept_every_minute_and_others_removed_after_the_delay_only() -> None:
    host = Host()
    keeping = Wanted({"0_0", "0_1"}, {"0_1"}, None, None)
    assert host.at(0) == host.at(59) == []
    assert host.at(60) == [keeping]
    assert host.at(61) == []
    assert host.at(599) == [keeping], "tasks that it had before may come back until then"
    assert host.at(659) == [keeping._replace(delay=600.0)]
    host.answer = Cleaned("p", ["0_2", "0_2.1"], {}, 0)
    host.at(719)
    assert host.case.copies._gaps()[(0, 2)] == 9, "the group learns that the store is gone"


def test_tasks_without_state_keep_their_tables() -> None:
    host, table = Host(), TaskId(1, 5)
    host.case.member.held = HeldTasks(active=frozenset({TaskId(0, 0), table}))
    assert [wanted.kept for wanted in host.at(60)] == [{"0_0", "1_5"}]
    host.case.member.held = HeldTasks(active=frozenset({TaskId(0, 0)}))
    host.answer = Cleaned("p", [str(table), "1_5-backup"], {}, 0)
    assert [wanted.kept for wanted in host.at(700)] == [{"0_0"}]


def test_sizes_are_looked_at_with_every_batch_unless_that_needs_a_spark_job() -> None:
    assert [len(Host(limit=1).at(seconds)) for seconds in (1, 2, 3)] == [1, 1, 1]
    host = Host(limit=1, is_local=False)
    assert [len(host.at(seconds)) for seconds in (1, 2, 11)] == [1, 0, 1]


def test_copies_are_given_up_and_not_made_again_and_own_tasks_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(limit=1_000)
    host.case.join({0: 9, 1: 5})
    assert host.case.jobs() == [1]
    host.answer = Cleaned("p", [], {"0_1": 300}, 900)
    with caplog.at_level(logging.WARNING):
        host.at(3)
    assert "State.max_bytes 1000: gave up the standby copies of 0_1 (300 bytes)" in caplog.text
    assert host.case.jobs() == []
    host.case.member.become([0, 1])
    host.case.copies.assigned(source(1))
    assert host.case.jobs() == [1], "now it runs here"
    host.answer = Cleaned("p", [], {}, 1_001)
    with pytest.raises(PipelineError, match=r"State\.max_bytes: the stores of the tasks that run here take 1001 bytes"):
        host.at(20)


def test_a_host_gives_up_what_is_too_much(tmp_path: Path) -> None:
    place = Place(str(tmp_path), "c", "id")
    make(place.root, "0_0", "0_1", "0_2", entries=3_000)
    before = sizes(place.root)
    wanted = Wanted({"0_0", "0_1"}, {"0_1"}, 600.0, before["0_0"] + before["0_1"])
    done = clean_host([place], wanted)
    assert (done.removed, done.given_up, done.bytes) == (["0_2"], {}, before["0_0"] + before["0_1"])
    done = clean_host([place], wanted._replace(limit=before["0_0"], delay=None))
    assert (done.removed, done.given_up, done.bytes) == ([], {"0_1": before["0_1"]}, before["0_0"])
