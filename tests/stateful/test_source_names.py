"""Which partition holds time back, and which ones late rows come from, as a pipeline tells it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from roster.client import ClientError
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import StoreProgress
from roster.state.lmdb_store import LmdbStore
from roster.state.source_times import DELAY, NOTICE, SOURCE, Notice, labelled, source_of
from roster.state.store import Position
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.input_backlog import SourceNames
from roster.stateful.tasks.by_source import by_source
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan
from tests.state.aggregate_texts import aggregate_of

if TYPE_CHECKING:
    from pathlib import Path

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
COLUMNS = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC"))])
WINDOWS = WindowedAggregation(("k",), {"n": aggregate_of("count(*)")}, Window("t", 10 * SECOND), final=True)
ZERO, ONE, TWO = (source_of("orders", number) for number in range(3))


def row(source: int, time: int, delay: int = 0) -> dict[str, Any]:
    return {"k": "a", "t": EPOCH + time * SECOND, SOURCE: source, DELAY: delay * 1_000_000}


def notice(times: dict[int, int], behind: tuple[int, ...] = (), ended: tuple[int, ...] = ()) -> dict[str, Any]:
    told = {source: time * 1_000_000 for source, time in times.items()}
    return {SOURCE: 0, DELAY: 0, NOTICE: Notice(1, behind, tuple(times), told, ended).encode()}


def test_the_source_with_the_least_time_of_those_with_more_to_read_is_told(tmp_path: Path) -> None:
    operator: Any = by_source(WINDOWS)  # type: ignore[arg-type]
    with LmdbStore(tmp_path / "s") as store:
        numbers = iter(range(9))

        def told(*rows: dict[str, Any]) -> tuple[int | None, int, dict[int, int], dict[int, int]]:
            update = operator(pa.Table.from_pylist(list(rows), labelled(COLUMNS)), store)
            changes = update.changes
            store.commit(changes["key"].to_pylist(), changes["value"].to_pylist(), Position(next(numbers)))
            late = update.lateness
            return update.held_by, update.held_ms, dict(late.behind), dict(late.sources)

        assert told(row(ZERO, 500), row(ONE, 90), notice({ZERO: 500, ONE: 90}, (TWO,)))[:2] == (TWO, 0), "no time yet"
        assert told(row(TWO, 60), notice({TWO: 60}, (ZERO, ONE)))[:2] == (TWO, 440_000)
        assert told(row(ONE, 95)) == (TWO, 440_000, {}, {}), "rows alone do not change it"
        assert told(row(TWO, 99), notice({TWO: 99}, (ONE,), (TWO,)))[:2] == (ONE, 405_000)
        late = [row(ONE, 85, 70), row(ONE, 30, 125), row(TWO, 20, 79), row(ONE, 155)]
        assert told(*late, notice({ONE: 155}, (), (ONE,))) == (
            0,
            0,
            {70_000: 1, 130_000: 1, 79_000: 1},
            {ONE: 2, TWO: 1},
        )


def test_numbers_become_names_of_partitions() -> None:
    asked: list[str] = []

    def describe(topic: str) -> Any:
        asked.append(topic)
        if topic == "gone":
            raise ClientError("gone")
        return SimpleNamespace(partitions=[SimpleNamespace(partition=number) for number in range(3)])

    names = SourceNames(SimpleNamespace(describe_topic=describe), ("gone", "orders"))  # type: ignore[arg-type]
    plan = SubtopologyPlan(Subtopology(1, ("between", "other")), ())
    node = OperatorNode(WINDOWS, COLUMNS, "s", other=SimpleNamespace(topic="other"))  # type: ignore[arg-type]

    def named(**given: Any) -> StoreProgress:
        return names.named(StoreProgress(1, 9, **given), plan, TaskId(1, 4), node)

    held = named(held_by=str(TWO), held_ms=7)
    assert (held.held_by, held.held_ms) == ("orders-2", 7)
    assert named(held_by="").held_by == ""
    assert named().held_by is None
    late = named(late_sources={"0": 5, "-1": 4, str(ZERO): 3, "7": 1}).late_sources
    assert late == {"between-4": 5, "other-4": 4, "orders-0": 3, "an unknown partition": 1}
    assert named(late_sources={"7": 2}).late_sources == {"an unknown partition": 2}
    assert asked == ["gone", "orders"] * 2, "not again for what is known to be unknown"
