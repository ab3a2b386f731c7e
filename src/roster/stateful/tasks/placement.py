"""Which partition a key of state belongs to, found out from the keys and the partitions that they are in.

State is where its rows' records were, and a record's partition is a hash of its key. State has columns, not the record
key, but the columns prove how it was made: of all usual ways (column, form, partitioner) those are left that place each
key where it is. A wrong way places `n` keys in `p` partitions rightly with a probability of 1 in p to the power of n.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.arrays import Bool
from roster.pipeline.tasks.result_records import key_of_records
from roster.state.byte_slices import as_bytes
from roster.state.definition import Definition
from roster.state.store import StateError
from roster.state.windows import START
from roster.wire.columns.murmur2 import murmur2_of

NO_KEY = -1
"""Partition of rows whose record has no key."""
_PROOF = 30.0
"""Bits that prove a placement: a wrong one would pass once in a billion times."""
_SEEN = 2_000
"""Keys of a partition that are remembered."""
_CHANCE = 4.0
"""Standard deviations beyond which it is no chance that so many keys are where a partitioner places them."""
_MOST_COLUMNS = 4
_FNV_PRIME, _BY_COLUMNS = np.uint32(0x01000193), 64
"""And the bytes of keys that are hashed by columns."""
_FIRST, _COUNTED = 1_000, 100_000
"""Rows that are looked at first, and those whose different keys are counted."""
Places = npt.NDArray[np.int64]


class PlacementError(StateError):
    """Keys are not where a record key and a partitioner place them, or too few to say which; the text says why."""


def placing_keys(definition: Definition) -> pa.Schema:
    """Return the key columns that can be a record's key: all but a window's start."""
    is_windowed = "window" in definition.document
    return pa.schema([field for field in definition.keys if not (is_windowed and field.name == START)])


def _murmur2(keys: pa.Array) -> Places:
    places: Places = murmur2_of(*as_bytes(keys))
    return places


def _crc32(keys: pa.Array) -> Places:
    return np.fromiter((zlib.crc32(key) for key in keys.to_pylist()), np.int64, len(keys))


def _fnv1a(keys: pa.Array) -> Places:
    """Return the 32 bits of the hash as a signed number, which clients make a partition of in several ways."""
    data, offsets = as_bytes(keys)
    sizes = np.diff(offsets)
    order = np.argsort(-sizes, kind="stable")
    starts, sizes = offsets[:-1][order], sizes[order]
    value = np.full(len(sizes), 0x811C9DC5, np.uint32)
    for place in range(min(int(sizes[0]), _BY_COLUMNS) if len(sizes) else 0):
        count = int(np.searchsorted(-sizes, -place))
        value[:count] = (value[:count] ^ data[starts[:count] + place]) * _FNV_PRIME
    for number in range(int(np.searchsorted(-sizes, -_BY_COLUMNS))):
        rest = int(value[number])
        for byte in data[starts[number] + _BY_COLUMNS : starts[number] + sizes[number]].tobytes():
            rest = (rest ^ byte) * int(_FNV_PRIME) & 0xFFFFFFFF
        value[number] = rest
    places = np.empty(len(value), np.int64)
    places[order] = value.view(np.int32)
    return places


PARTITIONERS: Mapping[str, Callable[[pa.Array], Places]] = {
    "murmur2": _murmur2,
    "crc32": _crc32,
    "fnv1a": lambda keys: np.abs(_fnv1a(keys)),
    "fnv1a-masked": lambda keys: _fnv1a(keys) & 0x7FFFFFFF,
    "fnv1a-unsigned": lambda keys: _fnv1a(keys) & 0xFFFFFFFF,
}
"""Who places keys so, by default unless it says otherwise.

murmur2: Kafka's Java clients, Spark, kafka-python, aiokafka, franz-go. crc32: confluent-kafka and others on librdkafka.
fnv1a: Sarama; librdkafka and kafka-go if asked. fnv1a-masked: Sarama's and kafka-go's "reference" partitioners.
fnv1a-unsigned: franz-go's first imitation of Sarama.
"""


def _big_endian(column: pa.Array, kind: str) -> pa.Array:
    whole = column.cast(pa.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
    data = np.ascontiguousarray(whole.astype(kind))
    size = data.dtype.itemsize
    plain: pa.Array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(data), [None, pa.py_buffer(data)])
    return pc.if_else(column.is_null(), pa.scalar(None, pa.binary()), plain.cast(pa.binary()))


class Placement(NamedTuple):
    """Columns of a state's key that are the record key in some form, and the partitioner that hashes it.

    form: `text`, of text and bytes these themselves; `int64` and `int32`, as Kafka's serializers of integers have them;
    `json`, an array of several columns, as `repartition` and results have it.
    """

    columns: tuple[str, ...]
    form: str
    partitioner: str

    def record_keys(self, rows: pa.Table) -> pa.Array:
        """Return the record key of each row as bytes, null for none."""
        if self.form in ("text", "json"):
            record_keys = key_of_records(rows, self.columns).cast(pa.binary())
        else:
            column = rows[self.columns[0]].combine_chunks()
            record_keys = _big_endian(column, ">i8" if self.form == "int64" else ">i4")
        return record_keys.combine_chunks() if isinstance(record_keys, pa.ChunkedArray) else record_keys

    def partitions(self, rows: pa.Table, count: int) -> Places:
        """Return the partition of each row among `count`, NO_KEY without a record key."""
        return partitions_of(self.record_keys(rows), self.partitioner, count)

    def __str__(self) -> str:
        form = "" if self.form in ("text", "json") else f" as {self.form}"
        return f"{', '.join(self.columns)}{form} ({self.partitioner})"


def partitions_of(record_keys: pa.Array, partitioner: str, count: int) -> Places:
    """Return the partition of each record key among `count`, NO_KEY for null."""
    return _among(*_hashes(record_keys, partitioner), count)


def _hashes(record_keys: pa.Array, partitioner: str) -> tuple[Places, Bool]:
    """Return the hash of each record key, and a mask of those that are there."""
    has = record_keys.is_valid().to_numpy(zero_copy_only=False)
    return PARTITIONERS[partitioner](record_keys.fill_null(b"")), has


def _among(hashes: Places, has: Bool, count: int) -> Places:
    return np.where(has, hashes % count, NO_KEY)


def placements(keys: pa.Schema, named: Sequence[str] = (), partitioner: str | None = None) -> list[Placement]:
    """Return the ways in which keys with these columns may be placed.

    named: the columns of the record key; a single one may have its form behind a colon, as in `n:int64`. partitioner:
    None for any. Raises PlacementError for what there is not.
    """
    names, form = list(named), ""
    if len(names) == 1 and names[0] not in keys.names:
        names[0], _, form = names[0].partition(":")
    if missing := [name for name in names if name not in keys.names]:
        raise PlacementError(f"there is no key column {missing[0]!r} among {', '.join(keys.names)}")
    if names:
        chosen = [tuple(names)]
    elif len(keys) <= _MOST_COLUMNS:
        chosen = [columns for size in range(1, len(keys) + 1) for columns in permutations(keys.names, size)]
    else:
        chosen = [*((name,) for name in keys.names), tuple(keys.names)]
    forms = [(columns, key_form) for columns in chosen for key_form in _forms(keys, columns) if form in ("", key_form)]
    if not forms:
        raise PlacementError(f"{named[0]!r}: the form is one of {', '.join(_forms(keys, names))}")
    if partitioner not in (None, *PARTITIONERS):
        raise PlacementError(f"the partitioner is one of {', '.join(PARTITIONERS)}, not {partitioner!r}")
    return [
        Placement(columns, form, name)
        for columns, form in forms
        for name in PARTITIONERS
        if partitioner in (None, name)
    ]


def _forms(keys: pa.Schema, columns: Sequence[str]) -> Sequence[str]:
    if len(columns) > 1:
        return ("json",)
    return ("text", "int64", "int32") if pa.types.is_integer(keys.field(columns[0]).type) else ("text",)


class SeenKeys(NamedTuple):
    """Record keys of one partition, each once, as their hashes by each partitioner: those with the least hashes.

    misplaced: by the partitioner, the same of keys that are not where it places them; none if all are.
    """

    partition: int
    hashes: Places
    misplaced: Mapping[str, Places]

    @classmethod
    def none(cls, partition: int) -> SeenKeys:
        """Return what is known before the first record."""
        empty = np.empty((0, len(PARTITIONERS)), np.int64)
        return cls(partition, empty, dict.fromkeys(PARTITIONERS, empty))

    def with_records(self, record_keys: pa.Array, count: int) -> SeenKeys:
        """Return these and the keys of some records. count: partitions of the topic."""
        present = pc.unique(record_keys).drop_null()
        places = np.stack([place(present) for place in PARTITIONERS.values()], axis=1)
        misplaced = {
            name: _least(of, places[places[:, number] % count != self.partition])
            for number, (name, of) in enumerate(self.misplaced.items())
        }
        return SeenKeys(self.partition, _least(self.hashes, places), misplaced)


def _least(known: Places, found: Places) -> Places:
    if len(known) == _SEEN:
        found = found[found[:, 0] <= known[-1, 0]]  # nearly none: sorting all would take most of the time
    return np.unique(np.concatenate([known, found]), axis=0)[:_SEEN] if len(found) else known


def partitioners_of(seen: Sequence[SeenKeys]) -> list[str]:
    """Return the partitioners that place all keys of a topic where they are."""
    return [name for name in PARTITIONERS if not any(len(keys.misplaced[name]) for keys in seen)]


def is_proof(seen: Iterable[SeenKeys], count: int) -> bool:
    """Return True if these are too many keys to be where a partitioner places them by chance."""
    return sum(len(keys.hashes) for keys in seen) * math.log2(count) >= _PROOF


def why_apart(seen: Sequence[SeenKeys], count: int) -> str:
    """Return why keys of a topic with so many partitions are in two of them, or will be; "" if that is not known.

    Where none of the partitioners was used, the producers' own way may still keep each key in one partition.
    """
    if partitioners_of(seen):
        return ""
    for number, name in enumerate(PARTITIONERS):
        apart = [(keys.partition, keys.misplaced[name][:, number]) for keys in seen]
        if sum(len(hashes) for _, hashes in apart) * math.log2(count) >= _PROOF:
            for before in range(count - 1, 0, -1):
                if all((hashes % before == partition).all() for partition, hashes in apart):
                    return f"it had {before} when others were written"
    for number in range(len(PARTITIONERS)):
        total = sum(len(keys.hashes) for keys in seen)
        rightly = sum(int((keys.hashes[:, number] % count == keys.partition).sum()) for keys in seen)
        by_chance = total / count
        if rightly - by_chance > _CHANCE * math.sqrt(by_chance * (1 - 1 / count)):
            return "it has grown more than once, or its producers place keys in different ways"
    return ""


def keys_apart(seen: Sequence[SeenKeys]) -> int:
    """Return how many of the remembered keys are in two partitions; 0 if a partitioner places all where they are."""
    if partitioners_of(seen) or not seen:
        return 0
    _, partitions = np.unique(np.concatenate([keys.hashes for keys in seen]), axis=0, return_counts=True)
    return int((partitions > 1).sum())


class Evidence(NamedTuple):
    """What some keys say of a placement.

    keys: different record keys, all in their place. digest: of the places among the new number of partitions, the same
    for placements that agree.
    """

    keys: int
    digest: int


@dataclass(frozen=True)
class Proof:
    """The placements that hold for the keys of one or more partitions, and why others do not.

    without_key: highest partition with rows that have no record key by the placement, NO_KEY if there are none.
    """

    holds: Mapping[Placement, Evidence]
    misplaced: Mapping[Placement, str] = field(default_factory=dict)
    without_key: Mapping[Placement, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: pa.Table, at: int, before: int, after: int, among: Iterable[Placement]) -> Proof:
        """Look at the keys of one partition. rows: key columns. at: where they are among `before` partitions."""
        holds, misplaced, without_key = {}, {}, {}
        for placement in among:
            first = rows.slice(0, _FIRST)
            problem = _misplaced(placement, first, placement.partitions(first, before), at, before)
            if not problem:
                keys = placement.record_keys(rows)
                hashes, has = _hashes(keys, placement.partitioner)
                problem = _misplaced(placement, rows, _among(hashes, has, before), at, before)
            if problem:
                misplaced[placement] = problem
                continue
            digest = zlib.crc32(_among(hashes, has, after).tobytes())
            # Keys with different hashes are different: at least so many are.
            distinct = pc.count_distinct(pa.array(hashes[:_COUNTED][has[:_COUNTED]]))
            holds[placement] = Evidence(distinct.as_py(), digest)
            without_key[placement] = NO_KEY if has.all() else at
        return cls(holds, misplaced, without_key)

    @classmethod
    def all_of(cls, proofs: Sequence[Proof]) -> Proof:
        """Return what holds in all partitions."""
        misplaced: dict[Placement, str] = {}
        for proof in proofs:
            misplaced = {**proof.misplaced, **misplaced}
        common = [placement for placement in (proofs[0].holds if proofs else {}) if placement not in misplaced]
        return cls(
            {
                placement: Evidence(
                    sum(proof.holds[placement].keys for proof in proofs),
                    zlib.crc32(repr([proof.holds[placement].digest for proof in proofs]).encode()),
                )
                for placement in common
            },
            misplaced,
            {placement: max(proof.without_key[placement] for proof in proofs) for placement in common},
        )

    def chosen(self, before: int, after: int, *, is_named: bool) -> Placement:
        """Return the placement. is_named: it is one of columns that the user has named, so nothing is to be proven.

        Raises PlacementError if there is none, more than one, or too few keys to be sure.
        """
        if not self.holds:
            raise PlacementError(self._why_none())
        bits = {
            placement: evidence.keys * math.log2(before) if before > 1 else 0.0
            for placement, evidence in self.holds.items()
        }
        left = [placement for placement in self.holds if is_named or bits[placement] >= _PROOF]
        if not left or len({self.holds[placement].digest for placement in left}) > 1:
            names = "; ".join(map(str, left or self.holds))
            raise PlacementError(f"its keys do not prove how they were placed in {before} partitions: by {names}")
        if self.without_key[left[0]] >= after:
            raise PlacementError(
                f"partition {self.without_key[left[0]]} has rows without a value of {', '.join(left[0].columns)}, whose"
                f" records had no key: among {after} partitions there is no place for them"
            )
        return left[0]

    def _why_none(self) -> str:
        placement, example = next(iter(self.misplaced.items()))
        tried = {name for misplaced in self.misplaced for name in misplaced.columns}
        others = f", and no other way by {', '.join(sorted(tried))} holds" if len(self.misplaced) > 1 else ""
        return f"its keys are not where {placement} places them: {example}{others}"


def _misplaced(placement: Placement, rows: pa.Table, places: Places, at: int, count: int) -> str:
    """Return the first key that is not where the placement says, "" if all are."""
    wrong = np.flatnonzero((places != at) & (places != NO_KEY))
    if not len(wrong):
        return ""
    key = ", ".join(f"{name} {rows[name][int(wrong[0])].as_py()!r}" for name in placement.columns)
    return f"{key} is in partition {at}, and belongs to {places[wrong[0]]} of {count}"
