"""Methods of Spark's streaming classes beside those that stand in their place; a new PySpark shows what is missing."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from roster.spark import PipelineError, StreamQuery, StreamReader, StreamWriter
from roster.spark.dataframes.observed import ObservedMetrics
from roster.spark.dataframes.plan import OBSERVED

OURS = {DataStreamReader: StreamReader, DataStreamWriter: StreamWriter, StreamingQuery: StreamQuery}
READS = ("changes", "csv", "json", "orc", "parquet", "table", "text", "xml")
REFUSED = {
    **{(DataStreamReader, name): rf"spark\.readStream\.{name} is for queries of Spark's own" for name in READS},
    (DataStreamReader, "schema"): "its columns are those of Spark's Kafka source. Take values apart behind load",
    (DataStreamWriter, "clusterBy"): "use partitionBy, or make the table with its clusters first",
}
"""Methods that are not here, and what is said of them."""
RETURNED = {"DataStreamReader": "Self", "DataStreamWriter": "Self", "StreamingQuery": "StreamQuery"}
"""What stands for a class of Spark's in annotations."""


def returned(function: Any) -> str:
    """The annotation of what a function returns, as text."""
    found = inspect.signature(function).return_annotation
    text = inspect.formatannotation(found) if not isinstance(found, str) else found
    text = re.sub(r"(?:\w+\.)+(\w)", r"\1", re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)).strip("'")
    return RETURNED.get(text, text).replace("List[", "list[").replace("Dict[", "dict[")


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


MEMBERS = [(kind, name) for kind in OURS for name in public(kind)]


@pytest.mark.parametrize(("kind", "name"), MEMBERS, ids=lambda value: getattr(value, "__name__", value))
def test_a_method_is_called_and_answers_as_sparks(kind: type, name: str) -> None:
    theirs, own = public(kind)[name], OURS[kind]
    if said := REFUSED.get((kind, name)):
        with pytest.raises(AttributeError, match=said):
            getattr(own.__new__(own), name)
        return
    ours: Any = inspect.getattr_static(own, name)
    assert isinstance(ours, property) == isinstance(theirs, property)
    theirs, ours = (getattr(method, "fget", method) for method in (theirs, ours))
    if name != "name":  # Spark's is None, too, without one
        assert returned(ours) == returned(theirs)
    wanted, given = (inspect.signature(method).parameters for method in (theirs, ours))
    shapes = {parameter.name: (parameter.kind, parameter.default) for parameter in given.values()}
    assert {n: shapes.get(n) for n in wanted} == {n: (p.kind, p.default) for n, p in wanted.items()}
    for parameter in given.values():
        assert parameter.name in wanted or parameter.default is not inspect.Parameter.empty


def test_what_is_refused_is_still_sparks() -> None:
    assert [name for kind, name in REFUSED if name not in public(kind) and name != "changes"] == []


def test_observe_needs_a_release_that_gives_metrics_to_others() -> None:
    def absent(*_: object) -> None:
        raise Py4JError("Method getOrNewObservation([class java.lang.String, class java.lang.Integer]) does not exist")

    manager = SimpleNamespace(getOrNewObservation=absent)
    session = SimpleNamespace(_jsparkSession=SimpleNamespace(observationManager=lambda: manager))
    node = SimpleNamespace(kind=OBSERVED, java=SimpleNamespace(name=lambda: "rows", dataframeId=lambda: 1))
    frame: Any = SimpleNamespace(df=SimpleNamespace(sparkSession=session), root=SimpleNamespace(all=lambda: [node]))
    with pytest.raises(PipelineError, match=r"observe: PySpark 4\.0 .* Use a newer one, or leave observe out"):
        ObservedMetrics(frame)
