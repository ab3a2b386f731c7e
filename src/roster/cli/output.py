"""Results for people (tables) and for machines (JSON), both on stdout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WIDE = 200


def print_json(document: Any) -> None:
    """One JSON document, indented, keys in the order given."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Rows under their columns, numbers to the right; `empty` when there are none.

    None is shown as a dash. Piped output is wide enough not to fold, so that other tools can read it.
    """
    lines = [["-" if value is None else value for value in row] for row in rows]
    if not lines:
        click.echo(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        numeric = all(isinstance(line[index], int) or line[index] == "-" for line in lines)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for line in lines:
        table.add_row(*(str(value) for value in line))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)
