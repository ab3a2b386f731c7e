"""Results for people (tables) and for machines (JSON), both on stdout."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, islice

import click
from rich.cells import cell_len, set_cell_size

from roster.console.text import escaped

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SAMPLE = 1000
"""Rows that decide how wide the columns are; all others are printed as they come."""
_GAP = "  "
_NARROW = 8
"""A column that may be shortened keeps this many cells."""
_PROSE = 24
"""Text in the last column is folded under itself where it has this many cells, else left to the terminal."""


def print_json(document: object) -> None:
    """Print a JSON document, indented, keys in the order given."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_json_line(document: object) -> None:
    """Print a JSON document on a line, at once."""
    click.echo(json.dumps(document, ensure_ascii=False))


def print_found(
    as_json: bool,
    documents: Iterable[object],
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty: str,
    *,
    shorten: Collection[str] = (),
) -> None:
    """Print what was found, as a JSON array of documents or as a table of rows; only one of the two is read."""
    if as_json:
        print_json(list(documents))
    else:
        print_table(columns, rows, empty, shorten=shorten)


def utc(moment_ms: float, timespec: str = "milliseconds") -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; beyond the year 9999 the number itself."""
    try:
        return (EPOCH + timedelta(milliseconds=moment_ms)).isoformat(timespec=timespec).replace("+00:00", "Z")
    except OverflowError:
        return str(moment_ms)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str, *, shorten: Collection[str] = ()
) -> None:
    """Print rows under their columns, one line each, numbers to the right; `empty` if there are none.

    None is shown as a dash. A terminal that is too narrow gets the columns in `shorten` cut with an ellipsis, and text
    in the last column folded; numbers are never cut. Piped output is neither, so that other tools can read it.
    """
    every = iter(rows)
    sample = list(islice(every, _SAMPLE))
    if not sample:
        click.echo(empty)
        return
    numeric = [all(isinstance(row[i], int) or row[i] is None for row in sample) for i in range(len(columns))]
    first = [[_text(value) for value in row] for row in sample]
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *first, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    cut = {i for i, name in enumerate(columns) if name in shorten}
    if room is not None:
        _shrink(widths, cut, room)
    layout = _Layout(widths, numeric, cut if room is not None else set(), room)
    click.echo(click.style("\n".join(layout.lines(columns)), bold=True))
    every_row = chain(first, ([_text(value) for value in row] for row in every))
    sys.stdout.writelines(f"{line}\n" for row in every_row for line in layout.lines(row))


def drop_stdout() -> None:
    """Discard further output: the reader of the pipe has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _text(value: object) -> str:
    return "-" if value is None else escaped(str(value))


def _shrink(widths: list[int], cut: Collection[int], room: int) -> None:
    """Take from the widest of the columns that may be cut until the table fits, or they are all narrow."""
    while sum(widths) + len(_GAP) * (len(widths) - 1) > room:
        widest = max((i for i in cut if widths[i] > _NARROW), key=widths.__getitem__, default=None)
        if widest is None:
            return
        widths[widest] -= 1


class _Layout:
    """Layout of a row; `room` is the terminal's width, None for a pipe."""

    def __init__(self, widths: list[int], numeric: list[bool], cut: Collection[int], room: int | None) -> None:
        self._widths, self._numeric, self._cut = widths, numeric, cut
        last = len(widths) - 1
        self._indent = sum(widths[:-1]) + len(_GAP) * last
        foldable = room is not None and not numeric[last] and last not in cut
        self._fold = room - self._indent if foldable and room is not None else 0

    def lines(self, row: Sequence[str]) -> list[str]:
        """The row as one line, or several where the text in its last column is folded."""
        *head, last = (self._cell(i, text) for i, text in enumerate(row))
        if self._fold < _PROSE or cell_len(last.rstrip()) <= self._fold:
            return [_GAP.join([*head, last]).rstrip()]
        folded = textwrap.wrap(last, self._fold, break_on_hyphens=False)
        return [_GAP.join([*head, folded[0]]), *(" " * self._indent + more for more in folded[1:])]

    def _cell(self, column: int, text: str) -> str:
        width = self._widths[column]
        size = len(text) if text.isascii() else cell_len(text)
        if size > width and column in self._cut:
            return set_cell_size(text, width - 1) + "…"
        padding = " " * (width - size)
        return padding + text if self._numeric[column] else text + padding
