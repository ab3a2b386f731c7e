"""One batch at one store, on an executor: catch up with the changelog, apply the operator, keep the changes pending."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.batch import StoreProgress
from roster.pipeline.errors import FunctionError, SinkFencedError
from roster.state.aggregate import Aggregation, Update
from roster.state.definition import STATE_KEY, Definition, Document, Noted
from roster.state.event_time import NEVER, STREAM_TIME_KEY, idle_changes, stream_time_after, with_entries
from roster.state.evolution import Evolved, evolution
from roster.state.pending import Pending, WithChanges
from roster.state.processor.overlay import end_of
from roster.state.processor.timers import BY_TIME
from roster.state.processor.variables import REGISTRY_KEY, decode_registry
from roster.state.source_times import NOTICE, without_notices
from roster.state.store import Position, Snapshot, Value
from roster.state.stream_join import TIME_KEYS, has_rows
from roster.state.table_evolution import Changed
from roster.stateful.tasks.catch_up import Applied, Fetch, StoreTarget, catch_up
from roster.stateful.tasks.relay import OPERATOR as RELAY

if TYPE_CHECKING:
    from roster.state.aggregate import Layout
    from roster.state.file_store import TaskStore

log = logging.getLogger("roster.spark")

_LARGE = 1 << 16
"""Bytes of a change below which no broker is thought to refuse it."""


class Operator(Protocol):
    """A stateful operator: rows and state in, results and changes out; can be pickled."""

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns of the results that form the record key."""

    @property
    def kept(self) -> Document:
        """The operator's name, and the arguments that define the state's entries; for JSON."""

    def key_columns(self, columns: pa.Schema, /) -> pa.Schema:
        """Return the columns of the state's keys, for rows of these columns."""

    def layout(self, columns: pa.Schema, /) -> Layout | None:
        """Return the layout of the state's values; None: a value is the time of the key's first row."""

    def __call__(self, table: pa.Table, store: Snapshot, /) -> Update:
        """Compute results and changes of a batch's rows from the state before the batch; write nothing."""


Applies: TypeAlias = Callable[[pa.Table, Snapshot], "Update"]
"""What an operator does with a batch."""
Processing: TypeAlias = "Generator[Snapshot, Update, tuple[Update, Report]]"
"""A batch at one store, which waits for what the operator does with its rows."""


class Report(NamedTuple):
    """A task's report to the driver.

    It has the attempt's token, seconds until the state's next processing-time timer is due (None without one), the
    largest change if a broker may find it too large, the progress of each store, and whether it got notices alone.
    """

    token: str
    timer: float | None = None
    large: str = ""
    stores: tuple[StoreProgress, ...] = ()
    is_notice: bool = False

    def time_ms(self, *, has_sides: bool) -> int | None:
        """Return the time of the last store's operator, of a join that of the side that is behind; None: unknown."""
        store = self.stores[-1]
        if has_sides and (store.stream_time_ms is None or store.other_time_ms is None):
            return None
        return min((each for each in (store.stream_time_ms, store.other_time_ms) if each is not None), default=None)


def combined(reports: Sequence[Report]) -> Report:
    """Return the reports of a task's stores, which have one token, as one."""
    timers = [report.timer for report in reports if report.timer is not None]
    return Report(
        reports[0].token,
        min(timers, default=None),
        next((report.large for report in reports if report.large), ""),
        tuple(store for report in reports for store in report.stores),
        reports[0].is_notice,
    )


def process_batch(
    store: TaskStore,
    target: StoreTarget,
    operator: Applies,
    definition: Definition,
    rows: pa.Table,
    inputs: dict[str, int],
    fetch: Fetch,
    token: str | None = None,
    waiting: tuple[bytes, bytes] | None = None,
) -> tuple[Update, Report]:
    """Return the results and changes of a batch's rows; the store keeps the changes pending under the report's token.

    The arguments but `operator` are those of `processing`. Raises as it does, FunctionError for too many bytes, and
    errors of `operator`.
    """
    with contextlib.closing(processing(store, target, definition, rows, inputs, fetch, token, waiting)) as batch:
        (done,) = process_batches([batch], operator, [rows])
        return done


def process_batches(
    batches: Sequence[Processing], operator: Applies, tables: Sequence[pa.Table]
) -> list[tuple[Update, Report]]:
    """Return the results and changes of batches that are processed at the same time, given the rows of each."""
    states, updates = [next(batch) for batch in batches], list[Update]()
    if len(batches) > 1 and isinstance(operator, Aggregation):
        with _raised_in(batches[0]):
            updates = operator.each(tables, states)
    for batch, rows, state in zip(batches, tables, states, strict=True) if not updates else ():
        with _raised_in(batch):
            updates.append(_applied(operator, rows, state))
    return [_finished(batch, update) for batch, update in zip(batches, updates, strict=True)]


def _applied(operator: Applies, rows: pa.Table, store: Snapshot) -> Update:
    """Return the results and changes of rows. Raises FunctionError for too many bytes, and errors of `operator`."""
    try:
        return operator(rows, store)
    except pa.ArrowInvalid as error:
        if "offset overflow" not in str(error):
            raise
        problem = "lower it: a task's rows in one batch have more than 2 GiB of values in one column"
        raise FunctionError(problem, field="max_offsets_per_batch") from error


@contextlib.contextmanager
def _raised_in(batch: Processing) -> Iterator[None]:
    """Raise errors of reading a state that `processing` has yielded as the store's."""
    try:
        yield
    except Exception as error:
        batch.throw(error)


def _finished(batch: Processing, update: Update) -> tuple[Update, Report]:
    """Give an operator's results and changes to `processing`, and return what it returns."""
    try:
        batch.send(update)
    except StopIteration as end:
        done: tuple[Update, Report] = end.value
        return done
    raise AssertionError("it ends with the results")


def processing(
    store: TaskStore,
    target: StoreTarget,
    definition: Definition,
    rows: pa.Table,
    inputs: dict[str, int],
    fetch: Fetch,
    token: str | None = None,
    waiting: tuple[bytes, bytes] | None = None,
) -> Processing:
    """Yield the state before a batch, for the operator's results and changes; keep the changes and return both.

    definition: of the operator's state; entries of an earlier one become entries of this one, if they can. inputs: next
    offset of each input topic after the batch. token: of the attempt, one for all stores of the task; None: a new one.
    waiting: the span of entries for results that are held back.
    Raises SinkFencedError if the batch does not begin where the state ends, OtherDefinitionError before the state is
    yielded, StateError, and errors of `fetch`.
    """
    began = time.monotonic()
    kept = store.kept if store.kept is not None and store.kept.token == target.token else None
    applied = Applied(target.end) if kept is not None else catch_up(store, target, fetch)
    restore_ms = round((time.monotonic() - began) * 1000) if applied.records else 0
    with store.snapshot() as stored:
        # What this process has kept of the batch before is written together with this one.
        snapshot: Snapshot = stored if kept is None else WithChanges(stored, kept.changes())
        noted = Noted.of(snapshot)
        (registry,) = (
            snapshot.multi_get([REGISTRY_KEY]) if definition.functions and definition.has_variables else [None]
        )
        evolved = None if noted is None else evolution(definition, noted, registry)
        before = {} if noted is None else noted.inputs
        is_relay = definition.document["operator"] == RELAY  # an earlier release may have worked without its store
        if not is_relay and any(before.get(topic, start) != start for topic, start in target.inputs.items()):
            raise SinkFencedError(
                f"{target.changelog}: the state up to offset {target.end} is that of {dict(before)}, "
                f"and the batch begins at {dict(target.inputs)}"
            )
        inputs = {**before, **inputs}
        seen = None if evolved is None else evolved.seen(snapshot)
        time_keys = (STREAM_TIME_KEY,) if definition.sides is None else TIME_KEYS
        idle = _idle_changes(snapshot, definition, target, rows) if seen is None and target.idle_until else {}
        before_it = WithChanges(snapshot, idle) if idle else snapshot if seen is None else seen
        update = yield before_it
        if seen is not None:
            update = replace(update, changes=_rewritten(store, seen, update.changes))
        if idle:
            update = replace(update, changes=with_entries(update.changes, list(idle), list(idle.values())))
        noted = Noted(definition, inputs) if noted is None else noted.followed_by(definition, inputs)
        defining = _defining_entries(snapshot if seen is None else seen, update.changes, noted)
        is_timed = store.is_ordered or NOTICE in rows.column_names
        times = [stream_time_after(snapshot, update.changes, key) if is_timed else NEVER for key in time_keys]
        update = with_time(update, times, snapshot if seen is None else seen, waiting)
    changed = len(update.changes)
    update = replace(update, changes=with_entries(update.changes, list(defining), list(defining.values())))
    token = token or new_token()
    pending = Pending(token, update.changes["key"], update.changes["value"], Position(target.end, inputs))
    sizes = store.keep(pending, None if kept is None else Position(target.end, target.inputs))
    times_ms = [None if time == NEVER else time // 1000 for time in times]
    progress = StoreProgress(*sizes, changed, update.late, times_ms[0], *applied[1:], restore_ms)._replace(
        other_time_ms=times_ms[-1] if len(times) > 1 else None,
        late_behind_ms=update.lateness.behind,
        late_sources={str(source): rows for source, rows in update.lateness.sources.items()},
        held_by=None if update.held_by is None else str(update.held_by or ""),
        held_ms=update.held_ms,
        file_bytes=store.file_bytes,
    )
    timer = None if update.timer_in_ms is None else update.timer_in_ms / 1000
    large = large_change(target.changelog.topic, update.changes)
    return update, Report(token, timer, large, (progress,), is_notice=len(rows) > 0 and not len(without_notices(rows)))


def _idle_changes(store: Snapshot, definition: Definition, target: StoreTarget, rows: pa.Table) -> dict[bytes, Value]:
    """Return the stream times of an idle task, or of the side of a join without rows, if something waits for them.

    Rows of the other side may be kept, and wait from this batch on.
    """
    rows = without_notices(rows)
    span = (BY_TIME, end_of(BY_TIME)) if definition.has_variables else (b"", STREAM_TIME_KEY[:1])
    if not len(rows) and not store.scan(*span, limit=1):
        return {}
    keys, read = ((STREAM_TIME_KEY,), (len(rows) > 0,)) if definition.sides is None else (TIME_KEYS, has_rows(rows))
    given = zip(keys, target.idle_until, read, strict=True)
    return idle_changes(store, {key: at for key, at, is_read in given if at is not None and not is_read})


def with_time(update: Update, times: Sequence[int], before: Snapshot, waiting: tuple[bytes, bytes] | None) -> Update:
    """Return an update with what operators behind it go by. times: after the batch. waiting: as for `process_batch`."""
    return replace(update, now=min(times), waits=waiting is not None and is_left(before, update.changes, *waiting))


def is_left(store: Snapshot, changes: pa.Table, start: bytes, stop: bytes) -> bool:
    """Return whether a store has entries of this span once changes are made."""
    keys = changes["key"].cast(pa.binary())
    within = changes.filter(pc.and_(pc.greater_equal(keys, start), pc.less(keys, stop)))
    if within["value"].null_count < len(within):
        return True
    removed = {*within["key"].to_pylist()}
    return any(key not in removed for key, _ in store.scan(start, stop, len(removed) + 1))


def _rewritten(store: TaskStore, seen: Evolved | Changed, changes: pa.Table) -> pa.Table:
    """Return all entries of a store under its new definition, with the changes of the batch.

    The definition record is removed first: a copy that has only a part of the changes has no definition.
    """
    began, changed = time.monotonic(), set(changes["key"].to_pylist())
    entries = seen.rewritten(changed)
    log.info(
        "store %s: changed %d entries to its new definition in %.1f s",
        *(store.path, len(entries), time.monotonic() - began),
    )
    unsaid = with_entries(entries.slice(0, 0), [STATE_KEY], [None])
    return pa.concat_tables([unsaid, entries, changes.cast(entries.schema)])


def large_change(changelog: str, changes: pa.Table) -> str:
    """Name the largest change if a broker may find it too large for a record, else return ""."""
    if changes.get_total_buffer_size() < _LARGE:
        return ""
    sizes = pc.binary_length(changes["value"])
    size = pc.max(sizes).as_py() or 0
    if size < _LARGE:
        return ""
    values = dict(zip(changes["key"].to_pylist(), changes["value"].to_pylist(), strict=True))
    key = changes["key"][pc.index(sizes, size).as_py()].as_py()
    variables = decode_registry(values.get(REGISTRY_KEY))
    named = [f"the {entry.kind} {name!r}" for name, entry in variables.items() if entry.number == key[0]]
    return f"{(named or ['the state'])[0]} of one key has {size} bytes in one record of its changelog {changelog!r}"


def _defining_entries(snapshot: Snapshot, changes: pa.Table, noted: Noted) -> dict[bytes, bytes | None]:
    """Return the entries that define the others; they come last in each batch, where the driver looks for them."""
    defining: dict[bytes, bytes | None] = {STATE_KEY: noted.encode()}
    if not noted.definition.has_variables or pc.is_in(pa.scalar(REGISTRY_KEY), changes["key"]).as_py():
        return defining
    (registry,) = snapshot.multi_get([REGISTRY_KEY])
    return {REGISTRY_KEY: registry} | defining


def new_token() -> str:
    """Return a name for an attempt."""
    return uuid.uuid4().hex
