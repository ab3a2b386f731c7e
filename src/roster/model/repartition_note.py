"""The note in a group's offsets that its state is being given other partitions."""

from __future__ import annotations

import json

from roster._json import loads

_REPARTITION = "state.repartition"


def repartition_note(folder: str) -> str:
    """Return the metadata of a group's offsets while `roster state repartition` changes its topics."""
    return json.dumps({_REPARTITION: folder})


def repartition_folder(metadata: str) -> str | None:
    """Return the folder that the metadata of an offset notes, None for other metadata."""
    try:
        folder = loads(metadata)[_REPARTITION]
    except (ValueError, KeyError, TypeError):
        return None
    return folder if isinstance(folder, str) else None
