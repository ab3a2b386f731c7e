"""The variables of a store: their numbers in its keys, their schemas, and values written with earlier schemas.

The store keeps a list of them, so that a variable's number and schemas move with the state. A value begins with the
number of the schema it was written with.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from roster.state.processor.codec import MakeStruct, RowCodec
from roster.state.processor.overlay import Overlay
from roster.state.store import StateError

REGISTRY_KEY = b"\xff~variables"
"""Key of the list of variables in a store."""
FIRST, LAST = 0x10, 0xEF
"""Numbers that variables have."""
_MOST_SCHEMAS = 255


@dataclass(frozen=True, slots=True)
class _Written:
    """How values of one schema number are read. With `expires`, eight bytes of time precede a row."""

    schema: pa.Schema
    expires: bool

    def to_json(self) -> list[object]:
        return [base64.b64encode(self.schema.serialize().to_pybytes()).decode(), self.expires]

    @classmethod
    def from_json(cls, document: list[Any]) -> _Written:
        return cls(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document[0]))), bool(document[1]))


@dataclass(slots=True)
class Entry:
    """A variable in the list of a store. first: the first schema that values have; functions have changed others."""

    kind: str
    number: int
    written: list[_Written] = field(default_factory=list)
    map_key: pa.Schema | None = None
    first: int = 0


class Variable:
    """One variable with its present schema, ready to encode and decode. `ttl` is in milliseconds."""

    def __init__(self, name: str, entry: Entry, ttl: int | None, make_struct: MakeStruct | None) -> None:
        self.name, self.kind, self.ttl = name, entry.kind, ttl
        self.prefix = bytes([entry.number])
        current = entry.written[-1]
        self.codec = RowCodec(current.schema, make_struct)
        self.map_key = None if entry.map_key is None else RowCodec(entry.map_key, make_struct)
        self.make_struct = make_struct
        self.version = bytes([len(entry.written) - 1])
        self.may_expire = any(written.expires for written in entry.written)
        self._decoders = [_Decoder(written, current.schema, make_struct) for written in entry.written]

    def encode(self, values: Sequence[object], expiry: int) -> bytes:
        """Return a row without its schema number. `expiry`: ms since the epoch, if the variable has a time to live."""
        try:
            data = self.codec.encode(values)
        except StateError as error:
            raise StateError(f"state variable {self.name!r}: {error}") from None
        return data if self.ttl is None else expiry.to_bytes(8, "big") + data

    def decode(self, data: bytes, start: int, version: int) -> tuple[tuple[object, ...], int, int | None]:
        """Return a row, where it ends and when it expires, None if never."""
        return self._decoders[version].decode(data, start)


class _Decoder:
    """Reads rows of an earlier schema as rows of the present one: null where a field was added, in its wider type."""

    def __init__(self, written: _Written, current: pa.Schema, make_struct: MakeStruct | None) -> None:
        self._expires = written.expires
        self._codec = RowCodec(written.schema, make_struct)
        names = written.schema.names
        self._places = [names.index(name) if name in names else None for name in current.names]
        self._is_same = self._places == list(range(len(names)))
        kinds = [
            (written.schema.field(field.name).type, field.type) if field.name in names else None for field in current
        ]
        adapters = [None if pair is None else _adapter(*pair, make_struct) for pair in kinds]
        self._adapters = [(place, adapt) for place, adapt in enumerate(adapters) if adapt is not None]

    def decode(self, data: bytes, start: int) -> tuple[tuple[object, ...], int, int | None]:
        expiry = None
        if self._expires:
            expiry = int.from_bytes(data[start : start + 8], "big")
            start += 8
        row, end = self._codec.decode_next(data, start)
        if not self._is_same:
            row = tuple(None if place is None else row[place] for place in self._places)
        if self._adapters:
            wider = list(row)
            for place, adapt in self._adapters:
                wider[place] = None if row[place] is None else adapt(row[place])
            row = tuple(wider)
        return row, end, expiry


class Variables:
    """The list of a store's variables; declaring one adds it, or a new schema of it, to the changes."""

    def __init__(self, overlay: Overlay, make_struct: MakeStruct | None = None) -> None:
        self._overlay, self._make_struct = overlay, make_struct
        self._entries = decode_registry(overlay.get(REGISTRY_KEY))
        self._removed: set[int] = set()
        self.declared: dict[str, Variable] = {}

    def declare(
        self, kind: str, name: str, schema: pa.Schema, map_key: pa.Schema | None = None, ttl: int | None = None
    ) -> Variable:
        """Return the variable of this name. Raises StateError if the store has another one, or values do not fit."""
        if name in self.declared:
            raise StateError(f"state variable {name!r}: it is declared already")
        if ttl is not None and (not isinstance(ttl, int) or ttl <= 0):
            raise StateError(f"state variable {name!r}: ttlDurationMs={ttl!r} is not a positive number of milliseconds")
        RowCodec(schema)
        written = _Written(_plain(schema), ttl is not None)
        key = None if map_key is None else _plain(map_key)
        entry = self._entries.get(name)
        if entry is None:
            _check_name(name)
            entry = self._entries[name] = Entry(kind, self._free(), [written], key)
            self._save()
        else:
            _check(name, entry, kind, key)
            if entry.written[-1] != written:
                self._upgrade(name, entry, written)
        self.declared[name] = Variable(name, entry, ttl, self._make_struct)
        return self.declared[name]

    def check_all_are_declared(self) -> None:
        """Raise StateError for a stored variable that was neither declared nor removed."""
        if left_out := [name for name in self._entries if name not in self.declared]:
            raise StateError(
                f"state variable {left_out[0]!r}: the store has it and init() does not declare it;"
                f" declare it, or give it up by deleteIfExists({left_out[0]!r}) there"
            )

    def remove(self, name: str) -> None:
        """Remove a variable with its values, if there is one."""
        self.declared.pop(name, None)
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._save()
            self._removed.add(entry.number)
            for key, _ in self._overlay.within(bytes([entry.number])):
                self._overlay.put(key, None)

    def _upgrade(self, name: str, entry: Entry, written: _Written) -> None:
        schema = written.schema
        for known in (known for version in entry.written[entry.first :] for known in version.schema):
            place = schema.get_field_index(known.name)
            if place >= 0 and not _holds(schema.field(place).type, known.type):
                raise StateError(
                    f"state variable {name!r}: its field {known.name!r} was written as {known.type} and is"
                    f" {schema.field(place).type}; types may become wider only. Use another name, or another group"
                )
        gone = [field_name for field_name in entry.written[-1].schema.names if field_name not in schema.names]
        earlier = [version.schema for version in entry.written[: len(entry.written) if gone else entry.first]]
        if schema in earlier:
            what = f"added its field {gone[0]!r}" if gone else "changed it by a function"
            raise StateError(
                f"state variable {name!r}: a newer release has {what}. Stop this release; to take"
                " that back, use a schema that the variable has not had, such as another order or one more field"
            )
        if len(entry.written) > _MOST_SCHEMAS:
            raise StateError(f"state variable {name!r}: its schema has changed too often; use another name")
        entry.written.append(written)
        self._save()

    def _free(self) -> int:
        used = self._removed | {entry.number for entry in self._entries.values()}
        if free := next((number for number in range(FIRST, LAST + 1) if number not in used), None):
            return free
        raise StateError(f"a processor can have {LAST - FIRST + 1} state variables")

    def _save(self) -> None:
        self._overlay.put(REGISTRY_KEY, encode_registry(self._entries))


def encode_registry(entries: dict[str, Entry]) -> bytes:
    """Return the list as JSON."""
    return json.dumps(
        {
            name: {
                "kind": entry.kind,
                "number": entry.number,
                "written": [version.to_json() for version in entry.written],
                "map key": None if entry.map_key is None else _Written(entry.map_key, False).to_json(),
                **({"first": entry.first} if entry.first else {}),
            }
            for name, entry in entries.items()
        }
    ).encode()


def decode_registry(data: bytes | None) -> dict[str, Entry]:
    """Read the bytes of `encode_registry`."""
    entries = {}
    for name, document in (json.loads(data) if data else {}).items():
        map_key = None if document["map key"] is None else _Written.from_json(document["map key"]).schema
        written = [_Written.from_json(version) for version in document["written"]]
        entries[name] = Entry(document["kind"], document["number"], written, map_key, document.get("first", 0))
    return entries


def to_change(registry: bytes | None, declared: bytes, names: Collection[str]) -> dict[str, tuple[Entry, Entry]]:
    """Return which of these variables of a store are declared with a schema that they have not had: as they are now,
    and as they are when all their values have it.
    """
    stored, own = decode_registry(registry), decode_registry(declared)
    changed = {}
    for name in [candidate for candidate in names if candidate in stored and candidate in own]:
        was, wanted = stored[name], own[name].written[-1]
        is_same = (was.kind, was.map_key) == (own[name].kind, own[name].map_key)
        if (
            is_same
            and wanted.schema not in [version.schema for version in was.written]
            and len(was.written) <= _MOST_SCHEMAS
        ):
            changed[name] = was, replace(was, written=[*was.written, wanted], first=len(was.written))
    return changed


def _adapter(was: pa.DataType, now: pa.DataType, make: MakeStruct | None) -> Callable[[Any], Any] | None:
    """Return what converts values of an earlier type to a wider one, None where they are the same."""
    if was == now:
        return None
    if pa.types.is_struct(now):
        names, struct = [field.name for field in now], make or (lambda _, values: tuple(values))
        places = [was.get_field_index(name) for name in names]
        adapters = [
            None if place < 0 else _or_null(_adapter(was.field(place).type, field.type, make))
            for place, field in zip(places, now, strict=True)
        ]
        return lambda value: struct(
            names,
            [None if adapt is None else adapt(value[place]) for place, adapt in zip(places, adapters, strict=True)],
        )
    if pa.types.is_map(now):
        item = _or_null(_adapter(was.item_type, now.item_type, make))
        return lambda value: {key: item(entry) for key, entry in value.items()}
    if pa.types.is_list(now):
        element = _or_null(_adapter(was.value_type, now.value_type, make))
        return lambda value: [element(entry) for entry in value]
    return float if pa.types.is_floating(now) and pa.types.is_integer(was) else None


def _or_null(adapt: Callable[[object], object] | None) -> Callable[[object], object]:
    return lambda value: value if value is None or adapt is None else adapt(value)


def _holds(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return True if a type has all values of another one, as those of long count in double."""
    if kind == other:
        return True
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        places = [kind.get_field_index(field.name) for field in other]
        return all(
            place >= 0 and _holds(kind.field(place).type, field.type)
            for place, field in zip(places, other, strict=True)
        )
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return kind.key_type == other.key_type and _holds(kind.item_type, other.item_type)
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return _holds(kind.value_type, other.value_type)
    if pa.types.is_signed_integer(other):
        return bool(
            pa.types.is_float64(kind) or (pa.types.is_signed_integer(kind) and kind.bit_width > other.bit_width)
        )
    if pa.types.is_decimal(kind) and pa.types.is_decimal(other):
        return bool(kind.scale >= other.scale and kind.precision - kind.scale >= other.precision - other.scale)
    return bool(pa.types.is_float64(kind) and pa.types.is_float32(other))


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return names and types only."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _check(name: str, entry: Entry, kind: str, map_key: pa.Schema | None) -> None:
    if entry.kind != kind:
        raise StateError(f"state variable {name!r}: the store has a {entry.kind} of this name, no {kind}")
    if entry.map_key != map_key:
        raise StateError(f"state variable {name!r}: its map's keys were written with another schema; use another name")


def _check_name(name: str) -> None:
    """Raise StateError for a name that Spark refuses. A store that has such a variable goes on with it."""
    if not name or name != name.strip():
        raise StateError(f"state variable {name!r}: the name must not be empty, nor begin or end with a blank")
    if name.startswith("$") or name == "default":
        raise StateError(f"state variable {name!r}: Spark has names that begin with $, and 'default', for itself")
