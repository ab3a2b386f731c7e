"""JSON that others wrote."""

import json
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object, as `json.loads` returns and `json.dumps` writes it."""


def loads(text: str | bytes) -> Any:
    """Return the value of a document. Raises ValueError for any text that is none, also for one nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
