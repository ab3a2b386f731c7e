"""Reads of the state that a running application has on its driver's host: by key, by range, by prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from roster.spark.errors import PipelineError
from roster.spark.state.turn import Place
from roster.spark.state.upkeep import Upkeep
from roster.state.definition import Definition, Entries
from roster.state.keys import encode_keys
from roster.state.store import Snapshot, StateError, StoreMissingError

Row = dict[str, Any]


class StateView:
    """The state of the tasks that this application runs, as of their last committed batch; from any thread.

    Rows have the columns of the keys and the results, as `roster state scan` prints them. With `stale=True` standby
    copies are read too, and tasks that are being restored; `behind` says how far they are from the truth. Several reads
    are of several moments. What other applications run is not seen.

    Each method raises PipelineError for values that do not fit the key's columns, and StateError for a store that
    cannot be read.
    """

    def __init__(
        self, place: Place, definition: Definition, upkeep: Upkeep, token: Callable[[int], str | None]
    ) -> None:
        """`token` returns that of a partition's last committed batch, None if it is not known."""
        self._place, self._keys, self._upkeep, self._token = place, definition.keys, upkeep, token
        self._entries = Entries.of_definition(definition)

    @property
    def tasks(self) -> frozenset[str]:
        """The tasks that are read without `stale`, as in "0_3"."""
        return frozenset(map(str, self._upkeep.whole()))

    @property
    def behind(self) -> dict[str, int]:
        """Changelog offsets that each of the other tasks here was behind when it was looked at last."""
        return {str(task): gap for task, gap in self._upkeep.behind().items()}

    def get(self, *key: Any, stale: bool = False) -> Row | None:
        """Return the row of a key, given as a value for each key column; None if no task here has it."""
        wanted = self._encoded(key, whole=True)
        for snapshot, changed in self._snapshots(stale=stale):
            value = changed[wanted] if wanted in changed else snapshot.multi_get([wanted])[0]
            if value is not None:
                rows = self._entries.rows([(wanted, value)])
                if len(rows) > 1:
                    raise PipelineError(f"the key has {len(rows)} rows", field="get", fix="Use prefix")
                return rows[0]
        return None

    def prefix(self, *values: Any, stale: bool = False, limit: int | None = None) -> list[Row]:
        """Return the rows whose first key columns have these values, by key, from at most `limit` keys."""
        start = self._encoded(values)
        return self._scan(start, _behind_prefix(start), stale=stale, limit=limit)

    def range(
        self, start: Sequence[Any] = (), stop: Sequence[Any] = (), *, stale: bool = False, limit: int | None = None
    ) -> list[Row]:
        """Return the rows from the key `start` up to before `stop`, in the order of keys, from at most `limit` keys.

        Each is a sequence of values for the first key columns; an empty one is no bound.
        """
        return self._scan(self._encoded(start), self._encoded(stop) or None, stale=stale, limit=limit)

    def _scan(self, start: bytes, stop: bytes | None, *, stale: bool, limit: int | None) -> list[Row]:
        found: dict[bytes, bytes] = {}
        for snapshot, changed in self._snapshots(stale=stale):
            more = None if limit is None else limit + len(changed)
            found |= snapshot.scan(start, stop, more)
            for key, value in changed.items():
                if key >= start and (stop is None or key < stop):
                    found.pop(key, None)
                    found |= {} if value is None else {key: value}
        return self._entries.rows(sorted(found.items())[:limit])

    def _snapshots(self, *, stale: bool) -> Iterator[tuple[Snapshot, dict[bytes, bytes | None]]]:
        """Yield each task's store, with the changes of its last committed batch that are not applied yet."""
        from roster.state.lmdb_store import LmdbStore  # noqa: PLC0415 - needs an extra that others do not

        whole = self._upkeep.whole()
        for task in sorted(whole | self._upkeep.behind().keys() if stale else whole):
            try:
                store = LmdbStore(self._place.path(str(task)), read_only=True)
            except StoreMissingError:
                continue  # it has had no batch yet
            with store, store.snapshot() as snapshot:
                pending = snapshot.pending()
                is_committed = pending is not None and pending.token == self._token(task.partition)
                yield snapshot, dict(zip(pending.keys, pending.values, strict=True)) if pending and is_committed else {}

    def _encoded(self, values: Sequence[Any], *, whole: bool = False) -> bytes:
        names = self._keys.names
        if len(values) > len(names) or (whole and len(values) < len(names)):
            raise PipelineError(f"{len(values)} values given", field="key", fix=f"The columns are {', '.join(names)}")
        if not values:
            return b""
        try:
            columns = [
                pa.array([value], self._keys.field(name).type) for value, name in zip(values, names, strict=False)
            ]
            (key,) = encode_keys(pa.table(columns, names[: len(values)]), names[: len(values)]).to_pylist()
        except (pa.ArrowException, TypeError, ValueError, StateError) as error:
            raise PipelineError(f"{values!r} does not fit: {error}", field="key") from None
        return bytes(key)


def _behind_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all that begin with the prefix; None if there is none."""
    plain = prefix.rstrip(b"\xff")
    return plain[:-1] + bytes([plain[-1] + 1]) if plain else None


def view_of(name: str, known: tuple[str, StateView] | None, master: str) -> StateView:
    """Return the view of the store with this name. Raise PipelineError if it cannot be read here, with the way out."""
    if known is None:
        raise PipelineError("no stateful pipeline is running", field="store", fix="Call start() first")
    if known[0] != name:
        raise PipelineError(f"there is no store {name!r}", field="store", fix=f"The pipeline has {known[0]!r}")
    if not master.startswith("local"):
        raise PipelineError(
            f"the stores lie on the executors' hosts, of which the driver reads none ({master})",
            field="store",
            fix="Use `roster state` there, or a local master",
        )
    return known[1]
