"""Reads a group's state by key, range and prefix, from this application and the others of the group."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from roster._json import JsonObject
from roster.model import Address
from roster.model.tasks import TaskId
from roster.pipeline.errors import PipelineError
from roster.spark.queries.client import StateClient
from roster.spark.queries.store_reads import Found, LocalState
from roster.state.definition import Definition
from roster.state.entries import QueryError, Row, Span, behind, parsed
from roster.state.keys import encode_keys
from roster.state.store import StateError
from roster.stateful.restore_schedule import Copies

PATIENCE = 10.0
"""Seconds that a read waits for a task that moves."""
_PAUSE = 0.1
_MOST_AT_ONCE = 8


class StateUnavailableError(StateError):
    """Tasks cannot be read now: they move or their application does not answer. The text names each with the reason.

    Ask again, or with `stale=True`.
    """

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}. {fix}")
        self.problem, self.fix = problem, fix


class Answer(NamedTuple):
    """Rows, and for each copy read in place of its task how many changelog offsets it lacked at the last look."""

    rows: list[Row]
    behind: dict[str, int]


class StateView:
    """One store of a group's tasks, as of their last committed batch; for any thread.

    Tasks that this application runs are read from their stores, others from the applications that have them, at their
    `application_server`. With `stale=True` standby copies answer too, and tasks that are being restored; `behind` has
    the lag of those here. With `local=True` no other application is asked, and rows of their tasks are missing. Reads
    are not consistent with one another.

    Rows are as `roster state scan` prints them, in the order of keys:

    - of aggregates, windows and first rows: the columns of the keys and the results;
    - of a stateful processor, as Spark's state data source has them: `variable`, `key`, and `value` of a value,
      `list_element` of each element of a list, `user_map_key` and `user_map_value` of each entry of a map, all of them
      dictionaries; with a time to live also `expiration_timestamp` in ms since the epoch, which may be past.
      `variable="count"` asks for one of them, as Spark's option `stateVarName`; the one of
      `apply_in_pandas_with_state` is `state`;
    - of a join of two streams, the rows kept for partners that may still arrive: `side`, `key`, and `value` with all
      columns of that side. `side="left"` or `side="right"` asks for one of them, as Spark's option `joinSide`.

    Each method raises PipelineError for values that do not fit the key's columns, for a variable or side that the store
    does not have, StateUnavailableError for tasks that cannot be read within ten seconds, and StateError for a store
    that cannot be read.
    """

    def __init__(
        self, local: LocalState, definition: Definition, copies: Copies, ask: StateClient, own: Address | None = None
    ) -> None:
        """`own`: address at which this application answers queries, None if it does not."""
        self._local, self._keys, self._copies, self._ask, self._own = local, definition.keys, copies, ask, own
        self._entries = definition.entries()

    @property
    def tasks(self) -> frozenset[str]:
        """The tasks that this application runs and can read without `stale`, as in "0_3"."""
        return frozenset(map(str, self._local.whole()))

    @property
    def behind(self) -> dict[str, int]:
        """Changelog offsets that each copy here lacked at the last look."""
        return {str(task): gap for task, gap in self._local.behind().items()}

    @property
    def hosts(self) -> dict[str, list[str]]:
        """The tasks that each application runs, by its `application_server`, as of the last rebalance."""
        hosts = ((str(host), tasks & self._local.tasks) for host, tasks in self._copies.hosts().items())
        return {host: sorted(map(str, tasks)) for host, tasks in hosts}

    @property
    def columns(self) -> pa.Schema:
        """The columns of the keys."""
        return self._keys

    def described(self) -> JsonObject:
        """Return the variables of the tasks here, or the sides, with the columns of their rows; {} for other stores."""
        nowhere = Span(b"\x01", b"\x01")
        return self._entries.described(self._local.read(nowhere, self._local.whole(), stale=False).by_task())

    def part(self, variable: str | None, side: str | None) -> str | None:
        """Return the variable or side, whichever is given. Raises PipelineError if the store cannot have it."""
        with _as_pipeline_error():
            return self._entries.part_of(variable, side)

    def get(
        self,
        *key: object,
        variable: str | None = None,
        side: str | None = None,
        stale: bool = False,
        local: bool = False,
        partition: int | None = None,
    ) -> Row | None:
        """Return the row of a key, given as a value for each key column; None if there is none.

        partition: the source partition of the key's records; only its task is asked. Raises PipelineError if a key has
        several rows, which `prefix` returns: for a processor with several variables unless one is named, for its lists
        and maps, and for a key of a join or of sessions with more than one.
        """
        return self.got(key, self.part(variable, side), stale=stale, local=local, partition=partition)[0]

    def parsed(self, texts: Sequence[str]) -> list[object]:
        """Parse values of the first key columns from text. Raises PipelineError for text that does not fit."""
        if len(texts) > len(self._keys):
            return list(texts)  # too many: refused on use
        try:
            return [column[0].as_py() for column in parsed(texts, self._keys)]
        except StateError as error:
            raise PipelineError(str(error), field="key") from None

    def got(
        self, key: Sequence[object], part: str | None, *, stale: bool, local: bool, partition: int | None = None
    ) -> tuple[Row | None, dict[str, int]]:
        """Return the row as `get` does, and the lag of the copy that it was read from."""
        span = Span(self._encoded(key, whole=True), is_key=True, part=part)
        answers = self.find(span, self._tasks_of(partition), stale=stale, local=local)
        with _as_pipeline_error():
            self._entries.check(answers.by_task(), span.part, is_one=True)
        rows = self._entries.rows(answers.by_task())
        if len(tasks := [str(task) for task, read in sorted(answers.reads.items()) if read.entries]) > 1:
            raise PipelineError(
                f"the key is in the tasks {', '.join(tasks)}", field="partition", fix="Name one of them"
            )
        if len(rows) > 1:
            raise PipelineError(f"the key has {len(rows)} rows", field="get", fix="Use prefix")
        return (rows[0] if rows else None), _texts(answers)

    def prefix(
        self,
        *values: object,
        variable: str | None = None,
        side: str | None = None,
        stale: bool = False,
        limit: int | None = None,
        local: bool = False,
    ) -> list[Row]:
        """Return the rows whose first key columns have these values, in the order of keys.

        limit: most entries to read. An entry is a key; of a processor a value, a whole list or an entry of a map; of a
        join the rows of a key and side in a span of time as long as `within`.
        """
        return self.scanned(self.prefix_span(values, limit, self.part(variable, side)), stale=stale, local=local).rows

    def range(
        self,
        start: Sequence[object] = (),
        stop: Sequence[object] = (),
        *,
        variable: str | None = None,
        side: str | None = None,
        stale: bool = False,
        limit: int | None = None,
        local: bool = False,
    ) -> list[Row]:
        """Return the rows from the key `start` up to before `stop`, in the order of keys; `limit` as in `prefix`.

        Each is a sequence of values for the first key columns; an empty one means no bound.
        """
        return self.scanned(
            self.range_span(start, stop, limit, self.part(variable, side)), stale=stale, local=local
        ).rows

    def dataframe(
        self,
        spark: SparkSession,
        *,
        variable: str | None = None,
        side: str | None = None,
        stale: bool = False,
        local: bool = False,
    ) -> DataFrame:
        """Return the whole store as a DataFrame. All rows pass through the driver's memory.

        Columns differ by variable or side: name a processor's variable, unless it has only one, or a join's side. `key`
        and the values are structs.
        """
        span = Span(part=self.part(variable, side))
        answers = self.find(span, self._local.tasks, stale=stale, local=local)
        with _as_pipeline_error():
            return spark.createDataFrame(self._entries.table(answers.by_task(), span.part))

    def prefix_span(self, values: Sequence[object], limit: int | None, part: str | None) -> Span:
        """Return the span that `prefix` reads."""
        start = self._encoded(values)
        return Span(start, behind(start), limit, part=part)

    def range_span(self, start: Sequence[object], stop: Sequence[object], limit: int | None, part: str | None) -> Span:
        """Return the span that `range` reads."""
        return Span(self._encoded(start), self._encoded(stop) or None, limit, part=part)

    def scanned(self, span: Span, *, stale: bool, local: bool) -> Answer:
        """Return the rows of a span in the order of keys, and the lag of the copies read."""
        answers = self.find(span, self._local.tasks, stale=stale, local=local)
        with _as_pipeline_error():
            self._entries.check(answers.by_task(), span.part)
        return Answer(self._entries.rows(answers.by_task(), span.limit), _texts(answers))

    def find(self, span: Span, tasks: Collection[TaskId], *, stale: bool, local: bool) -> Found:
        """Read these tasks on every host; for a key, stop once it is found.

        Raises StateUnavailableError if one cannot be read within `PATIENCE`, and at once before the group is joined.
        """
        if not local:
            self._check_joined()
        found, until = Found(), time.monotonic() + PATIENCE
        while True:
            found.problems = {}
            self._read_copies(found, span, frozenset(tasks) - found.reads.keys(), stale=stale, local=local)
            left = frozenset(tasks) - found.reads.keys()
            if local or not left or (span.is_key and found.has_entries):
                return found
            problems = {task: found.problems.get(task, "it is moving, or restored") for task in sorted(left)}
            can_ask = bool(self._copies.hosts()) or left <= self._copies.active()
            if time.monotonic() >= until or not can_ask:
                raise _unavailable(problems, can_ask=can_ask)
            time.sleep(_PAUSE)

    def check_ready(self) -> None:
        """Raise StateUnavailableError unless this application has joined, and its tasks can be read."""
        self._check_joined()
        if left := (self._copies.active() & self._local.tasks) - self._local.whole():
            raise _unavailable(dict.fromkeys(sorted(left), "it is restored"), can_ask=True)

    def _check_joined(self) -> None:
        """Raise StateUnavailableError until an assignment has named the applications that answer, this one included."""
        if self._own is not None and not self._copies.hosts():
            raise StateUnavailableError("this application has not joined the group yet", "Ask again")

    def _read_copies(self, found: Found, span: Span, tasks: frozenset[TaskId], *, stale: bool, local: bool) -> None:
        """Look once for the entries of these tasks: here, then where they run, then with `stale` in any application."""
        found.add(self._local.read(span, tasks, stale=stale))
        if local or (span.is_key and found.has_entries):
            return
        hosts = {host: of for host, of in self._copies.hosts().items() if host != self._own}
        self._ask_all(found, span, {host: (tasks & of) - found.reads.keys() for host, of in hosts.items()}, stale=stale)
        if stale and (left := tasks - found.reads.keys()):
            self._ask_all(found, span, dict.fromkeys(hosts, left), stale=True)

    def _ask_all(self, found: Found, span: Span, wanted: dict[Address, frozenset[TaskId]], *, stale: bool) -> None:
        of_hosts = {host: of for host, of in wanted.items() if of}
        if not of_hosts:
            return

        def ask(host: Address) -> Found:
            try:
                return self._ask(host, span, of_hosts[host], stale=stale)
            except StateError as error:
                return Found(problems=dict.fromkeys(of_hosts[host], str(error)))

        with ThreadPoolExecutor(min(len(of_hosts), _MOST_AT_ONCE), "roster-state") as pool:
            for answer in pool.map(ask, sorted(of_hosts)):
                found.add(answer)

    def _tasks_of(self, partition: int | None) -> Collection[TaskId]:
        every = self._local.tasks
        tasks = [task for task in every if partition is None or task.partition == partition]
        if not tasks:
            raise PipelineError(
                f"there is no partition {partition!r}", field="partition", fix=f"The source has 0 to {len(every) - 1}"
            )
        return tasks

    def _encoded(self, values: Sequence[object], *, whole: bool = False) -> bytes:
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


def _texts(found: Found) -> dict[str, int]:
    return {str(task): gap for task, gap in sorted(found.behind.items())}


def _unavailable(problems: dict[TaskId, str], *, can_ask: bool) -> StateUnavailableError:
    (task, reason), *others = problems.items()
    more = f" (and {len(others)} other tasks)" if others else ""
    if not can_ask:
        return StateUnavailableError(
            f"task {task}{more} does not run here, and no application of the group has an application_server",
            "Set it in all of them, or read what is here with `local`",
        )
    return StateUnavailableError(f"task {task}{more}: {reason}", "Ask again, or read a copy with `stale`")


@contextmanager
def _as_pipeline_error() -> Iterator[None]:
    """Raise errors of a query as PipelineError."""
    try:
        yield
    except QueryError as error:
        raise PipelineError(error.problem, field=error.field, fix=error.fix) from None


def view_of(name: str, known: Mapping[str, StateView], *, is_starting: bool) -> StateView:
    """Return the view of the store with this name. Raise PipelineError, with the fix, if there is none.

    is_starting: True while the pipeline starts and its stores are not known yet.
    """
    if not known and is_starting:
        raise PipelineError("no store is open yet", field="store", fix='Ask again when `status` is "running"')
    if not known:
        raise PipelineError("no stateful pipeline is running", field="store", fix="Call start() first")
    if name not in known:
        fix = f"The pipeline has {', '.join(map(repr, known))}"
        raise PipelineError(f"there is no store {name!r}", field="store", fix=fix)
    return known[name]
