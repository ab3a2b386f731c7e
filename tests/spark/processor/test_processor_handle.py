"""Variables as a `StatefulProcessor` gets them from its handle, without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import LongType, StructType

from roster.spark.processor.handle import Handle, SchemaReader, make_row
from roster.state.processor.batch import KeyedState, Plan
from roster.state.processor.overlay import Overlay
from roster.state.processor.states import Current
from roster.state.store import NoState

ROW = StructType().add("n", LongType())
CALLS: dict[str, dict[str, tuple[Any, ...]]] = {
    "value": {"exists": (), "get": (), "update": ((1,),), "clear": ()},
    "list": {"exists": (), "get": (), "put": ([(1,)],), "appendValue": ((1,),), "appendList": ([(1,)],), "clear": ()},
    "map": {
        **dict.fromkeys(("exists", "iterator", "keys", "values", "clear"), ()),
        **dict.fromkeys(("getValue", "containsKey", "removeKey"), ((1,),)),
        "updateValue": ((1,), (2,)),
    },
}
"""Each method with arguments."""


@pytest.fixture
def handle() -> Handle:
    state = KeyedState(Overlay(NoState()), Plan(("k",)), make_row, Current(b"k", 5))
    return Handle(state, SchemaReader())


def variable(handle: Handle, kind: str) -> Any:
    if kind == "map":
        return handle.getMapState("x", ROW, ROW)
    return (handle.getValueState if kind == "value" else handle.getListState)("x", ROW)


@pytest.mark.parametrize("kind", CALLS)
def test_a_variable_that_was_removed_raises_an_error_of_pyspark(handle: Handle, kind: str) -> None:
    removed = variable(handle, kind)
    handle.deleteIfExists("x")
    handle.deleteIfExists("x")
    methods = {name for name in dir(removed) if not name.startswith("_")} - {"unexpired"}
    assert methods == CALLS[kind].keys()
    for name, arguments in CALLS[kind].items():
        with pytest.raises(
            PySparkRuntimeError, match=rf"^Error [a-z ]+: {kind.capitalize()} state x is not initialized\.$"
        ):
            getattr(removed, name)(*arguments)
    assert not variable(handle, kind).exists(), "it may be declared again"
