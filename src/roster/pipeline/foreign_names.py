"""Errors for names of Spark, Structured Streaming and Kafka's consumer that say Roster's own."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from roster.model.options import declared
from roster.pipeline.consumer_settings import CONSUMER_SETTINGS
from roster.pipeline.errors import PipelineError
from roster.pipeline.pipeline_options import PipelineOptions
from roster.pipeline.state_options import State

Parameters = ParamSpec("Parameters")
T = TypeVar("T")


def _plain(name: str) -> str:
    """Reduce a name to its letters, in lower case."""
    return re.sub(r"[^a-z]", "", name.lower())


_OPTIONS = {
    **{
        _plain(name).removeprefix("kafka"): option.name
        for option in declared(PipelineOptions).values()
        for name in (option.kafka, option.spark)
        if name
    },
    **{
        _plain(name): f'consumer={{"{key}": ...}}'
        for key, option in CONSUMER_SETTINGS.items()
        for name in (key, option.name)
    },
    **{
        _plain(name): f"state=State({option.name}=...)"
        for option in declared(State).values()
        for name in (option.kafka or option.name, option.name)
    },
    "startingtimestamp": "starting_offsets=datetime(..., tzinfo=UTC)",
    "startingoffsetsbytimestamp": "starting_offsets=datetime(..., tzinfo=UTC)",
    "autooffsetreset": "starting_offsets",
    "topic": "topics",
    "subscribepattern": "topics='pattern:REGEX'",
    "pattern": "topics='pattern:REGEX'",
    "processingtime": "trigger_interval_ms",
    "trigger": "trigger_interval_ms",
}
"""Options of Spark's Kafka source and of Kafka's consumer, reduced by `_plain`, with a pipeline's option for each."""
_WITHOUT = {
    **dict.fromkeys(("assign", "groupidprefix"), "partitions come from the group"),
    **dict.fromkeys(("checkpointlocation", "enableautocommit"), "offsets live in the group and in the sink"),
    **dict.fromkeys(
        ("endingoffsets", "endingtimestamp", "availablenow"), "run(available_now=True) ends with what is there"
    ),
    **dict.fromkeys(("minoffsetspertrigger", "maxtriggerdelay"), "trigger_interval_ms spaces batches out"),
}
_METHODS = {
    "awaittermination": "wait()",
    "processallavailable": "run(available_now=True)",
    "isactive": "is_active",
    "lastprogress": "last_progress",
    "recentprogress": "on_progress of Pipeline",
    "writestream": "write(sink)",
    "foreachbatch": "foreach_batch(function)",
    "mapinarrow": "map_arrow(function, schema)",
    **dict.fromkeys(
        ("foreach", "trigger", "outputmode", "queryname", "option", "options", "format", "totable"),
        "write_stream, which has it",
    ),
    **dict.fromkeys(
        (
            *("withwatermark", "groupby", "agg", "dropduplicates", "dropduplicateswithinwatermark", "distinct"),
            *("transformwithstate", "transformwithstateinpandas", "applyinpandaswithstate", "select", "selectexpr"),
            *("where", "withcolumn", "withcolumns", "drop", "withcolumnrenamed", "union", "unionbyname", "mapinpandas"),
        ),
        "read_stream, whose DataFrames have it, and write_stream",
    ),
}
"""Methods of Spark's DataFrame, DataStreamWriter and StreamingQuery, reduced by `_plain`."""


def refuse_foreign_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise PipelineError for a typo, or an option of Spark or Kafka's consumer, naming Roster's own."""
    for name in given:
        if name in known:
            continue
        plain = _plain(name)
        plain = plain if plain in _OPTIONS or plain in _WITHOUT else plain.removeprefix("kafka")
        near = difflib.get_close_matches(name, sorted(known), 1)
        if plain in _WITHOUT:
            fix = f"Leave it out: {_WITHOUT[plain]}"
        elif plain in _OPTIONS:
            fix = f"Use {_OPTIONS[plain]}"
        else:
            fix = f"Did you mean {near[0]}?" if near else "Settings of Kafka's consumers go into consumer={...}"
        raise PipelineError("a pipeline has no option of this name", field=name, fix=fix)


def refuse_foreign_arguments(given: Iterable[str], known: Collection[str]) -> None:
    """Raise PipelineError for a foreign argument of `run`, naming Roster's own."""
    for name in given:
        if name in known:
            continue
        fix = "It takes available_now; a query of write_stream takes Spark's arguments"
        if name in declared(PipelineOptions):
            fix = "It is an option of Pipeline"
        raise PipelineError("a run has no argument of this name", field=name, fix=fix)


def explaining_names(
    refuse: Callable[[Iterable[str], Collection[str]], None],
) -> Callable[[Callable[Parameters, T]], Callable[Parameters, T]]:
    """Decorate a function to check the names of keyword arguments before Python does; the signature stays."""

    def explained(function: Callable[Parameters, T]) -> Callable[Parameters, T]:
        known = inspect.signature(function).parameters.keys() - {"self"}

        @functools.wraps(function)
        def checked(*values: Parameters.args, **options: Parameters.kwargs) -> T:
            refuse(options, known)
            return function(*values, **options)

        return checked

    return explained


def own_name_of(method: str) -> str:
    """Return Roster's counterpart of a Spark method, "" if it has none."""
    return _METHODS.get(_plain(method), "")
