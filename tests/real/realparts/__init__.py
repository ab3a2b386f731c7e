"""The real parts that tests run against: Apache Kafka from its published jars, and the clients people use."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def require_real(reason: str) -> NoReturn:
    """Skip this test loudly, or fail it where the real parts are demanded (ROSTER_REQUIRE_REAL=1)."""
    if os.environ.get("ROSTER_REQUIRE_REAL") == "1":
        pytest.fail(f"a real part is missing and ROSTER_REQUIRE_REAL=1 demands it: {reason}", pytrace=False)
    pytest.skip(f"real part missing: {reason}")
