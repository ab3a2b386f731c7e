"""Late rows of operators against a look at each row, wherever batches are cut."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.pipeline.errors import PipelineError
from roster.spark.operations import Operations
from roster.state import Position
from roster.state.deduplicate import Deduplication
from roster.state.event_time import Lateness
from roster.state.lmdb_store import LmdbStore
from roster.state.sessions import SessionAggregation
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
COUNT = {"count": aggregate_of("count(*)")}


def hopping(t: int, now: int) -> bool:
    """The last window of the row is closed: it is 6 s long, begins at a multiple of 3 s, and has 2 s of grace."""
    return t // 3 * 3 + 6 + 2 <= now


def session(t: int, now: int) -> bool:
    """The time has passed the row's own session, which ends 4 s later, and 1 s of grace."""
    return t + 4 + 1 < now


def repeated(t: int, now: int) -> bool:
    return t + 5 < now


OPERATORS: list[tuple[Any, Any]] = [
    (WindowedAggregation(("k",), COUNT, Window("t", 6 * SECOND, 3 * SECOND, 2 * SECOND), final=True), hopping),
    (SessionAggregation(("k",), COUNT, Window.session("t", 4 * SECOND, grace=SECOND), final=False), session),
    (Deduplication(("k",), "t", 5 * SECOND), repeated),
]


@pytest.mark.parametrize(("operator", "is_late"), OPERATORS)
@example(times=[0, -5], cuts=[])
@given(times=st.lists(st.none() | st.integers(-5, 40), max_size=30), cuts=st.lists(st.integers(0, 99), max_size=3))
@settings(max_examples=examples(20), deadline=None)
def test_late_rows_are_those_whose_time_is_over(
    tmp_path_factory: Any, operator: Any, is_late: Any, times: list[int | None], cuts: list[int]
) -> None:
    now, expected, behind = -(10**9), [], []
    for number, t in enumerate(times):
        now = max(now, t) if t is not None else now
        if t is None or is_late(t, now):
            expected.append(number)
            behind += [] if t is None else [now - t]
    found: list[int] = []
    told, from_source = Counter[int](), Counter[int]()
    ends = sorted({0, len(times), *(cut % (len(times) + 1) for cut in cuts)})
    with LmdbStore(tmp_path_factory.mktemp("late") / "store") as store:
        for number, (start, end) in enumerate(pairwise(ends)):
            rows = [
                {"k": "ab"[n % 2], "n": n, "t": None if times[n] is None else EPOCH + (times[n] or 0) * SECOND}
                for n in range(start, end)
            ]
            update = operator(pa.Table.from_pylist(rows, schema=COLUMNS), store)
            store.commit(update.changes["key"].to_pylist(), update.changes["value"].to_pylist(), Position(number))
            assert update.late == sum(len(late) for late in update.late_rows)
            found += [n for late in update.late_rows for n in late["n"].to_pylist()]
            told.update(update.lateness.behind)
            from_source.update(update.lateness.sources)
    assert found == expected
    assert told == Counter(1000 * seconds for seconds in behind)
    assert from_source[0] == len(expected)


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 11)), min_size=1, max_size=30))
def test_how_late_rows_are_is_told_in_two_digits_that_are_not_less_and_from_the_most_frequent_sources(
    rows: list[tuple[int, int]],
) -> None:
    behind, sources = (np.array(each, np.int64) for each in zip(*rows, strict=True))
    told = Lateness.of(np.zeros(len(rows), np.int64), behind, sources)
    assert sum(told.behind.values()) == len(rows)
    assert all(len(str(ms).rstrip("0")) <= 2 for ms in told.behind)
    most = max(row[0] for row in rows) / 1000
    assert most <= max(told.behind) <= max(most * 1.1, most + 1)
    counts = sorted(Counter(source for _, source in rows).values(), reverse=True)
    assert sorted(told.sources.values(), reverse=True) == counts[:8]


def test_topics_for_late_rows_that_cannot_be_are_named() -> None:
    session: Any = None
    with pytest.raises(PipelineError, match="late_topic: no row is late without a window"):
        Operations(session).aggregate("k", {"n": "count(*)"}, late_topic="late")
    with pytest.raises(PipelineError, match="late_topic: 'a/b' is not a topic name"):
        Operations(session).deduplicate("k", within=SECOND, late_topic="a/b")
