"""The real parts that tests run against: Apache Kafka from its published jars, and the clients people use."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import NoReturn

import pytest


def require_real(reason: str) -> NoReturn:
    """Skip this test loudly, or fail it where the real parts are demanded (ROSTER_REQUIRE_REAL=1)."""
    if os.environ.get("ROSTER_REQUIRE_REAL") == "1":
        pytest.fail(f"a real part is missing and ROSTER_REQUIRE_REAL=1 demands it: {reason}", pytrace=False)
    pytest.skip(f"real part missing: {reason}")


def installed(module: str) -> ModuleType:
    """Import a module of a tool that `make test` does not install; without it the test is skipped loudly, or fails."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        require_real(f"{error.name} is not installed (make setup)")
