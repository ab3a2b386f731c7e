"""Log lines of a pipeline: one each for joining, hand-overs, progress and the end."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, Protocol

from roster._json import JsonObject
from roster.client import Ownership
from roster.client.member_statistics import MemberStatistics
from roster.model import TopicPartition
from roster.model.switch import Results, Standing
from roster.pipeline.batch import Progress, Restoring
from roster.pipeline.errors import PipelineError, reason_of

log = logging.getLogger("roster.pipeline")

INTERVAL = 10.0
"""Least seconds between two progress lines."""
_LATE_INTERVAL, _MOST_LATE = 60.0, 0.01
"""Seconds over which late rows are compared with all, and the part of them that is worth a warning."""
_MOST_NAMED = 8  # runs of partitions in one line
_LEVELS = {"0": None, "off": None, "1": logging.INFO, "on": logging.INFO, "info": logging.INFO} | {
    "debug": logging.DEBUG,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _FallbackHandler(logging.StreamHandler[Any]):
    """Writes Roster's records to stderr while the application has configured no logging of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def handle(self, record: logging.LogRecord) -> bool:
        if _is_configured():
            return False
        self.setStream(sys.stderr)
        return bool(super().handle(record))


_fallback = _FallbackHandler()


def _is_configured() -> bool:
    """Return True if the application has a handler for Roster's records."""
    mine = logging.getLogger("roster").handlers
    return bool(logging.getLogger().handlers or log.handlers or [h for h in mine if h is not _fallback])


def level_of(switch: bool | str | None) -> int | None:
    """Return the level for `switch`, or for the variable ROSTER_LOG if it is None; None means warnings and errors only.

    Raises PipelineError for an unknown level.
    """
    field = "log"
    if switch is None:
        field, switch = "ROSTER_LOG", os.environ.get("ROSTER_LOG") or True
    if isinstance(switch, bool):
        return logging.INFO if switch else None
    if not isinstance(switch, str) or switch.lower() not in _LEVELS:
        raise PipelineError(f"{switch!r} is not known", field=field, fix=f"Use one of {', '.join(sorted(_LEVELS))}")
    return _LEVELS[switch.lower()]


def enable_logging(level: int | None) -> None:
    """Show records from `level` up on stderr if the application has configured no logging."""
    root = logging.getLogger("roster")
    if _fallback not in root.handlers:
        root.addHandler(_fallback)
    if level is None or _is_configured():
        return
    for logger in (root if level == logging.DEBUG else log,):
        if logger.level == logging.NOTSET or logger.level > level:
            logger.setLevel(level)


class Observer(Protocol):
    """Hears what is reported, on the pipeline's thread."""

    def progress(self, progress: Progress) -> None:
        """Hear of a committed batch."""

    def abandoned(self) -> None:
        """Hear of a batch that was cancelled or fenced."""


class Reporter:
    """Lines of one run, each `GROUP: event key=value …`. `now` returns monotonic seconds.

    dead_letter_topic: where records are set aside. is_beside: says whether the session has another run of the group.
    """

    def __init__(
        self,
        group: str,
        *,
        enabled: bool = True,
        now: Callable[[], float] = time.monotonic,
        dead_letter_topic: str | None = None,
        is_beside: Callable[[], bool] = lambda: False,
    ) -> None:
        self._group, self._enabled, self._now = group, enabled, now
        self._dead_letter_topic, self._is_beside = dead_letter_topic, is_beside
        self._letters, self._first_letter, self._letters_at = 0, "", float("-inf")
        self.observer: Observer | None = None
        self.statistics = MemberStatistics()
        """Statistics of all members of the run, one after the other."""
        self._owned: frozenset[TopicPartition] = frozenset()
        self._joined = False
        self._reported_at = float("-inf")
        self._pending: list[Progress] = []
        self._batches = self._rows = self._late = 0
        self._compared, self._lately, self._late_in = self._now(), 0, Counter[str]()
        self._late_behind, self._late_sources = Counter[int](), Counter[str]()
        self._restoring: frozenset[str] = frozenset()
        self._copies_at = float("-inf")
        self._results = ""

    def line(self, event: str, level: int = logging.INFO, **fields: object) -> None:
        """Write a line, without the fields that are None or empty."""
        if not self._enabled and level < logging.WARNING:
            return
        known = {name: value for name, value in fields.items() if value is not None and value != ""}
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in known.items())
        log.log(level, "%s: %s%s", self._group, event, pairs, extra={"roster": {"group": self._group, **known}})

    def owns(self, ownership: Ownership, assignor: str | None) -> None:
        """Report the ownership: the first one as joined, later ones as partitions taken over, handed over or lost."""
        before, after = self._owned, ownership.partitions
        self._owned = after
        if not self._joined and ownership.generation >= 0:
            self._joined = True
            self.line(
                "joined",
                partitions=brief(after) or "none",
                generation=ownership.generation,
                assignor=assignor,
                member=ownership.member_id,
            )
            return
        taken, gone = after - before, before - after
        lost = gone & ownership.lost
        where: JsonObject = {
            "owned": len(after),
            "generation": ownership.generation if ownership.generation >= 0 else None,
        }
        if lost:
            self.line("lost", logging.WARNING, partitions=brief(lost), **where)
        if gone - lost:
            self.line("handed over", partitions=brief(gone - lost), **where)
        if taken:
            self.line("took over", partitions=brief(taken), **where)

    def switched(
        self, standings: Mapping[TopicPartition, Standing], positions: Mapping[TopicPartition, int], silent: int
    ) -> None:
        """Report the steps of a switch between two groups, a line for each standing.

        silent: the most batches that one of these partitions had since the other group handed over.
        """
        for standing in dict.fromkeys(standings.values()):
            partitions = sorted(p for p, other in standings.items() if other == standing)
            offsets = " ".join(str(positions[p]) for p in partitions[:_MOST_NAMED])
            more = {"batches_between": silent} if standing.results is Results.WRITES else {}
            self.line(
                f"results {standing.results}",
                partitions=brief(partitions),
                offsets=offsets,
                other=standing.peer,
                **more,
            )

    def paused(self, results: str) -> None:
        """Report once that the group writes no results, and what becomes of them; "": it writes some."""
        if results and results != self._results:
            self.line("writes no results", results=results)
        self._results = results

    def waits_for_brokers(self, reason: str) -> None:
        """Report that the start is tried again, as brokers do not answer."""
        self.line("waits for brokers, up to start_timeout_ms", logging.WARNING, reason=reason)

    def left(self, reason: str) -> None:
        """Report that the member left the group for a while, with all partitions."""
        self.line("handed back", logging.WARNING, partitions=brief(self._owned), reason=reason)
        self._owned, self._joined = frozenset(), False

    def abandoned(self) -> None:
        """Pass on that a batch was cancelled or fenced."""
        if self.observer is not None:
            self.observer.abandoned()

    def progress(self, progress: Progress) -> None:
        """Add a batch to the next progress line; write the line if the interval is over."""
        if self.observer is not None:
            self.observer.progress(progress)
        self._batches += 1
        self._rows += progress.rows
        self._late += progress.late
        self._lately += progress.rows
        for store, tasks in progress.stores.items():
            self._late_in[store] += sum(task.late for task in tasks.values())
            for task in tasks.values():
                self._late_behind.update(task.late_behind_ms)
                self._late_sources.update(task.late_sources)
        if self._now() - self._compared >= _LATE_INTERVAL:
            self._compare_late()
        self._pending.append(progress)
        self._letters += progress.dead_letters
        self._first_letter = self._first_letter or progress.first_dead_letter
        if progress.restored:
            self.line("restored state", changelog_records=progress.restored, batch=progress.batch)
        self.tick()
        self.restoring(progress.restoring)

    def _compare_late(self) -> None:
        """Warn of late rows if they are many: the operators' stores, how late, and from where."""
        late_in, rows, behind = +self._late_in, self._lately, self._late_behind
        sources = [name for name, _ in self._late_sources.most_common(_MOST_NAMED)]
        self._compared, self._lately, self._late_in = self._now(), 0, Counter()
        self._late_behind, self._late_sources = Counter(), Counter()
        if late_in.total() > _MOST_LATE * rows:
            self.line(
                "late rows are left out",
                logging.WARNING,
                late=late_in.total(),
                rows=rows,
                stores=",".join(sorted(late_in)),
                partitions=",".join(sources),
                median_s=_seconds(_median(behind)) if behind else None,
                most_s=(most := _seconds(max(behind))) if behind else None,
                without_time=(late_in.total() - behind.total()) or None,
                fix=f"a grace of {most} s takes them, and late_topic keeps them" if behind else "give them a time",
            )

    def tick(self) -> None:
        """Write lines of dead letters and of progress if there is something to report and the interval is over."""
        now = self._now()
        if now - self._letters_at >= INTERVAL:
            self._tell_letters()
        if not self._pending or now - self._reported_at < INTERVAL:
            return
        self._reported_at = now
        pending, self._pending = self._pending, []
        rows, spent = sum(p.rows for p in pending), sum(p.duration_ms for p in pending)
        last, late = pending[-1], sum(p.late for p in pending)
        self.line(
            "progress",
            batches=len(pending),
            rows=rows,
            late=late or None,
            rows_per_second=round(rows * 1000 / max(spent, 1)),
            lag=last.total_lag,
            **_held(last),
            owned=len(last.lag),
            batch=last.batch,
            generation=last.generation,
        )

    def _tell_letters(self) -> None:
        if self._letters:
            topic, first = self._dead_letter_topic, self._first_letter
            self.line("dead letters", logging.WARNING, records=self._letters, topic=topic, first=first)
            self._letters, self._first_letter, self._letters_at = 0, "", self._now()

    def restoring(self, copies: Mapping[str, Restoring]) -> None:
        """Write a line about copies of state that lag, if the interval is over, and one when they have caught up."""
        now = self._now()
        if not copies:
            if self._restoring:
                self.line("copies of state are up", tasks=",".join(sorted(self._restoring)))
            self._restoring = frozenset()
        elif now - self._copies_at >= INTERVAL or not self._restoring:
            self._copies_at, self._restoring = now, self._restoring | copies.keys()
            waits = [copy.seconds_left for copy in copies.values() if copy.seconds_left is not None]
            self.line(
                "restoring state",
                tasks=",".join(sorted(copies)),
                records=sum(copy.records for copy in copies.values()),
                bytes=sum(copy.bytes for copy in copies.values()),
                left=sum(copy.left for copy in copies.values()),
                seconds_left=round(max(waits)) if len(waits) == len(copies) else None,
            )

    def ended(self, reason: str, error: BaseException | None = None) -> None:
        """Write the last line: totals, and why the run ended, "" if all that was available is processed."""
        self._compare_late()
        late = self._late or None
        self._tell_letters()
        if error is None:
            done = "all that was available is done" if self._batches else "nothing is new since the group's offsets"
            if self._joined and not self._owned and not self._batches:
                others = "another pipeline of this session has" if self._is_beside() else "other members have"
                done = f"it owns no partition: {others} them"
            reason = reason or done
            self.line("stopped", reason=reason, batches=self._batches, rows=self._rows, late=late)
        else:
            self.line("failed", logging.ERROR, reason=_first_line(error), batches=self._batches, rows=self._rows)


def brief(partitions: Collection[TopicPartition]) -> str:
    """Format partitions as `orders 0-3,7; clicks 1`, up to eight runs of them."""
    texts, named = [], 0
    for topic, group in groupby(sorted(partitions), key=lambda p: p.topic):
        runs = list(_runs(p.partition for p in group))
        shown = runs[: max(_MOST_NAMED - named, 0)]
        named += len(runs)
        if shown:
            texts.append(f"{topic} {','.join(shown)}")
    more = f" and more, {len(partitions)} in all" if named > _MOST_NAMED else ""
    return "; ".join(texts) + more


def _runs(numbers: Iterable[int]) -> Iterable[str]:
    """Format sorted numbers as runs: `1-3`, `7`."""
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _median(counts: Mapping[int, int]) -> int:
    """Return the least value that half of the counted ones do not exceed."""
    values, left = sorted(counts), (sum(counts.values()) + 1) // 2
    for value in values:
        left -= counts[value]
        if left <= 0:
            return value
    return values[-1]


def _seconds(ms: int) -> int:
    """Return whole seconds that are not less."""
    return -(-ms // 1000)


def _held(progress: Progress) -> JsonObject:
    """Return which partition holds the time of most event time back, and by how many seconds; nothing if none does."""
    stores = [store for tasks in progress.stores.values() for store in tasks.values() if store.held_by]
    if not stores:
        return {}
    most = max(stores, key=lambda store: store.held_ms)
    return {"time_held_by": most.held_by, "held_s": most.held_ms // 1000}


def _first_line(error: BaseException) -> str:
    if isinstance(error, PipelineError):
        return str(error).partition("\n")[0]
    kind, text = f"{type(error).__name__}: ", reason_of(error)
    return text if text.startswith(kind) else f"{kind}{text}"


def _quoted(value: object) -> str:
    text = str(value)
    return f'"{text}"' if any(c.isspace() for c in text) else text
