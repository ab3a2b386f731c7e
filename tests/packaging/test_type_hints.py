"""Type hints of the public classes can be read at run time: documentation tools, cattrs and pydantic do."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Iterator

import pytest

ROOMS = (
    "roster",
    "roster.assignors",
    "roster.broker",
    "roster.client",
    "roster.coordinator",
    "roster.member",
    "roster.model",
    "roster.plugins.aiokafka",
    "roster.plugins.kafka_python",
    "roster.spark",
    "roster.testing",
    "roster.transactions",
    "roster.wire",
)


def annotated(thing: object) -> Iterator[object]:
    yield thing
    if inspect.isclass(thing):
        for member in vars(thing).values():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield function


@pytest.mark.parametrize("room", ROOMS)
def test_hints_of_everything_public_resolve(room: str) -> None:
    module = importlib.import_module(room)
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            for each in annotated(thing):
                typing.get_type_hints(each)
