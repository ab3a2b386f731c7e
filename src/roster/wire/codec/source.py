"""Builder of Python source, with the globals that the source uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from roster.wire.codec.fields import Field


class Source:
    """Lines with the current indentation; variables and constants get unique names."""

    def __init__(self, **namespace: Any) -> None:
        self.namespace: dict[str, Any] = namespace
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Add a line at the current indentation."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head` and indent what follows; an empty block gets a `pass`."""
        self.line(head)
        self._depth += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.line("pass")
        self._depth -= 1

    def variable(self, stem: str) -> str:
        """Return a new name."""
        self._names += 1
        return f"{stem}_{self._names}"

    def constant(self, stem: str, value: object) -> str:
        """Return the name of a global with `value`; the same object always gets the same name."""
        for name, known in self.namespace.items():
            if known is value:
                return name
        name = self.variable(stem)
        self.namespace[name] = value
        return name

    def default(self, field: Field) -> str:
        """Return an expression for a new default value of `field`."""
        if field.kind == "array" and field.default == ():
            return "[]"
        if field.kind == "struct" and field.default == ():
            return f"{self.constant('Nested', field.struct)}()"
        return repr(field.default)

    def text(self) -> str:
        """Return the whole source."""
        return "\n".join(self._lines) + "\n"
