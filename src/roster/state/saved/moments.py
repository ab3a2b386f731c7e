"""A folder of exports, each in a folder named after its moment, such as 20261124T030000Z."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from roster.state.saved.folder import Folder, FolderError
from roster.state.saved.manifest import MANIFEST, Manifest

_NAME = re.compile(r"\d{8}T\d{6}Z")


def name_of(moment: datetime) -> str:
    """Return the name of a moment's folder; names sort by time."""
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def exports_in(folder: Folder) -> list[str]:
    """Return the names of the whole exports in a folder, oldest first."""
    return [name for name in _moments(folder) if folder.size(f"{name}/{MANIFEST}") is not None]


def last_before(folder: Folder, before: datetime | None = None) -> tuple[Folder, Manifest]:
    """Return the last export of a moment before `before`, None: the last. A folder may be an export itself.

    Raises FolderError if there is none.
    """
    if folder.size(MANIFEST) is not None:
        manifest = Manifest.read(folder)
        if before is not None and manifest.moment >= before:
            raise FolderError(f"{folder.shown} is of {manifest.at}, not before {before.isoformat()}")
        return folder, manifest
    names = exports_in(folder)
    for name in reversed(names):
        # The moment of the state is a little later than that of the name.
        if before is None or name <= name_of(before):
            manifest = Manifest.read(folder.below(name))
            if before is None or manifest.moment < before:
                return folder.below(name), manifest
    if before is not None and names:
        raise FolderError(f"{folder.shown} has no export before {before.isoformat()}; the first is {names[0]}")
    raise FolderError(f"{folder.shown} has no {MANIFEST}: it is no export, or one that did not end")


def _moments(folder: Folder) -> list[str]:
    return [name for name in folder.folders() if _NAME.fullmatch(name)]
