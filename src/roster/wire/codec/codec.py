"""`encode` and `decode`: each message class compiles, once per version, to straight-line Python.

The compiler walks the table and writes the source of two functions, `write(message, out)` and `read(data, pos, end)`.
Neighbouring fields of constant size, classic length prefixes included, share one `struct` call. Reading compares every
length and count with the bytes that remain before it takes or allocates anything.

Not a library: codecs with generated schemas allocate by the counts they read, so a hostile count ends the process.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from struct import Struct as Packing
from typing import Any, TypeAlias, TypeVar

from roster.wire.codec.explain import explain
from roster.wire.codec.reader import reader_source
from roster.wire.codec.table import Message, Struct
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

    Raises WireError for a version the message has not got, a value out of its field's range, and a field that is not
    at its default but absent from this version (unless the table calls it ignorable).
    """
    return _joined(_write([], message, version, sized=False), message, version)


def encode_framed(head: list[bytes], message: Message, version: int) -> bytes:
    """Return a 4-byte size, `head` and the body in one piece, copying large values only once."""
    return _joined(encode_parts(head, message, version), message, version)


def encode_parts(head: list[bytes], message: Message, version: int) -> list[bytes]:
    """Return what `encode_framed` does in pieces; values of bytes fields, which need a length only, as they are."""
    return _write([b"", *head], message, version, sized=True)


def _joined(parts: list[bytes], message: Message | Struct, version: int) -> bytes:
    try:
        return b"".join(parts)
    except TypeError as error:  # the writer asks a value of a bytes field for its length only
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
    """Read one message that takes up `data` exactly; anything else is a WireError naming the field."""
    message, end = decode_from(cls, version, data, 0)
    if end != len(data):
        raise WireError(f"{cls.__table__.name} v{version}: {len(data) - end} bytes behind the end of the message")
    return message


def decode_from(cls: type[M], version: int, data: Buffer, pos: int) -> tuple[M, int]:
    """Read one message at `pos`; return it and the position behind it. Anything but bytes is copied first."""
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
