"""`roster state`: the stores of stateful pipelines on this machine."""

import contextlib
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pyarrow as pa

from roster._json import JsonObject
from roster.cli.errors import Failure, UserError
from roster.cli.options import json_option
from roster.cli.output import print_found
from roster.cli.state_files import export, import_, repartition
from roster.cli.state_reset import reset
from roster.state import StateError
from roster.state.definition import Noted, OtherDefinitionError, entries_of, json_text
from roster.state.entries import Entries, QueryError, Span
from roster.state.file_store import TaskStore
from roster.stateful.tasks.store_location import open_for_reading

_UNFIT = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error, pa.ArrowException)
"""Errors of decoding bytes of another format."""

DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def state() -> None:
    """Look into stores of stateful pipelines on this machine; save and change a group's state.

    A store is a copy of its changelog up to an offset: what a pipeline committed last may not be in it yet.
    """


state.add_command(reset)
state.add_command(export)
state.add_command(import_)
state.add_command(repartition)


@state.command(short_help="List stores with their positions and sizes.")
@click.argument("directory", type=DIRECTORY)
@json_option
def describe(directory: Path, as_json: bool) -> None:
    """List the stores below DIRECTORY, which is a pipeline's state_dir or a part of it."""
    stores = [_described(path.parent) for path in sorted(directory.rglob("store.json"))]
    columns = ("changelog", "task", "operator", "offset", "input offsets", "entries", "bytes", "written", "store")
    rows = ([_cell(store, column) for column in columns] for store in stores)
    print_found(as_json, stores, columns, rows, "no stores", shorten=("changelog", "store"))


def _cell(described: JsonObject, column: str) -> object:
    if column == "operator":
        return described["definition"].get("operator", "-")
    if column == "input offsets":
        return ", ".join(f"{topic} {offset}" for topic, offset in described["inputs"].items())
    return described[column]


def _described(path: Path) -> JsonObject:
    with _store(path) as store:
        position, size = (
            store.position(),
            sum(file.stat().st_size for file in (path / "data").iterdir() if file.is_file()),
        )
        written = datetime.fromtimestamp(store.written_at, UTC).isoformat(timespec="seconds")
        return {
            "changelog": path.parent.parent.name,
            "task": path.name,
            "definition": _definition(store),
            "offset": position.changelog,
            "inputs": dict(position.inputs),
            "entries": store.count(),
            "bytes": size,
            "written": written,
            "store": str(path),
        }


def _definition(store: TaskStore) -> JsonObject:
    """Return a store's definition, or why it cannot be read; nothing for an empty store."""
    try:
        record = Noted.of(store)
    except OtherDefinitionError as error:
        return {"problem": str(error)}
    return {} if record is None else dict(record.definition.document)


_variable = click.option("--variable", help="Of a processor's store: this variable only.")
_side = click.option("--side", help="Of a join's store: left or right only.")


@state.command(short_help="Print entries of a store as JSON lines.")
@click.argument("store", type=DIRECTORY)
@click.option("--limit", type=click.IntRange(min=1), help="At most so many entries.")
@_variable
@_side
def scan(store: Path, limit: int | None, variable: str | None, side: str | None) -> None:
    """Print the entries of one STORE, in the order of their keys, one JSON object a row."""
    with _store(store) as opened:
        entries = entries_of(opened)
        _print(entries, opened, Span(limit=limit, part=entries.part_of(variable, side)))


@state.command(short_help="Print the entries of a key.")
@click.argument("store", type=DIRECTORY)
@click.argument("key", nargs=-1, required=True)
@_variable
@_side
def get(store: Path, key: tuple[str, ...], variable: str | None, side: str | None) -> None:
    """Print the entries of a KEY in one STORE as JSON: the value of each key column, in their order."""
    with _store(store) as opened:
        entries = entries_of(opened)
        try:
            wanted = entries.key_of(key)
        except (StateError, ValueError) as error:
            raise UserError(f"KEY: {error}") from None
        span = Span(wanted, is_key=True, part=entries.part_of(variable, side))
        if not _print(entries, opened, span):
            raise Failure(f"{store}: no entry of {' '.join(key)}")


@contextlib.contextmanager
def _store(path: Path) -> Iterator[TaskStore]:
    """Open a store for reading, beside a pipeline that writes it."""
    try:
        with open_for_reading(path) as store:
            yield store
    except QueryError as error:
        raise UserError(f"--{error}") from None
    except OtherDefinitionError as error:
        raise Failure(f"{path}: {error}") from None
    except StateError as error:
        raise Failure(str(error)) from None
    except _UNFIT as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise Failure(f"{path}: an entry does not fit what the store says of it ({reason})") from None


def _print(entries: Entries, store: TaskStore, span: Span) -> bool:
    """Print rows; return False if there are none."""
    with store.snapshot() as snapshot:
        read = entries.read(snapshot, span)
    entries.check([read], span.part)
    rows = entries.rows([read])
    for row in rows:
        click.echo(json_text(row))
    return bool(rows)
