"""Options of the public classes, each declared once: signatures, validation and the reference are held to this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Required(Enum):
    """Marks an option without a default."""

    REQUIRED = "required"


REQUIRED = Required.REQUIRED


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    name: the keyword. kind: its type, as the reference shows it. help: its meaning, without its name. default: REQUIRED
    if there is none. unit: of a number, as in "ms". least, most: bounds of a whole number, both included; `least` is
    None for everything else. kafka: its name in Kafka's consumer, if there is one that means the same. spark: likewise
    in Spark's Kafka source.
    """

    name: str
    kind: str
    help: str
    default: object = REQUIRED
    unit: str = ""
    least: int | None = None
    most: int = INT32_MAX
    kafka: str = ""
    spark: str = ""

    def accepts(self, value: object) -> bool:
        """Return True if the value is a whole number within the bounds; always True for an option without bounds."""
        if self.least is None:
            return True
        if value is None:
            return self.default is None
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most

    def but(self, **changes: Any) -> Option:
        """Return the same option with a few things otherwise, for a class where its default differs."""
        return replace(self, **changes)


def by_name(options: Iterable[Option]) -> dict[str, Option]:
    """Return the options by name, in their order.

    Raises:
        ValueError: two have the same name.

    """
    listed = list(options)
    named = {option.name: option for option in listed}
    if len(named) != len(listed):
        raise ValueError("an option is declared twice")
    return named


def markdown_table(options: Iterable[Option]) -> str:
    """Return the options as a Markdown table, for the reference."""
    rows = ["| option | type | default | meaning | in Kafka, Spark |", "|---|---|---|---|---|"]
    for option in options:
        kind = f"{option.kind}, {option.unit}" if option.unit else option.kind
        names = [f"`{option.kafka}`" if option.kafka else "", f"`{option.spark}`" if option.spark else ""]
        default = "" if option.default is REQUIRED else f"`{_shown(option.default)}`"
        rows.append(f"| `{option.name}` | {kind} | {default} | {option.help} | {', '.join(filter(None, names))} |")
    return "\n".join(rows)


def _shown(value: object) -> str:
    return f"{value:,}".replace(",", "_") if isinstance(value, int) and not isinstance(value, bool) else repr(value)
