"""Changes of a store's definition in place: which may be, and the entries as the new definition has them.

Entries do not say which definition wrote them, so all entries of a store change together, in a task's first batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
import pyarrow as pa

from roster.state.aggregate import Layout
from roster.state.aggregate_functions import FIXED, Kind, has_of
from roster.state.byte_slices import Structs, listed
from roster.state.definition import (
    DAMAGED,
    Definition,
    Migrate,
    Noted,
    OtherDefinitionError,
    damaged,
    function_name,
    shown,
)
from roster.state.join_entries import SIDES
from roster.state.keys import is_text
from roster.state.processor.variables import decode_registry, encode_registry, to_change
from roster.state.saved.plain import ENTRIES
from roster.state.saved.variables import part_of
from roster.state.sessions import ENDS_KEY
from roster.state.store import Keys, Position, Snapshot, StateError, Value
from roster.state.table_evolution import Function, TableEvolution
from roster.state.type_texts import type_of

Results = Mapping[str, Mapping[str, str]]
"""{name: kind, column and type} of the results of a definition."""

_FOLLOWING = frozenset({"row", "kinds", "variables", "stores"})
"""Fields that follow from others, and `stores`, which are compared by their order."""
_FIXED = frozenset(kind.value for kind in FIXED)
_UNITS = ("s", "ms", "us")
"""Units of timestamps that may become finer."""


class Verdict(Enum):
    """What a change needs."""

    ALLOWED = "allowed"
    NEEDS_MIGRATE = "needs migrate"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Change:
    """A difference of two definitions.

    before, after: for people. effect: what becomes of it, or the `migrate` to say.
    """

    part: str
    before: str
    after: str
    verdict: Verdict
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.part}: {self.before} -> {self.after}" + (f" ({self.effect})" if self.effect else "")

    def states(self) -> tuple[str, str]:
        """Return the part before and after as a sentence names them: `no window`, `s sum(n) int64`."""
        return _named(self.part, self.before), _named(self.part, self.after)


def _named(part: str, value: str) -> str:
    return f"no {part}" if value == "none" else value if value.startswith("no ") else f"{part} {value}"


def changes(written: Definition, own: Definition) -> list[Change]:
    """Return the changes that entries of `written` need under `own`; none if both mean the same."""
    was, now = written.document, own.document
    changed: list[Change] = []
    for name in dict.fromkeys([*was, *now]):
        if name in _FOLLOWING or json.dumps(was.get(name)) == json.dumps(now.get(name)):
            continue
        if name == "keys" and name in was and _are_wider(was[name], now[name]):
            changed.append(Change(name, shown(was[name]), shown(now[name]), Verdict.ALLOWED))
        elif name == "aggregates" and name in was and name in now:
            changed += _of_results(was[name], now[name], own.migrate)
        elif name == "sides" and name in was and name in now:
            for side in SIDES:
                changed += _of_side(side, was[name][side], now[name][side], own.functions.get(side))
        else:
            changed.append(_refused(name, was.get(name), now.get(name)))
    order, names = was.get("stores", []), now.get("stores", [])
    if [name for name in order if name in names] != [name for name in names if name in order]:
        changed.append(_refused("stores", order, names))
    return changed


def _refused(name: str, before: object, after: object) -> Change:
    return Change(name, shown(before), shown(after), Verdict.REFUSED)


def _are_wider(was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return True if the columns of keys are the same but for wider integers, whose bytes are the same."""
    if list(was) != list(now):
        return False
    return all(was[name] == now[name] or _is_wider_integer(type_of(was[name]), type_of(now[name])) for name in was)


def _is_wider_integer(was: pa.DataType, now: pa.DataType) -> bool:
    if not (pa.types.is_signed_integer(now) and pa.types.is_integer(was)):
        return False
    return bool(was.bit_width < now.bit_width)


def sources(was: Results, now: Results, migrate: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the earlier result that each result comes from, None for one that begins anew.

    `migrate` counts where a result is new or means something else than the earlier one of its name.
    """
    origins: dict[str, str | None] = {}
    for name, result in now.items():
        is_same = name in was and _fits(was[name], result)
        origins[name] = name if is_same else migrate.get(name, name if name in was else None)
    return origins


def _fits(was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return (was["kind"], was["column"]) == (now["kind"], now["column"]) and _widens(was["type"], now["type"])


def _widens(was: str, now: str) -> bool:
    """Return True if values of a type can be kept as those of another one."""
    if was == now or (was, now) == ("int64", "double"):
        return True
    before, after = type_of(was), type_of(now)
    if is_text(before) and is_text(after):
        return not pa.types.is_fixed_size_binary(after) and (_is_bytes(after) or not _is_bytes(before))
    if pa.types.is_decimal128(before) and pa.types.is_decimal128(after):
        return bool(before.scale == after.scale and before.precision < after.precision)
    return _finer(before, after) > 1


def _is_bytes(kind: pa.DataType) -> bool:
    return not (pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _finer(before: pa.DataType, after: pa.DataType) -> int:
    """Return by how much a timestamp's unit is finer; 1 for other types."""
    if not (pa.types.is_timestamp(before) and pa.types.is_timestamp(after)) or before.tz != after.tz:
        return 1
    if before.unit not in _UNITS or after.unit not in _UNITS:
        return 1
    return int(1000 ** max(_UNITS.index(after.unit) - _UNITS.index(before.unit), 0))


def _of_side(side: str, was: Mapping[str, str], now: Mapping[str, str], function: Function | None) -> Iterator[Change]:
    """Yield the changes of the columns of a join's side."""
    if function is not None and list(was.items()) != list(now.items()):
        yield Change(side, shown(was), shown(now), Verdict.ALLOWED, f"by {function_name(function)}")
        return
    for name in dict.fromkeys([*was, *now]):
        before, after = was.get(name), now.get(name)
        if before == after:
            continue
        effect = "is null in rows of before" if before is None else "is left out" if after is None else "goes on"
        fits = before is None or after is None or _holds(type_of(before), type_of(after))
        verdict = Verdict.ALLOWED if fits else Verdict.REFUSED
        yield Change(f"{side} {name}", shown(before), shown(after), verdict, effect if fits else "")
    if [name for name in was if name in now] != [name for name in now if name in was]:
        yield Change(f"order of {side}", ", ".join(was), ", ".join(now), Verdict.ALLOWED)


def _holds(before: pa.DataType, after: pa.DataType) -> bool:
    """Return True if a column of a type can be kept as one of another type."""
    if _is_wider_integer(before, after) or _widens(str(before), str(after)):
        return True
    is_number = pa.types.is_signed_integer(before) or pa.types.is_float32(before)
    return bool(is_number and pa.types.is_float64(after))


def _of_results(was: Results, now: Results, migrate: Migrate) -> Iterator[Change]:
    if migrate is not None and not isinstance(migrate, Mapping):
        yield Change("aggregates", shown(was), shown(now), Verdict.ALLOWED, f"by {function_name(migrate)}")
        return
    migrate = migrate or {}
    origin = sources(was, now, migrate)
    left = [name for name in was if name not in origin.values()]
    for name, source in origin.items():
        yield from _of_result(name, source, was, now, left, is_said=name in migrate)
    for name in left:
        yield Change(name, shown(was[name]), "none", Verdict.ALLOWED, "is left out, its values are deleted")
    both = [name for name in was if name in now]
    if both != [name for name in now if name in was]:
        yield Change("order", ", ".join(was), ", ".join(now), Verdict.ALLOWED)


def _of_result(
    name: str, source: str | None, was: Results, now: Results, left: Sequence[str], *, is_said: bool
) -> Iterator[Change]:
    """Yield the change of one result, if it is one."""
    result = now[name]
    before, after = shown(was.get(name)), shown(result)
    anew = f"migrate={{{name!r}: None}} if it begins anew"
    if source is None:
        alike = [other for other in left if _fits(was[other], result)]
        if alike and not is_said:
            fix = f"migrate={{{name!r}: {alike[0]!r}}} if it is {alike[0]!r} under another name, {anew}"
            yield Change(name, before, after, Verdict.NEEDS_MIGRATE, fix)
            return
        begins = "zero" if result["kind"] == Kind.COUNT.value else "null"
        yield Change(name, before, after, Verdict.ALLOWED, f"is {begins} for keys of before, and goes on from there")
    elif source not in was:
        fix = f"migrate with a result that the state has: {', '.join(was)}"
        yield Change(name, f"no {source}", after, Verdict.NEEDS_MIGRATE, fix)
    elif (
        was[source]["kind"] != result["kind"]
        or not _widens(was[source]["type"], result["type"])
        or (was[source]["column"] != result["column"] and result["kind"] in _FIXED)
    ):
        yield Change(name, shown(was[source]), after, Verdict.NEEDS_MIGRATE, anew)
    elif was[source]["column"] != result["column"] and not is_said:
        fix = f"migrate={{{name!r}: {source!r}}} if it goes on, {anew}"
        yield Change(name, shown(was[source]), after, Verdict.NEEDS_MIGRATE, fix)
    elif source != name or dict(was[source]) != dict(result):
        yield Change(name, f"{source} {shown(was[source])}", after, Verdict.ALLOWED, "goes on")


def check(own: Definition, noted: Noted, registry: bytes | None = None) -> list[Change]:
    """Return the changes in place that a store with this definition record, and list of variables, needs.

    Raises OtherDefinitionError if one may not be, or if the definition was left for the present one.
    """
    try:
        needed = [*changes(noted.definition, own), *_of_variables(own, registry)]
    except DAMAGED as error:
        raise damaged(error) from None
    _check_none(needed, Verdict.REFUSED)
    if needed and own.release in noted.releases:
        raise OtherDefinitionError(
            "a newer release has changed its state: " + "; ".join(change.states()[0] for change in needed),
            f"Stop this release, or take the change back with migrate={_unsaid(own, noted)}",
        )
    _check_none(needed, Verdict.NEEDS_MIGRATE)
    if (tables := _by_tables(own, noted, needed, registry)) is not None:
        tables.check()
    return needed


def _of_variables(own: Definition, registry: bytes | None) -> Iterator[Change]:
    """Yield the changes of a processor's variables that functions make; the operator itself makes others."""
    for name, (before, after) in to_change(registry, own.registry, own.functions).items():
        was, now = (
            shown({field.name: str(field.type) for field in entry.written[-1].schema}) for entry in (before, after)
        )
        yield Change(f"variable {name}", was, now, Verdict.ALLOWED, f"by {function_name(own.functions[name])}")


def registry_after(own: Definition, registry: bytes) -> bytes:
    """Return a store's list of variables when functions have changed those that they are for."""
    changed = to_change(registry, own.registry, own.functions)
    after = {name: entry for name, (_, entry) in changed.items()}
    return encode_registry(decode_registry(registry) | after) if after else registry


def _by_tables(
    own: Definition, noted: Noted, needed: Sequence[Change], registry: bytes | None
) -> TableEvolution | None:
    """Return what changes entries as tables, None if that is not the way."""
    if all(change.part == "keys" for change in needed):
        return None
    before, functions = noted.definition, own.functions
    if registry is not None:
        functions = {part_of(name): functions[name] for name in to_change(registry, own.registry, functions)}
        before, own = replace(before, registry=registry), replace(own, registry=registry_after(own, registry))
    elif callable(own.migrate):
        functions = {ENTRIES: own.migrate}
    return TableEvolution(before, own, functions) if functions or "sides" in own.document else None


def _check_none(needed: Sequence[Change], verdict: Verdict) -> None:
    """Raise OtherDefinitionError for changes with this verdict."""
    differ = [change for change in needed if change.verdict is verdict]
    if differ:
        was, now = (", ".join(parts) for parts in zip(*(change.states() for change in differ), strict=True))
        problem = f"its state was written with {was}, and this pipeline has {now}"
        raise OtherDefinitionError(problem, "; ".join(change.effect for change in differ if change.effect))


def _unsaid(own: Definition, noted: Noted) -> dict[str, str | None]:
    """Return a `migrate` without functions that no release has said."""
    migrate = (
        {}
        if callable(own.migrate)
        else {n: source for n, source in (own.migrate or {}).items() if n not in own.functions}
    )
    results = own.document.get("aggregates", {})
    for name in results or own.document.get("sides", {}):
        if replace(own, migrate=migrate).release not in noted.releases:
            break
        migrate.setdefault(name, name if results else None)
    return migrate


def evolution(own: Definition, noted: Noted, registry: bytes | None = None) -> Evolution | TableEvolution | None:
    """Return what makes entries of the recorded definition those of `own`, None if they are. Raises as `check`."""
    if registry is None and noted.definition.document == own.document:
        return None  # as nearly always
    needed = check(own, noted, registry)
    if (tables := _by_tables(own, noted, needed, registry)) is not None:
        return tables
    was, now = noted.definition.document, own.document
    if "aggregates" not in now or not any(change.part != "keys" for change in needed):
        return None
    origin = sources(was["aggregates"], now["aggregates"], own.migrate if isinstance(own.migrate, Mapping) else {})
    try:
        return Evolution(noted.definition.layout, own.layout, origin, has_several="session" in now)
    except DAMAGED as error:
        raise damaged(error) from None


def seen_as(own: Definition, snapshot: Snapshot) -> Snapshot:
    """Return a view of a store with entries as in `own`.

    Raises as `check`, for a store with a part of a change, and StateError if only a task can change it.
    """
    record = Noted.of(snapshot)
    evolved = None if record is None else evolution(own, record)
    if isinstance(evolved, TableEvolution):
        raise StateError("its entries are an earlier release's until the task's next batch")
    return snapshot if evolved is None else evolved.seen(snapshot)


@dataclass(frozen=True)
class Evolution:
    """Makes values of one layout those of another. sources: the earlier result of each result, None begins anew."""

    before: Layout
    after: Layout
    sources: Mapping[str, str | None]
    has_several: bool = False
    """True if a value has several rows."""

    def values(self, values: Sequence[bytes]) -> pa.Array:
        """Return the new values. Raises ValueDamagedError."""
        parts, places = self.before.apart(values) if self.has_several else (values, np.arange(len(values)))
        rows = self._rows(self.before.decode(parts))
        return self.after.together(rows, np.bincount(places, minlength=len(values)))

    def _rows(self, old: Structs) -> Structs:
        new = np.zeros(len(old), self.after.memory)
        own = {name for part in self.after.stored for name in (part, has_of(part))}
        for name in self.after.row.names or ():
            if name not in own:  # times of a session
                new[name] = old[name]
        for name, part, source in self._parts:
            if source is None:
                new[has_of(name)] = part is Kind.COUNT
                if name in self.after.texts:
                    new[name] = b""
            else:
                new[has_of(name)] = old[has_of(source)]
                before, after = self.before.kinds.get(source), self.after.kinds.get(name)
                factor = 1 if before is None or after is None else _finer(before, after)
                new[name] = old[source] if factor == 1 else old[source] * factor
        return new

    @cached_property
    def _parts(self) -> list[tuple[str, Kind, str | None]]:
        """The columns of the new rows, what they are, and the earlier columns that they come from."""
        columns: list[tuple[str, Kind, str | None]] = []
        for name, result in self.after.aggregates.items():
            source = self.sources[name]
            parts = result.stored(name)
            earlier = [None] * len(parts) if source is None else [part for part, _ in result.stored(source)]
            columns += [
                (part, aggregate.kind, origin) for (part, aggregate), origin in zip(parts, earlier, strict=True)
            ]
        return columns

    def seen(self, snapshot: Snapshot) -> Evolved:
        """Return a view of a store that has the new values."""
        return Evolved(snapshot, self)


class Evolved:
    """A snapshot whose values are changed when they are read; entries beside those of keys stay."""

    def __init__(self, snapshot: Snapshot, evolution: Evolution) -> None:
        self._snapshot, self._evolution = snapshot, evolution

    @property
    def position(self) -> Position:
        """The position of the snapshot."""
        return self._snapshot.position

    def rewritten(self, but: Collection[bytes]) -> pa.Table:
        """Return the new entries of all keys but these, as changes."""
        entries = [entry for entry in self._snapshot.scan(stop=ENDS_KEY) if entry[0] not in but]
        values = self._evolution.values([value for _, value in entries])
        return pa.table([pa.array([key for key, _ in entries], pa.binary()), values], ["key", "value"])

    def multi_get(self, keys: Keys) -> Sequence[Value]:
        """Return the value of each key."""
        keys = listed(keys)
        return self._new(keys, self._snapshot.multi_get(keys))

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return entries from `start` up to before `stop`, in the order of keys, at most `limit`."""
        entries = self._snapshot.scan(start, stop, limit)
        keys = [key for key, _ in entries]
        values = self._new(keys, [value for _, value in entries])
        return [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]

    def _new(self, keys: Sequence[bytes], values: Sequence[Value]) -> list[Value]:
        new = list(values)
        there = [place for place, key in enumerate(keys) if key < ENDS_KEY and values[place] is not None]
        evolved = self._evolution.values([value for place in there if (value := values[place]) is not None])
        for place, value in zip(there, evolved.to_pylist(), strict=True):
            new[place] = value
        return new
