"""Small JSON files that carry a checksum, so that a flipped bit in them is found instead of believed."""

import json
from collections.abc import Mapping, Set
from pathlib import Path

from roster._files import write_atomically
from roster._json import JsonObject, loads
from roster.broker.errors import BrokerStartError
from roster.wire.records import crc32c

_CHECKSUM = "crc32c"


def encode_checked(what: Mapping[str, object]) -> bytes:
    """Encode the fields, with the CRC-32C of everything else in the file."""
    return json.dumps({**what, _CHECKSUM: _checksum(what)}, indent=1).encode() + b"\n"


def read_checked(path: Path, fields: Set[str]) -> JsonObject:
    """Return the fields; a file that a person has corrected has no checksum.

    Raise BrokerStartError, naming the file, for bytes that are not JSON, a checksum that does not fit and fields other
    than `fields`; FileNotFoundError if the file does not exist.
    """
    try:
        what = loads(path.read_bytes())
    except ValueError as error:
        raise BrokerStartError(f"{path} is damaged: {error}; restore it from a backup") from error
    if not isinstance(what, dict):
        raise BrokerStartError(f"{path} is damaged: not a JSON object; restore it from a backup")
    checksum = what.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _checksum(what):
        raise BrokerStartError(
            f"{path} is damaged: its checksum does not match; restore it from a backup, or correct it and delete the "
            f"line {_CHECKSUM!r} if you know what it said"
        )
    unknown = sorted(what.keys() - fields)
    if unknown:  # else a bit flip in the name of the checksum would turn the file into one without a checksum
        raise BrokerStartError(f"{path}: unknown field {unknown[0]!r}; restore the file from a backup, or correct it")
    return what


def write_checked(path: Path, what: Mapping[str, object]) -> None:
    """Replace the file durably."""
    write_atomically(path, encode_checked(what))


def _checksum(what: Mapping[str, object]) -> int:
    return crc32c(json.dumps(what, sort_keys=True, separators=(",", ":")).encode())
