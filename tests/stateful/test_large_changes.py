"""A change that a broker finds too large for a record: the error names the variable, its size and the topic."""

from __future__ import annotations

import pyarrow as pa
import pytest

from roster.model.tasks import TaskId
from roster.pipeline.errors import PipelineError
from roster.records.produce import WriteError
from roster.spark.stateful_batches import explained_write_error
from roster.state.processor.overlay import Overlay
from roster.state.processor.variables import Variables
from roster.state.store import NoState
from roster.stateful.tasks.processing import Report, large_change

CHANGELOG = "g-processor-changelog"
REFUSED = "1 of 4 rows not written: {}-3: MESSAGE_TOO_LARGE (1572971 bytes): no"
FIELD = pa.schema([("s", pa.string())])


def changes(sizes: dict[str, int]) -> pa.Table:
    """The changes of a processor with a value, a list and a map, each of one key and so many bytes."""
    overlay = Overlay(NoState())
    variables = Variables(overlay)
    of = {
        kind: variables.declare(kind, kind, FIELD, FIELD if kind == "map" else None)
        for kind in ("value", "list", "map")
    }
    for kind, size in sizes.items():
        overlay.put(of[kind].prefix + b"key", bytes(size))
    return overlay.changes()


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_the_largest_change_is_named(kind: str) -> None:
    sizes = dict.fromkeys(("value", "list", "map"), 70_000) | {kind: 1_572_892}
    told = large_change(CHANGELOG, changes(sizes))
    assert told == f"the {kind} '{kind}' of one key has 1572892 bytes in one record of its changelog '{CHANGELOG}'"


def test_changes_of_a_usual_size_are_not() -> None:
    assert large_change(CHANGELOG, changes({"list": 60_000})) == ""
    assert large_change(CHANGELOG, changes({}).slice(0, 0)) == ""


def test_an_operator_without_variables_has_one_state() -> None:
    told = large_change("g-totals-changelog", pa.table({"key": [b"k"], "value": [bytes(2_000_000)]}))
    assert told == "the state of one key has 2000000 bytes in one record of its changelog 'g-totals-changelog'"


def test_the_error_of_the_changelog_names_it_and_others_do_not() -> None:
    large = large_change(CHANGELOG, changes({"list": 1_572_892}))
    reports = {TaskId(0, 0): (Report("a"),), TaskId(0, 3): (Report("b", large=large),)}
    error = explained_write_error(WriteError(REFUSED.format(CHANGELOG)), reports)
    assert isinstance(error, PipelineError)
    assert error.field == "max.message.bytes"
    parts = ("the list 'list'", "1572892", CHANGELOG, "approx_count_distinct", "map is a record of its own")
    assert all(part in str(error) for part in parts)
    others = (REFUSED.format("out"), f"{CHANGELOG}-3: NOT_ENOUGH_REPLICAS")
    for other in map(WriteError, others):
        assert explained_write_error(other, reports) is other
