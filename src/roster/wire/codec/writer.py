"""Source of the function that writes one version of one message."""

from struct import Struct as Packing
from struct import pack

from roster.wire.codec.fields import FIXED, Field
from roster.wire.codec.runtime import exactly_16, length_prefix, text_prefix
from roster.wire.codec.source import Source
from roster.wire.codec.table import Message, Struct, struct_of
from roster.wire.codec.varint import SHORT, encode_uvarint
from roster.wire.errors import WireError


def writer_source(cls: type[Message] | type[Struct], version: int) -> tuple[str, dict[str, object]]:
    """Return the source of `compiled(message, add)`, which calls `add` with each piece, and its globals."""
    return _WriteCompiler(cls, version).compile()


class _WriteCompiler:
    def __init__(self, cls: type[Message] | type[Struct], version: int) -> None:
        table = cls.__table__
        self.cls = cls
        self.version = version
        self.flexible = version in table.flexible
        self.prefix = f"{table.name} v{version}: "
        self.out = Source(
            WireError=WireError,
            pack=pack,
            SHORT=SHORT,
            length_prefix=length_prefix,
            text_prefix=text_prefix,
            exactly_16=exactly_16,
            encode_uvarint=encode_uvarint,
        )
        self.run: list[tuple[str, str]] = []
        """Values of constant size that are not written yet: (format, expression); "x" is a zero byte, without one."""

    def compile(self) -> tuple[str, dict[str, object]]:
        out = self.out
        with out.block("def compiled(message, add):"):
            self.structure(self.cls, "message", "", "add")
        return out.text(), out.namespace

    def structure(self, cls: type[Message] | type[Struct], value: str, path: str, add: str) -> None:
        tagged = []
        for name, field in cls.__table__.fields:
            if self.version not in field.versions:
                if not field.ignorable:
                    self.must_be_default(field, f"{value}.{name}", path + name)
            elif self.version in field.tagged:
                tagged.append((field, f"{value}.{name}", path + name))
            else:
                self.value(field, f"{value}.{name}", path + name, add)
        if self.flexible:
            if tagged:
                self.tags(tagged, add)
            else:
                self.run.append(("x", ""))
        self.flush(add)

    def must_be_default(self, field: Field, value: str, path: str) -> None:
        out = self.out
        if field.kind == "array" and field.default == ():
            differs = value
        elif field.default is None:
            differs = f"{value} is not None"
        else:
            differs = self.differs(field, value)
        with out.block(f"if {differs}:"):
            out.line(f"raise WireError({self.prefix + path + ': set, but not part of this version'!r})")

    def differs(self, field: Field, value: str) -> str:
        """Return an expression that is true if `value` is not the field's default."""
        if field.kind == "struct":
            return f"{value} != {self.out.constant('unset', struct_of(field)())}"
        return f"{value} != {self.out.default(field)}"

    def value(self, field: Field, value: str, path: str, add: str) -> None:
        if field.kind == "uuid":
            self.run.append(("16s", f"exactly_16({value})"))
        elif field.kind in FIXED:
            self.run.append((FIXED[field.kind][0], value))
        elif field.kind == "struct":
            self.structure(struct_of(field), value, path + ".", add)
        elif field.kind == "array":
            self.array(field, value, path, add)
        else:
            self.sized(field, value, add)

    def sized(self, field: Field, value: str, add: str) -> None:
        out = self.out
        data, size = out.variable("data"), out.variable("n")
        taken = f"{value}.encode()" if field.kind == "string" else value
        if self.version in field.nullable:
            out.line(f"{data} = {value}")
            with out.block(f"if {data} is None:"):
                out.line(f"{data} = b''")
                out.line(f"{size} = -1")
            with out.block("else:"):
                if field.kind == "string":
                    out.line(f"{data} = {data}.encode()")
                out.line(f"{size} = len({data})")
        else:
            out.line(f"{data} = {taken}")
            out.line(f"{size} = len({data})")
        self.length(field, size, add)
        self.flush(add)
        out.line(f"{add}({data})")

    def array(self, field: Field, value: str, path: str, add: str) -> None:
        out = self.out
        element = field.item
        items, size = out.variable("items"), out.variable("n")
        out.line(f"{items} = {value}")
        if self.version in field.nullable:
            with out.block(f"if {items} is None:"):
                out.line(f"{size} = -1")
                out.line(f"{items} = ()")
            with out.block("else:"):
                out.line(f"{size} = len({items})")
        else:
            out.line(f"{size} = len({items})")
        self.length(field, size, add)
        self.flush(add)
        if element.kind in FIXED and element.kind != "uuid":
            out.line(f"{add}(pack(f'>{{len({items})}}{FIXED[element.kind][0]}', *{items}))")
            return
        item = out.variable("item")
        with out.block(f"for {item} in {items}:"):
            if element.kind == "struct":
                self.structure(struct_of(element), item, path + "[].", add)
            else:
                self.value(element, item, path + "[]", add)
                self.flush(add)

    def length(self, field: Field, size: str, add: str) -> None:
        """Write a length or count (-1 is null) in the version's encoding."""
        if self.flexible:
            self.flush(add)
            prefix = "text_prefix" if field.kind == "string" else "length_prefix"
            self.out.line(f"{add}(SHORT[{size} + 1] if {size} < 127 else {prefix}({size}))")
        else:
            self.run.append(("h" if field.kind == "string" else "i", size))

    def tags(self, tagged: list[tuple[Field, str, str]], add: str) -> None:
        """Write the tagged fields that are not at their default, in the order of their tags."""
        out = self.out
        self.flush(add)
        section, count = out.variable("section"), out.variable("count")
        out.line(f"{section} = []")
        out.line(f"{count} = 0")
        for field, value, path in sorted(tagged, key=lambda entry: entry[0].tag):
            with out.block(f"if {self.differs(field, value)}:"):
                part, blob = out.variable("part"), out.variable("blob")
                out.line(f"{part} = []")
                out.line(f"{part}_add = {part}.append")
                self.value(field, value, path, f"{part}_add")
                self.flush(f"{part}_add")
                out.line(f"{blob} = b''.join({part})")
                out.line(f"{section} += (encode_uvarint({field.tag}), encode_uvarint(len({blob})), {blob})")
                out.line(f"{count} += 1")
        out.line(f"{add}(encode_uvarint({count}) + b''.join({section}))")

    def flush(self, add: str) -> None:
        """Write the pending values of constant size with one call."""
        if not self.run:
            return
        out = self.out
        codes = "".join(code for code, _ in self.run)
        values = ", ".join(value for _, value in self.run if value)
        if values:
            out.line(f"{add}({out.constant('pack', Packing('>' + codes).pack)}({values}))")
        else:
            out.line(f"{add}({bytes(len(codes))!r})")
        self.run.clear()
