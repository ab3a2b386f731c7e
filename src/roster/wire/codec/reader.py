"""Source of the function that reads one version of one message."""

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct as Packing
from struct import error as struct_error
from struct import unpack_from

from roster.wire.codec.fields import FIXED, MAX_STRING_BYTES, Field
from roster.wire.codec.runtime import bad_count, bad_length, bad_text, cut_short, ends_inside, skip_tags
from roster.wire.codec.source import Source
from roster.wire.codec.table import Message, Struct, Table, struct_of
from roster.wire.codec.varint import read_uvarint
from roster.wire.errors import WireError


def reader_source(cls: type[Message] | type[Struct], version: int) -> tuple[str, dict[str, object]]:
    """Return the source of `compiled(data, pos, end) -> (message, position after it)`, for bytes, and its globals."""
    return _ReadCompiler(cls, version).compile()


def minimum_size(field: Field, version: int, flexible: bool) -> int:
    """Return the minimum size in bytes of a present, untagged field in this version."""
    if field.kind in FIXED:
        return FIXED[field.kind][1]
    if field.kind == "struct":
        return structure_minimum(struct_of(field).__table__, version, flexible)
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


def structure_minimum(table: Table, version: int, flexible: bool) -> int:
    """Return the minimum size in bytes of a structure: its fields, and one byte for the tagged ones."""
    fields = (f for _, f in table.fields if version in f.versions and version not in f.tagged)
    return sum(minimum_size(f, version, flexible) for f in fields) + flexible


class _ReadCompiler:
    def __init__(self, cls: type[Message] | type[Struct], version: int) -> None:
        table = cls.__table__
        self.cls = cls
        self.version = version
        self.flexible = version in table.flexible
        self.prefix = f"{table.name} v{version}: "
        self.out = Source(
            WireError=WireError,
            struct_error=struct_error,
            new=object.__new__,
            unpack_from=unpack_from,
            read_uvarint=read_uvarint,
            cut_short=cut_short,
            ends_inside=ends_inside,
            bad_length=bad_length,
            bad_count=bad_count,
            bad_text=bad_text,
            skip_tags=skip_tags,
        )
        self.run: list[tuple[str, str, str]] = []
        """Fields of constant size that are not read yet: (format, variable, path)."""

    def compile(self) -> tuple[str, dict[str, object]]:
        out = self.out
        with out.block("def compiled(data, pos, end):"):
            self.structure(self.cls, "message", "", "end")
            out.line("return message, pos")
        return out.text(), out.namespace

    def structure(self, cls: type[Message] | type[Struct], target: str, path: str, end: str) -> None:
        """Read the fields of a structure into variables, then create it in the variable `target`.

        Setting the slots of an empty object takes half the time of calling the class.
        """
        out = self.out
        tagged = []
        slots = []
        for name, field in cls.__table__.fields:
            if self.version not in field.versions:
                slots.append(f"{target}.{name} = {out.default(field)}")
                continue
            variable = out.variable(name)
            slots.append(f"{target}.{name} = {variable}")
            if self.version in field.tagged:
                tagged.append((field, variable, path + name))
            else:
                self.value(field, variable, path + name, end)
        self.flush(end)
        if self.flexible:
            self.tags(tagged, path, end)
        out.line(f"{target} = new({out.constant(cls.__name__, cls)})")
        for slot in slots:
            out.line(slot)

    def value(self, field: Field, variable: str, path: str, end: str) -> None:
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind][0], variable, path))
        elif field.kind == "struct":
            self.structure(struct_of(field), variable, path + ".", end)
        elif field.kind == "array":
            self.array(field, variable, path, end)
        else:
            self.sized(field, variable, path, end)

    def sized(self, field: Field, variable: str, path: str, end: str) -> None:
        """Strings, bytes and records: a length, then that many bytes."""
        out = self.out
        size = self.length(field, path, end)
        where = repr(self.prefix + path)
        bound = f" and {size} <= {MAX_STRING_BYTES}" if field.kind == "string" and self.flexible else ""
        with out.block(f"if 0 <= {size} <= {end} - pos{bound}:"):
            taken = f"data[pos:(pos := pos + {size})]"
            if field.kind == "string":
                with out.block("try:"):
                    out.line(f"{variable} = {taken}.decode()")
                with out.block("except UnicodeDecodeError as error:"):
                    out.line(f"raise bad_text({where}, error) from error")
            else:
                out.line(f"{variable} = {f'memoryview(data){taken[4:]}' if field.kind == 'records' else taken}")
        self.null(field, variable, size)
        with out.block("else:"):
            out.line(f"raise bad_length({where}, {size}, {end} - pos)")

    def array(self, field: Field, variable: str, path: str, end: str) -> None:
        out = self.out
        element = field.item
        count = self.length(field, path, end)
        where = repr(self.prefix + path)
        least = minimum_size(element, self.version, self.flexible)
        if least < 1:
            raise TypeError(f"{self.prefix}{path}: elements without bytes cannot be counted against bytes")
        with out.block(f"if 0 <= {count} <= ({end} - pos) // {least}:"):
            if element.kind in FIXED and element.kind not in ("bool", "uuid"):
                code, size = FIXED[element.kind]
                out.line(f"{variable} = list(unpack_from(f'>{{{count}}}{code}', data, pos))")
                out.line(f"pos += {count} * {size}")
            else:
                add, item = out.variable("add"), out.variable("item")
                out.line(f"{variable} = []")
                out.line(f"{add} = {variable}.append")
                with out.block(f"for _ in range({count}):"):
                    if element.kind == "struct":
                        self.structure(struct_of(element), item, path + "[].", end)
                    else:
                        self.value(element, item, path + "[]", end)
                        self.flush(end)
                    out.line(f"{add}({item})")
        self.null(field, variable, count)
        with out.block("else:"):
            out.line(f"raise bad_count({where}, {count}, {end} - pos, {least})")

    def null(self, field: Field, variable: str, size: str) -> None:
        if self.version in field.nullable:
            with self.out.block(f"elif {size} == -1:"):
                self.out.line(f"{variable} = None")

    def length(self, field: Field, path: str, end: str) -> str:
        """Read a length or count; return the variable that holds it, -1 for null in either encoding."""
        size = self.out.variable("n")
        if self.flexible:
            self.flush(end)
            self.compact(size, path, end)
        else:
            self.run.append(("h" if field.kind == "string" else "i", size, path))
            self.flush(end)
        return size

    def compact(self, size: str, path: str, end: str) -> None:
        """Read a varint that is one more than the length; most take one byte."""
        out = self.out
        where = repr(self.prefix + path)
        with self.within(end, 1, f"ends_inside({where})", "IndexError"):
            out.line(f"{size} = data[pos] - 1")
        out.line("pos += 1")
        with out.block(f"if {size} > 126:"):
            out.line(f"{size}, pos = read_uvarint(data, pos - 1, {end}, {where})")
            out.line(f"{size} -= 1")

    @contextmanager
    def within(self, end: str, size: int, error: str, raised: str) -> Iterator[None]:
        """Guard a read of `size` bytes; at the end of the data Python's own bounds check is used, which is free."""
        out = self.out
        if end == "end":
            with out.block("try:"):
                yield
            with out.block(f"except {raised}:"):
                out.line(f"raise {error} from None")
        else:
            with out.block(f"if {end} - pos < {size}:"):
                out.line(f"raise {error}")
            yield

    def tags(self, tagged: list[tuple[Field, str, str]], path: str, end: str) -> None:
        """Read known tagged fields into their variables and skip others; absent ones get their default."""
        out = self.out
        for field, variable, _ in tagged:
            out.line(f"{variable} = {out.default(field)}")
        where = repr(f"{self.prefix}{path}tagged fields")
        with out.block(f"if pos < {end} and data[pos] == 0:"):
            out.line("pos += 1")
        with out.block("else:"):
            if not tagged:
                out.line(f"pos = skip_tags(data, pos, {end}, {where})")
                return
            count, last, tag, size, stop = (out.variable(v) for v in ("count", "last", "tag", "size", "stop"))
            out.line(f"{count}, pos = read_uvarint(data, pos, {end}, {where})")
            with out.block(f"if {count} > ({end} - pos) // 2:"):
                out.line(f"raise bad_count({where}, {count}, {end} - pos, 2)")
            out.line(f"{last} = -1")
            with out.block(f"for _ in range({count}):"):
                out.line(f"{tag}, pos = read_uvarint(data, pos, {end}, {where})")
                out.line(f"{size}, pos = read_uvarint(data, pos, {end}, {where})")
                with out.block(f"if {tag} <= {last}:"):
                    out.line(f"raise WireError({where} f': tag {{{tag}}} after {{{last}}}')")
                with out.block(f"if {size} > {end} - pos:"):
                    out.line(f"raise bad_length({where}, {size}, {end} - pos)")
                out.line(f"{last} = {tag}")
                out.line(f"{stop} = pos + {size}")
                keyword = "if"
                for field, variable, field_path in tagged:
                    with out.block(f"{keyword} {tag} == {field.tag}:"):
                        self.value(field, variable, field_path, stop)
                        self.flush(stop)
                        with out.block(f"if pos != {stop}:"):
                            behind = f"f': {{{stop} - pos}} bytes behind the end of the field'"
                            out.line(f"raise WireError({(self.prefix + field_path)!r} {behind})")
                    keyword = "elif"
                with out.block("else:"):
                    out.line(f"pos = {stop}")

    def flush(self, end: str) -> None:
        """Read the pending fields of constant size with one call."""
        if not self.run:
            return
        out = self.out
        packing = Packing(">" + "".join(code for code, _, _ in self.run))
        sizes = tuple((self.prefix + path, Packing(">" + code).size) for code, _, path in self.run)
        unpack = out.constant("unpack", packing.unpack_from)
        with self.within(end, packing.size, f"cut_short({out.constant('sizes', sizes)}, {end} - pos)", "struct_error"):
            out.line(f"{', '.join(variable for _, variable, _ in self.run)}, = {unpack}(data, pos)")
        out.line(f"pos += {packing.size}")
        self.run.clear()
