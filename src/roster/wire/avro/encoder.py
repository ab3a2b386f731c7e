"""Arrow columns as Avro values: the program for the loop that encodes them, and the columns' arrays in its memory."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.arrays import Array
from roster.wire.avro.columns import TIMES, without_null
from roster.wire.avro.defaults import encoded
from roster.wire.avro.schema import Field, SchemaError, Type
from roster.wire.columns import avro_encode_layout as layout
from roster.wire.columns.kernel import Kernel

_LARGEST = 1 << 30
"""Rows that may need more bytes are encoded in halves."""
_SMALL = (pa.int8(), pa.int16(), pa.int32())
_TAKEN = {
    "boolean": (pa.bool_(),),
    "int": _SMALL,
    "long": (*_SMALL, pa.int64()),
    "float": (pa.float32(),),
    "double": (*_SMALL, pa.float32(), pa.float64()),
    "string": (pa.string(), pa.large_string()),
    "enum": (pa.string(), pa.large_string()),
    "bytes": (pa.binary(), pa.large_binary()),
    "fixed": (pa.binary(), pa.large_binary()),
}
"""The columns' types that are written as a type of Avro; the last one but for texts is as it is in memory."""
_STORED = {"int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64()}


class AvroEncoder:
    """Encodes values by one schema, each behind the same prefix."""

    def __init__(self, kernel: Kernel, schema: Type, prefix: bytes = b"") -> None:
        self._kernel, self._schema, self._prefix = kernel, schema, prefix

    def encode(self, values: pa.Array, name: str = "") -> pa.Array:
        """Return the bytes of each value, null for null; a record's values are a struct.

        Raises SchemaError, which names the column, for types that do not fit and for values that the schema lacks.
        `name` stands for the column if the values are not a struct.
        """
        if values.null_count:
            is_valid = np.asarray(values.is_valid())
            places = pa.array(np.cumsum(is_valid) - 1, mask=~is_valid)
            return self.encode(values.drop_null(), name).take(places)
        encoding = _Encoding(self._prefix)
        encoding.value(self._schema, values, name, 0)
        most = encoding.most + len(values) * len(self._prefix)
        if most > _LARGEST and len(values) > 1:
            half = len(values) // 2
            return pa.concat_arrays(
                [self.encode(half_of_rows, name) for half_of_rows in (values[:half], values[half:])]
            )
        return encoding.run(self._kernel, len(values), most)


class _Encoding:
    """The program and the memory of one array of values; `most` is the most bytes that they take."""

    def __init__(self, prefix: bytes) -> None:
        self.most = 0
        self._prefix, self._pool = len(prefix), bytearray(prefix)
        self._code: list[list[int]] = []
        self._paths: list[str] = []
        self._parts: list[tuple[int, Array]] = []
        self._size, self._dims = 0, 1

    def run(self, kernel: Kernel, rows: int, most: int) -> pa.Array:
        """Return the encoded values."""
        self._code.append([layout.END] + [0] * (layout.WIDTH - 1))
        memory = np.empty(self._size // 8 + 1, np.int64)
        for place, part in self._parts:
            memory.view(np.uint8)[place : place + part.nbytes] = part.view(np.uint8)
        code = np.array(self._code, np.int64).reshape(-1)
        counts, ends = np.zeros((2, self._dims), np.int64)
        out, offsets, state = np.empty(most + 1, np.uint8), np.zeros(rows + 1, np.int32), np.array([self._prefix])
        pool = np.frombuffer(bytes(self._pool) or b"\0", np.uint8)
        views = (memory.view(kind) for kind in (np.uint8, np.int32, np.int64))
        status = kernel.avro_encode(rows, pool, code, counts, ends, *views, out, offsets, state)
        if status < 0:
            problem = "a value is null, which the schema does not allow" if status == -1 else "a value has another size"
            raise SchemaError(f"column {self._paths[int(state[0]) // layout.WIDTH]!r}: {problem}")
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]])]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, 0)

    def value(self, kind: Type, array: pa.Array, path: str, dim: int) -> None:
        """Append what writes a column's values. Raises SchemaError if their type does not fit."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if kind.kind != "union":
            self._one(kind, array, path, dim)
            return
        if len(kind.branches) > 64:
            raise SchemaError(f"column {path!r}: a union of more than 64 types is not written")
        null = next((2 * number for number, branch in enumerate(kind.branches) if branch.kind == "null"), -1)
        if pa.types.is_null(array.type) and null >= 0:
            self._constant(bytes([null]), len(array), path, dim)
            return
        members = [f"member{number}" for number in range(len(without_null(kind)[0]))]
        if pa.types.is_struct(array.type) and len(members) > 1 and array.type.names == members:
            self._members(kind, array, path, dim, null)
            return
        fitting = (number for number, branch in enumerate(kind.branches) if _fits(branch, array.type))
        chosen = next(fitting, len(kind.branches) - 1)
        self._one(kind.branches[chosen], array, path, dim, null, 2 * chosen)

    def _members(self, kind: Type, array: pa.Array, path: str, dim: int, null: int) -> None:
        """Write the struct that a union is read as: of its members one has a value, or none for null."""
        members = array.flatten()
        counts = np.zeros(len(array), np.int64)
        for branch in members:
            counts += np.asarray(branch.is_valid())
        if (counts > 1).any():
            raise SchemaError(f"column {path!r}: two members of a union have a value")
        self._emit(layout.NOTE, path, dim, pa.array(counts, mask=counts == 0), null)
        numbers = (number for number, branch in enumerate(kind.branches) if branch.kind != "null")
        for field, number, branch in zip(array.type, numbers, members, strict=True):
            if not pa.types.is_null(branch.type):
                self._one(kind.branches[number], branch, f"{path}.{field.name}", dim, layout.NOTHING, 2 * number)

    def _emit(
        self, op: int, path: str, dim: int, array: pa.Array = None, null: int = -1, branch: int = -1, **more: int
    ) -> int:
        valid = -1 if array is None else self._valid(array)
        behind = (len(self._code) + 1) * layout.WIDTH
        places = [more.get(name, 0) for name in ("value", "data")]
        self._code.append([op, dim, valid, *places, null, branch, more.get("x", 0), more.get("behind", behind)])
        self._paths.append(path)
        self.most += 0 if array is None else len(array)
        return len(self._code) - 1

    def _one(self, kind: Type, array: pa.Array, path: str, dim: int, null: int = -1, branch: int = -1) -> None:
        """Write values of a type other than a union, behind the byte of their branch."""
        if not _fits(kind, array.type):
            raise SchemaError(f"column {path!r}: {array.type} is not written as the schema's {kind}")
        if kind.kind == "record":
            begin = self._emit(layout.NOTE, path, dim, array, null, branch)
            self._record(kind, array, path, dim)
        elif kind.items is not None:
            begin = self._list(kind, array, path, dim, null, branch)
        else:
            begin = self._simple(kind, array, path, dim, null, branch)
        self._code[begin][layout.BEHIND] = len(self._code) * layout.WIDTH

    def _record(self, kind: Type, array: pa.Array, path: str, dim: int) -> None:
        numbers = {field.name: number for number, field in enumerate(array.type)}
        inside = f"{path}." if path else ""
        if extra := [name for name in numbers if name not in {field.name for field in kind.fields}]:
            raise SchemaError(f"column {inside + extra[0]!r}: {kind} has no such field")
        for field in kind.fields:
            if field.name in numbers:
                self.value(field.type, array.field(numbers[field.name]), inside + field.name, dim)
            else:
                self._constant(_default(field, inside), len(array), path, dim)

    def _constant(self, value: bytes, count: int, path: str, dim: int) -> None:
        self._emit(layout.CONSTANT, path, dim, value=len(self._pool), x=len(value))
        self._pool += value
        self.most += count * len(value)

    def _list(self, kind: Type, array: pa.Array, path: str, dim: int, null: int, branch: int) -> int:
        assert kind.items is not None  # lists have them
        offsets = _raw(array, np.int32, 1)
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        inner, self._dims = self._dims, self._dims + 1
        place = self._kept(offsets - np.int32(first)) // 4
        begin = self._emit(layout.LIST, path, dim, array, null, branch, value=place, x=inner)
        self.most += len(array) * 11
        if kind.kind == "map":
            self._one(Type("string"), array.keys.slice(first, count), f"{path}.key", inner)
        items = array.items if kind.kind == "map" else array.values
        self.value(kind.items, items.slice(first, count), f"{path}.value" if kind.kind == "map" else path, inner)
        self._emit(layout.NEXT, path, dim, x=inner, behind=(begin + 1) * layout.WIDTH)
        return begin

    def _simple(self, kind: Type, array: pa.Array, path: str, dim: int, null: int, branch: int) -> int:
        name, place = kind.kind, {"null": null, "branch": branch}
        size = kind.size if name == "fixed" else -1
        if name == "null":
            return self._emit(layout.NOTE, path, dim, None, **place)
        if kind.logical == "decimal":
            self.most += 18 * len(array) + kind.size * len(array)
            value = self._kept(_raw(array, np.int64, width=2))
            return self._emit(layout.DECIMAL, path, dim, array, **place, value=value, x=size)
        if name in ("string", "bytes", "fixed"):
            array = array.cast(pa.string() if name == "string" else pa.binary())
            offsets, first = _raw(array, np.int32, 1), 0
            first = int(offsets[0])
            data = np.frombuffer(array.buffers()[2] or b"\0", np.uint8)[first : int(offsets[-1])]
            self.most += len(data) + 5 * len(array)
            places = {"value": self._kept(offsets - np.int32(first)) // 4, "data": self._kept(data)}
            return self._emit(layout.BYTES, path, dim, array, **place, **places, x=size)
        if name == "boolean":
            values = np.asarray(array.fill_null(False)).astype(np.uint8)
        elif name == "enum":
            indices = pc.index_in(array, pa.array(kind.symbols, array.type))
            if (lost := pc.and_(indices.is_null(), array.is_valid())).true_count:
                raise SchemaError(f"column {path!r}: {kind} has no symbol {array.filter(lost)[0].as_py()!r}")
            array, values = indices, _raw(indices, np.int32)
        elif kind.logical in TIMES:
            values = _raw(array.cast(TIMES[kind.logical][0]), np.int64) // TIMES[kind.logical][1]
        else:
            array = array.cast(_STORED[name])
            values = _raw(array, array.type.to_pandas_dtype())
        width = values.dtype.itemsize
        if name in ("int", "long", "enum"):
            self.most += len(array) * 10
            op = layout.LONG if name == "long" else layout.INT
            return self._emit(op, path, dim, array, **place, value=self._kept(values) // width)
        self.most += len(array) * width
        return self._emit(layout.PLAIN, path, dim, array, **place, value=self._kept(values), x=width)

    def _valid(self, array: pa.Array) -> int:
        if not array.null_count:
            return -1
        return self._kept(np.asarray(array.is_valid()).astype(np.uint8))

    def _kept(self, part: Array) -> int:
        """Return the place of an array in the memory."""
        place = self._size
        self._parts.append((place, np.ascontiguousarray(part)))
        self._size += -(-part.nbytes // 8) * 8
        return place


def _raw(array: pa.Array, kind: npt.DTypeLike, more: int = 0, width: int = 1) -> Array:
    """Return the values, or one more offsets; values hidden by nulls may be anything."""
    if array.buffers()[1] is None or not array.buffers()[1].size:
        return np.zeros((len(array) + more) * width, kind)
    begin = array.offset * width
    return np.frombuffer(array.buffers()[1], kind)[begin : begin + (len(array) + more) * width]


def _fits(kind: Type, arrow: pa.DataType) -> bool:
    """Return whether a column's values are written as this type, which is not a union."""
    name, is_fitting = kind.kind, False
    if kind.logical == "decimal":
        is_fitting = pa.types.is_decimal128(arrow) and arrow.scale == kind.scale and arrow.precision <= kind.precision
    elif kind.logical == "date":
        is_fitting = pa.types.is_date32(arrow)
    elif kind.logical in TIMES:
        is_fitting = pa.types.is_timestamp(arrow) and (arrow.tz is None) == (TIMES[kind.logical][0].tz is None)
    elif name == "record":
        is_fitting = pa.types.is_struct(arrow)
    elif name == "map":
        is_fitting = pa.types.is_map(arrow) and pa.types.is_string(arrow.key_type)
    elif name == "array":
        is_fitting = pa.types.is_list(arrow)
    else:
        is_fitting = pa.types.is_null(arrow) if name == "null" else arrow in _TAKEN[name]
    return is_fitting


def _default(field: Field, inside: str) -> bytes:
    """Return what is written for a field that the columns have not."""
    if field.has_default:
        return encoded(field.default, field.type)
    if field.type.kind == "union" and without_null(field.type)[1]:
        return encoded(None, field.type)
    raise SchemaError(f"column {inside + field.name!r}: there is none, and the schema has no default for it")
