"""Errors for options that a pipeline does not have: typos, and those of Spark and of Kafka's consumer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from roster.model.options import declared
from roster.pipeline.consumer_settings import CONSUMER_SETTINGS
from roster.pipeline.errors import PipelineError
from roster.pipeline.pipeline_options import PipelineOptions
from roster.pipeline.state_options import State


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
    "autooffsetreset": "starting_offsets",
}
"""Options of Spark's Kafka source and of Kafka's consumer, reduced by `_plain`, with a pipeline's option for each."""


def refuse_foreign_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise PipelineError for an option that is not known, naming the one that is meant."""
    for name in given:
        if name in known:
            continue
        own = _OPTIONS.get(_plain(name)) or _OPTIONS.get(_plain(name).removeprefix("kafka"))
        if own is not None:
            fix = f"Use {own}"
        elif near := difflib.get_close_matches(name, sorted(known), 1):
            fix = f"Did you mean {near[0]}?"
        else:
            fix = "Settings of Kafka's consumers go into consumer={...}, and read_stream takes Spark's options"
        raise PipelineError("a pipeline has no option of this name", field=name, fix=fix)
