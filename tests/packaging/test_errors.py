"""One root of the exceptions."""

from __future__ import annotations

import importlib
import inspect

import pytest

from roster import RosterError

ROOMS = (
    "roster.broker",
    "roster.client",
    "roster.member",
    "roster.model",
    "roster.spark",
    "roster.testing",
    "roster.wire",
)


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_exception_is_a_roster_error(room: str) -> None:
    module = importlib.import_module(room)
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) and issubclass(thing, Exception):
            assert issubclass(thing, RosterError), name


def test_some_of_them() -> None:
    from roster.broker import BrokerStartError
    from roster.client import ClientError
    from roster.spark import PipelineError

    assert issubclass(PipelineError, RosterError)
    assert issubclass(ClientError, RosterError)
    assert issubclass(BrokerStartError, RosterError)
