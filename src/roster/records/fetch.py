"""Reads ranges of offsets as record batches: the loop around `ranges` (decisions), `connections` and columns."""

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from roster.model import Address
from roster.model.offsets import Arrival
from roster.records.connections import Connections
from roster.records.fetch_decisions import ANY, Answer, FetchError, Knowledge, Ranges, Settings
from roster.records.native import Compiled, kernel
from roster.security import PLAINTEXT, Security
from roster.wire import WireError
from roster.wire.columns.reader import MAX_BYTES, RecordColumns, Unreadable, UnreadableError, refuse

OnSilence: TypeAlias = Callable[[float, str, list[str]], None]
OnUnreadable: TypeAlias = Callable[[Unreadable], None]

_ROWS_PER_BATCH = 16_000
_LONGEST_WAIT = 1.0


@dataclass(slots=True)
class _Session:
    """State that a worker process keeps between tasks."""

    connections: Connections
    bootstrap: list[Address]
    knowledge: Knowledge = field(default_factory=Knowledge)
    turn: int = 0

    def anyone(self) -> Address:
        """Return the broker for requests that any can answer: the last one, or after a failure the next."""
        known = self.knowledge.brokers.values()
        candidates = list(dict.fromkeys([*self.bootstrap, *known]))
        return candidates[self.turn % len(candidates)]


_sessions: dict[tuple[object, ...], _Session] = {}
"""Unused sessions, by process and settings."""


def read_ranges(
    bootstrap: Sequence[Address],
    client_id: str,
    ranges: Sequence[tuple[str, int, int, int]],
    settings: Settings,
    *,
    headers: bool = False,
    timeout: float = 60.0,
    shipped: Compiled | None = None,
    security: Security = PLAINTEXT,
    on_silence: OnSilence | None = None,
    on_unreadable: OnUnreadable = refuse,
    arrivals: Sequence[Arrival] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield all records of the ranges (topic, partition, start, end), in order within each; one range a partition.

    `timeout`: seconds without progress before it fails. With `on_silence` it has no timeout, and records are yielded
    at once instead of waiting for a fuller batch; it is called about once a second while no record arrives, with the
    seconds since the last one, the problem of a connection ("" if there is none) and the unfinished ranges.

    `on_unreadable` is called with each batch whose records cannot be read although its CRC is right: a producer damaged
    it, or its records expand to more memory than a batch may take. If it returns, the batch is left out.

    Raises FetchError after the timeout, if records are gone, damaged or may not be read, if they do not fit into
    memory, and if a broker refuses the login of `security`. `shipped`: code that another process has compiled.
    `arrivals`: records that another process has received.
    """
    key = (os.getpid(), tuple(bootstrap), client_id, settings.rack, security)
    session = _sessions.pop(key, None) or _Session(Connections(client_id, security=security), list(bootstrap))
    try:
        loops = kernel(shipped)
        decisions = Ranges(loops, ranges, settings, session.knowledge)
        columns = RecordColumns(loops, decisions.partitions, headers=headers)

        def rows(answer: Answer) -> Iterator[pa.RecordBatch]:
            return columns.batches(answer.data, answer.table, on_unreadable)

        if on_silence is None:
            fail = functools.partial(_fail_after, timeout)
            yield from _merged(_batches(session, decisions, rows, fail, arrivals, max(timeout / 2, 0.01)))
        else:
            yield from _batches(session, decisions, rows, on_silence, arrivals)
    except WireError as error:
        failure = FetchError(str(error))
        failure.unreadable = error.batch if isinstance(error, UnreadableError) else None
        raise failure from error
    except MemoryError as error:
        raise FetchError("there is not enough memory for the records of one batch") from error
    finally:
        session.connections.close_busy()
        if key in _sessions:
            session.connections.close()
        else:
            _sessions[key] = session


def _batches(
    session: _Session,
    ranges: Ranges,
    rows: Callable[[Answer], Iterator[pa.RecordBatch]],
    on_silence: OnSilence,
    arrivals: Sequence[Arrival],
    longest: float = _LONGEST_WAIT,
) -> Iterator[pa.RecordBatch]:
    if arrivals and (arrived := ranges.arrived(arrivals)) is not None:
        yield from rows(arrived)
    session.connections.poll(0)  # notices connections that brokers closed since the last task
    last, progress, problem = time.monotonic(), 0, ""
    while not ranges.is_done:
        _send(session, ranges)
        answers = []
        for reply in session.connections.poll(min(_wait(ranges), longest)):
            if reply.is_refused:
                raise FetchError(reply.problem)
            if reply.response is None:
                problem = reply.problem
                session.turn += reply.broker == ANY
                ranges.failed(reply.broker, time.monotonic())
                continue
            answer = ranges.answered(reply.broker, reply.request, reply.response, time.monotonic())
            if answer is not None:
                answers.append(answer)
        if ranges.progress != progress:
            last, progress, problem = time.monotonic(), ranges.progress, ""
        else:
            on_silence(time.monotonic() - last, problem, ranges.waiting())
        # While these responses become rows, the brokers work on the next ones.
        _send(session, ranges)
        for answer in answers:
            yield from rows(answer)
        if answers:
            last = time.monotonic()  # without the caller's time


def _send(session: _Session, ranges: Ranges) -> None:
    for broker, request in ranges.requests(time.monotonic()):
        address = session.anyone() if broker == ANY else session.knowledge.brokers[broker]
        session.connections.send(broker, address, request)


def _wait(ranges: Ranges) -> float:
    wake = ranges.next_wake(time.monotonic())
    return _LONGEST_WAIT if wake is None else max(0.0, min(_LONGEST_WAIT, wake))


def _fail_after(timeout: float, silence: float, problem: str, waiting: list[str]) -> None:
    if silence > timeout:
        text = f"no record for {timeout * 1000:.0f} ms (twice request.timeout.ms), waiting for {', '.join(waiting[:5])}"
        raise FetchError(f"{text}; {problem}" if problem else text)


def _merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small record batches, whose overhead exceeds the cost of their rows. Large ones are not copied."""
    joined: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        nbytes = batch.nbytes
        if joined and (batch.num_rows >= _ROWS_PER_BATCH or size + nbytes > MAX_BYTES):
            yield _joined(joined)
            joined, rows, size = [], 0, 0
        joined.append(batch)
        rows += batch.num_rows
        size += nbytes
        if rows >= _ROWS_PER_BATCH or size >= MAX_BYTES:
            yield _joined(joined)
            joined, rows, size = [], 0, 0
    if joined:
        yield _joined(joined)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
