"""A shell whose commands talk to the broker of a test's module."""

from __future__ import annotations

import pytest

from roster.broker import Broker
from roster.cli.root import run


@pytest.fixture
def shell(broker: Broker, capsys: pytest.CaptureFixture[str]):
    """shell(…) runs a command against the broker: exit code, output, errors."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run([*arguments, "--bootstrap", broker.bootstrap])
        return code, *capsys.readouterr()

    return command
