"""Variables as a `StatefulProcessor` gets them from its handle, without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import LongType, StructType

from roster.spark.state.processor.handle import Handle, SchemaReader, make_row
from roster.state.processor.batch import KeyedState, Plan
from roster.state.processor.overlay import Overlay
from roster.state.processor.states import Current
from roster.state.store import NoState

ROW = StructType().add("n", LongType())
CALLS = {
    "value": {
        "exists": ((), "Error checking value state exists"),
        "get": ((), "Error getting value state"),
        "update": (((1,),), "Error updating value state"),
        "clear": ((), "Error clearing value state"),
    },
    "list": {
        "exists": ((), "Error checking value state exists"),
        "get": ((), "Error getting list state"),
        "put": (([(1,)],), "Error updating value state"),
        "appendValue": (((1,),), "Error updating value state"),
        "appendList": (([(1,)],), "Error updating value state"),
        "clear": ((), "Error clearing value state"),
    },
    "map": {
        "exists": ((), "Error checking map state exists"),
        "getValue": (((1,),), "Error getting value"),
        "containsKey": (((1,),), "Error checking if map state contains key"),
        "updateValue": (((1,), (2,)), "Error updating map state value"),
        "iterator": ((), "Error getting map state entry"),
        "keys": ((), "Error getting map state entry"),
        "values": ((), "Error getting map state entry"),
        "removeKey": (((1,),), "Error removing key from map state"),
        "clear": ((), "Error clearing map state"),
    },
}
"""Each method with arguments, and how PySpark's error begins where Spark does not have the variable."""


@pytest.fixture
def handle() -> Handle:
    state = KeyedState(Overlay(NoState()), Plan(("k",)), make_row, Current(b"k", 5))
    return Handle(state, SchemaReader())


def variable(handle: Handle, kind: str) -> Any:
    if kind == "map":
        return handle.getMapState("x", ROW, ROW)
    return (handle.getValueState if kind == "value" else handle.getListState)("x", ROW)


@pytest.mark.parametrize("kind", CALLS)
def test_a_variable_that_was_removed_raises_what_pyspark_raises(handle: Handle, kind: str) -> None:
    removed = variable(handle, kind)
    handle.deleteIfExists("x")
    handle.deleteIfExists("x")
    methods = {name for name in dir(removed) if not name.startswith("_")} - {"unexpired"}
    assert methods == CALLS[kind].keys()
    for name, (arguments, begin) in CALLS[kind].items():
        with pytest.raises(PySparkRuntimeError, match=f"^{begin}: state variable 'x' was removed"):
            getattr(removed, name)(*arguments)
    assert not variable(handle, kind).exists(), "it may be declared again"
