"""JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes) -> Any:
    """Return the value of a document. Raises ValueError for any text that is none, also for one nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
