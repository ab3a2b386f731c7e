"""`encode` and `decode`: each message class is compiled, once per version, to straight-line Python.

The compiler goes through the table and writes the source of two functions, `write(message, out)` and
`read(data, pos, end)`. Adjacent fields of constant size, including classic length prefixes, share one `struct` call.
The reader compares every length and count with the remaining bytes before it allocates anything.

Libraries with generated schemas allocate by the counts that they read, so a malicious count ends the process.
"""

import linecache
import struct
from collections.abc import Callable
from struct import Struct as Packing
from typing import Any, TypeAlias, TypeVar

from roster.wire.codec.fields import FIXED, MAX_STRING_BYTES, Field
from roster.wire.codec.reader import reader_source
from roster.wire.codec.table import Message, Struct, Table
from roster.wire.codec.varint import Buffer
from roster.wire.codec.writer import writer_source
from roster.wire.errors import WireError

M = TypeVar("M", bound="Message | Struct")

Writer: TypeAlias = Callable[[Any, Callable[[bytes], None]], None]
Reader: TypeAlias = "Callable[[Buffer, int, int], tuple[Any, int]]"

_SIZE = Packing(">i")

_writers: dict[type, dict[int, Writer]] = {}
_readers: dict[type, dict[int, Reader]] = {}


def encode(message: Message | Struct, version: int) -> bytes:
    """Return the body of `message` in `version`.

    Raises WireError for a version that the message does not have, for a value out of its field's range, and for a field
    that this version does not have and that is not at its default (unless the table marks it as ignorable).
    """
    return _joined(_write([], message, version, sized=False), message, version)


def encode_framed(head: list[bytes], message: Message, version: int) -> bytes:
    """Return a 4-byte size, `head` and the body as one bytes object; large values are copied only once."""
    return _joined(encode_parts(head, message, version), message, version)


def encode_parts(head: list[bytes], message: Message, version: int) -> list[bytes]:
    """Return the result of `encode_framed` in pieces; values of bytes fields are not copied."""
    return _write([b"", *head], message, version, sized=True)


def _joined(parts: list[bytes], message: Message | Struct, version: int) -> bytes:
    try:
        return b"".join(parts)
    except TypeError as error:  # of a value of a bytes field the writer takes only the length
        raise WireError(explain(message, version, error)) from error


def _write(out: list[bytes], message: Message | Struct, version: int, *, sized: bool) -> list[bytes]:
    cls = type(message)
    try:
        write = _writers[cls][version]
    except KeyError:
        write = _compile(cls, version, writer_source, _writers)
    try:
        write(message, out.append)
        if sized:
            out[0] = _SIZE.pack(sum(map(len, out)))
        return out
    except WireError:
        raise
    except Exception as error:
        raise WireError(explain(message, version, error)) from error


def decode(cls: type[M], version: int, data: Buffer) -> M:
    """Decode a message from all of `data`. Raises WireError that names the field."""
    message, end = decode_from(cls, version, data, 0)
    if end != len(data):
        raise WireError(f"{cls.__table__.name} v{version}: {len(data) - end} bytes behind the end of the message")
    return message


def decode_from(cls: type[M], version: int, data: Buffer, pos: int) -> tuple[M, int]:
    """Decode a message at `pos`; return it and the position after it. Data other than bytes is copied first."""
    if type(data) is not bytes:
        data = bytes(data)
    try:
        read = _readers[cls][version]
    except KeyError:
        read = _compile(cls, version, reader_source, _readers)  # type: ignore[arg-type]
    return read(data, pos, len(data))


def _compile(
    cls: type[Message] | type[Struct],
    version: int,
    source_of: Callable[[type[Message] | type[Struct], int], tuple[str, dict[str, Any]]],
    compiled: dict[type, dict[int, Any]],
) -> Any:
    table = cls.__table__
    if version not in table.versions:
        raise WireError(f"{table.name}: no version {version} (versions {table.versions})")
    source, namespace = source_of(cls, version)
    filename = f"<{source_of.__name__} of {table.name} v{version}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)  # for tracebacks
    exec(compile(source, filename, "exec"), namespace)  # noqa: S102 (our own tables only)
    function = namespace["compiled"]
    compiled.setdefault(cls, {})[version] = function
    return function


def explain(message: Message | Struct, version: int, error: Exception) -> str:
    """Name the first field whose value this version cannot encode."""
    table = message.__table__
    problem = _structure(table, message, version, "")
    return f"{table.name} v{version}: {problem or f'cannot be written ({error})'}"


def _structure(table: Table, value: object, version: int, path: str) -> str | None:
    for name, field in table.fields:
        if version in field.versions:
            problem = _value(field, getattr(value, name, None), version, path + name)
            if problem:
                return problem
    return None


def _value(field: Field, value: object, version: int, path: str) -> str | None:
    if value is None:
        return None if version in field.nullable else f"{path}: None in a field that cannot be null"
    if field.kind in FIXED:
        return _fixed(field.kind, value, path)
    if field.kind == "string":
        return _text(value, path)
    if field.kind in ("bytes", "records"):
        if not isinstance(value, bytes | bytearray | memoryview):
            return f"{path}: {type(value).__name__} instead of bytes"
    elif field.kind == "struct":
        table: Table | None = getattr(value, "__table__", None)
        if table is None or not isinstance(value, field.struct or object):
            return f"{path}: {value!r} is no {field.kind}"
        return _structure(table, value, version, path + ".")
    elif field.element is not None:
        return _items(field.element, value, version, path)
    return None


def _fixed(kind: str, value: Any, path: str) -> str | None:
    try:
        struct.pack(">" + FIXED[kind][0], value)
    except struct.error as error:
        return f"{path}: {value!r} is no {kind} ({error})"
    if kind == "uuid" and len(value) != 16:
        return f"{path}: {value!r} is not 16 bytes"
    return None


def _items(element: Field, value: object, version: int, path: str) -> str | None:
    if not isinstance(value, list | tuple):
        return f"{path}: {type(value).__name__} instead of a list"
    for index, item in enumerate(value):
        problem = _value(element, item, version, f"{path}[{index}]")
        if problem:
            return problem
    return None


def _text(value: object, path: str) -> str | None:
    if not isinstance(value, str):
        return f"{path}: {type(value).__name__} instead of text"
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        return f"{path}: {value!r} has no UTF-8 form ({error.reason})"
    return f"{path}: {size} bytes of text, at most {MAX_STRING_BYTES} fit" if size > MAX_STRING_BYTES else None
