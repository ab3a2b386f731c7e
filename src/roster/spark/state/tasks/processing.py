"""One batch at one store, on an executor: catch up with the changelog, apply the operator, keep the changes pending."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from roster._clock import wall_ms
from roster.model import TopicPartition
from roster.spark.errors import SinkFencedError
from roster.state.changelog import restore
from roster.state.definition import STATE_KEY, Definition, Noted
from roster.state.event_time import with_entries
from roster.state.pending import Pending
from roster.state.processor.variables import REGISTRY_KEY, decode_registry
from roster.state.store import Position, Snapshot, Store, StoreDamagedError, StoreInUseError, ValueDamagedError
from roster.state.store_files import directory_name, state_directory

if TYPE_CHECKING:
    from roster.state.aggregate import Layout, Update
    from roster.state.lmdb_store import LmdbStore

log = logging.getLogger(__name__)

T = TypeVar("T")
Fetch: TypeAlias = Callable[[TopicPartition, int, int], Iterable[pa.RecordBatch]]
"""Reads the committed records of a partition from one offset up to before another."""


class Operator(Protocol):
    """A stateful operator: rows and state in, results and changes out; can be pickled."""

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns of the results that form the record key."""

    @property
    def kept(self) -> Mapping[str, Any]:
        """The operator's name, and the arguments that define the state's entries; for JSON."""

    def key_columns(self, columns: pa.Schema, /) -> pa.Schema:
        """Return the columns of the state's keys, for rows of these columns."""

    def layout(self, columns: pa.Schema, /) -> Layout | None:
        """Return the layout of the state's values; None: a value is the time of the key's first row."""

    def __call__(self, table: pa.Table, store: Store | Snapshot, /) -> Update:
        """Compute results and changes of a batch's rows from the state before the batch; write nothing."""


_PATIENCE = 2.0
"""Seconds to wait for a store that another process holds: cancelled tasks and work on copies release it sooner."""
_MOST_COPIES = 8
_OFFSETS_PER_TRANSACTION = 1_000_000
"""Most changelog offsets to apply in one transaction of the store."""
_LARGE = 1 << 16
"""Bytes of a change below which no broker is thought to refuse it."""
_FEWEST_OFFSETS = 20_000
"""Least changelog offsets to apply in one go."""
LONGEST_BEHIND = 43_200.0
"""Seconds after which a store that is behind is rebuilt: compaction may have dropped tombstones that it never saw."""


class StoreTarget(NamedTuple):
    """The state that a task's store must have before a batch, as determined by the driver."""

    changelog: TopicPartition
    begin: int
    """First offset of the changelog partition."""
    end: int
    """Offset at which the state before the batch ends."""
    inputs: Mapping[str, int]
    """Next offset of each input topic that the state covers."""
    token: str | None
    """Token of the last committed attempt, if this application made it and has owned the task since; else None."""
    is_replay: bool = False
    """True if the sink has the results already and only the state lacks them."""


class Report(NamedTuple):
    """A task's report to the driver about one store.

    It has the attempt's token, changelog records and bytes restored, late rows, seconds until the state's next
    processing-time timer is due (None without one), and the largest change if a broker may find it too large.
    """

    token: str
    restored: int = 0
    restored_bytes: int = 0
    late: int = 0
    timer: float | None = None
    large: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host keeps the stores of one changelog topic.

    directory: None for `roster-state` in the host's directory of temporary files. topic_id: a topic recreated under the
    same name has other stores.
    """

    directory: str | None
    changelog: str
    topic_id: str

    @property
    def root(self) -> Path:
        """The directory on this host with all stores of the topic."""
        return state_directory(self.directory) / directory_name(self.changelog) / self.topic_id

    def path(self, task: str) -> Path:
        """Return the directory of a task's store on this host."""
        return self.root / task

    def copies(self, task: str) -> list[Path]:
        """Return the directories that a task's store may be in on this host, the usual one first."""
        path = self.path(task)
        return [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, _MOST_COPIES))]

    def open(self, task: str) -> LmdbStore:
        """Open the task's store for writing, or another copy if a hanging process holds it.

        Raises StoreInUseError if all copies are in use, and the errors of opening a store.
        """
        from roster.state.lmdb_store import LmdbStore  # noqa: PLC0415 - needs an extra that others do not

        until, copies = time.monotonic() + _PATIENCE, self.copies(task)
        while True:
            try:
                return LmdbStore(copies[0])
            except StoreInUseError:
                if time.monotonic() < until:
                    time.sleep(0.05)
                elif len(copies) > 1:
                    log.warning("store %s: another process has it; going on with another copy", copies.pop(0))
                else:
                    raise


def on_sound(store: LmdbStore, work: Callable[[], T]) -> T:
    """Return the result of `work` on a store; a damaged store is recreated, and the work repeated."""
    try:
        return work()
    except StoreDamagedError as error:
        store.discard(error.reason)
    except ValueDamagedError as error:
        store.discard(str(error))
    return work()


def combined(reports: Sequence[Report]) -> Report:
    """Return the reports of a task's stores, which have one token, as one."""
    timers = [report.timer for report in reports if report.timer is not None]
    return Report(
        reports[0].token,
        sum(report.restored for report in reports),
        sum(report.restored_bytes for report in reports),
        sum(report.late for report in reports),
        min(timers, default=None),
        next((report.large for report in reports if report.large), ""),
    )


def process_batch(
    store: LmdbStore,
    target: StoreTarget,
    operator: Operator,
    definition: Definition,
    rows: pa.Table,
    inputs: dict[str, int],
    fetch: Fetch,
    token: str | None = None,
) -> tuple[Update, Report]:
    """Return the results and changes of a batch's rows; the store keeps the changes pending under the report's token.

    definition: of the operator's state. inputs: next offset of each input topic after the batch. token: of the attempt,
    one for all stores of the task; None: a new one. Raises SinkFencedError if the batch does not begin where the state
    ends, OtherDefinitionError before the operator is called, StateError, and errors of `operator` and `fetch`.
    """
    applied = catch_up(store, target, fetch)
    with store.snapshot() as snapshot:
        noted = Noted.of(snapshot)
        if noted is not None:
            definition.check(noted.definition)
        before = {} if noted is None else noted.inputs
        if any(before.get(topic, start) != start for topic, start in target.inputs.items()):
            raise SinkFencedError(
                f"{target.changelog}: the state up to offset {target.end} is that of {dict(before)}, "
                f"and the batch begins at {dict(target.inputs)}"
            )
        inputs = {**before, **inputs}
        update = operator(rows, snapshot)
        said = _said(snapshot, update.changes, Noted(definition, inputs))
    update = replace(update, changes=with_entries(update.changes, list(said), list(said.values())))
    token = token or new_token()
    keys, values = (update.changes[name].to_pylist() for name in ("key", "value"))
    store.stage(Pending(token, keys, values, Position(target.end, inputs)))
    timer = None if update.timer_in_ms is None else update.timer_in_ms / 1000
    large = large_change(target.changelog.topic, update.changes)
    return update, Report(token, applied.records, applied.bytes, update.late, timer, large)


def large_change(changelog: str, changes: pa.Table) -> str:
    """Name the largest change if a broker may find it too large for a record, else return ""."""
    sizes = pc.binary_length(changes["value"])
    size = pc.max(sizes).as_py() or 0
    if size < _LARGE:
        return ""
    values = dict(zip(changes["key"].to_pylist(), changes["value"].to_pylist(), strict=True))
    key = changes["key"][pc.index(sizes, size).as_py()].as_py()
    variables = decode_registry(values.get(REGISTRY_KEY))
    named = [f"the {entry.kind} {name!r}" for name, entry in variables.items() if entry.number == key[0]]
    return f"{(named or ['the state'])[0]} of one key has {size} bytes in one record of its changelog {changelog!r}"


def _said(snapshot: Snapshot, changes: pa.Table, noted: Noted) -> dict[bytes, bytes | None]:
    """Return the entries that define the others; they come last in each batch, where the driver looks for them."""
    said: dict[bytes, bytes | None] = {STATE_KEY: noted.encode()}
    if not noted.definition.has_variables or pc.is_in(pa.scalar(REGISTRY_KEY), changes["key"]).as_py():
        return said
    (registry,) = snapshot.multi_get([REGISTRY_KEY])
    return {REGISTRY_KEY: registry} | said


def new_token() -> str:
    """Return a name for an attempt."""
    return uuid.uuid4().hex


class Applied(NamedTuple):
    """Result of `catch_up`: the store's changelog offset, records and bytes applied."""

    position: int
    records: int = 0
    bytes: int = 0


def catch_up(store: LmdbStore, target: StoreTarget, fetch: Fetch, until: float = float("inf")) -> Applied:
    """Bring the store's values up to the target's end: for restoring, standby copies and commits alike.

    The pending batch is applied if the target's token names it: that is how a batch is committed. The rest is read from
    the changelog. until: monotonic seconds at which to stop, after at least one record batch, or where records are
    aborted after as many offsets as there seemed to be time for; the store's position says how far it came.
    """
    if store.settle(target.token, Position(target.end, target.inputs)):
        return Applied(target.end)
    position = store.position()
    is_old = position.changelog < target.end and 0 < store.written_at < wall_ms() / 1000 - LONGEST_BEHIND
    if is_old or not target.begin <= position.changelog <= target.end:
        # A log that begins later has lost records that the store lacks; one that ends earlier is another log.
        store.clear()
        position = Position(target.begin)
        store.commit([], [], position)
    size = records = 0
    began, at = time.monotonic(), position.changelog

    def batches(upto: int) -> Iterable[pa.RecordBatch]:
        nonlocal size
        for batch in fetch(target.changelog, at, upto):
            size += batch.nbytes
            yield batch

    while at < target.end:
        # In slices: after a cancellation the next task continues from the last one.
        now = time.monotonic()
        upto = min(target.end, at + _offsets_in(until - now, at - position.changelog, now - began))
        records += restore(store, batches(upto), upto, inputs={}, is_over=lambda: time.monotonic() >= until)
        at = store.position().changelog
        if time.monotonic() >= until:
            break
    if at == target.end and store.position().inputs != target.inputs:
        store.commit([], [], Position(at, target.inputs))
    if records:
        log.info(
            "store %s: restored %d changelog records from %d to %d in %.1f s",
            *(target.changelog, records, position.changelog, at, time.monotonic() - began),
        )
    return Applied(at, records, size)


def _offsets_in(seconds: float, passed: int, spent: float) -> int:
    """Return the size of the next slice in offsets, from the offsets passed and the seconds spent so far.

    Aborted records yield no batches between which to check the time, so the slice itself must fit the time.
    """
    if seconds == float("inf"):
        return _OFFSETS_PER_TRANSACTION
    rate = passed / spent if spent > 0 else 0.0
    return int(min(max(seconds * rate, _FEWEST_OFFSETS), _OFFSETS_PER_TRANSACTION))
