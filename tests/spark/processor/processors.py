"""Stateful code as people write it for PySpark; nothing in here knows of Roster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import IntegerType, StructType

GAP = 8_000
"""Milliseconds after a session's last row at which it is over."""
HOUR = 3_600_000

TALLY = "k string, n long, kinds string, last string, worst double, seen string"
SESSIONS = "k string, begin long, end long, n int, fired long, watermark long"
EXPIRING = "k string, what string, n long"
GROUPS = "k string, n long, state string"
TELLING = "text string"
REMINDERS = "k string, at long, left string, due string"


def millis(moment: Any) -> int:
    return round(moment.timestamp() * 1000)


class Tally(StatefulProcessor):
    """A count, sums by kind and the last amounts of each key; a key starts anew after a negative amount."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n bigint, worst double")
        self.kinds = handle.getMapState("kinds", "kind int", "total bigint, label string")
        self.last = handle.getListState("last", "amount int, tags array<string>")

    def handleInputRows(self, key, rows, timerValues):
        n, worst = self.count.get() if self.count.exists() else (0, None)
        amounts = sorted((row.v, row.kind) for row in rows)
        for amount, kind in amounts:
            n += 1
            worst = float(amount) if worst is None else max(worst, float(amount))
            before = self.kinds.getValue((kind,))
            self.kinds.updateValue((kind,), ((before[0] if before else 0) + amount, f"kind {kind}"))
            self.last.appendValue((amount, [str(kind), key[0]]))
        kept = list(self.last.get())[-3:]
        self.last.put(kept)
        self.count.update((n, worst))
        if self.kinds.containsKey((9,)):
            self.kinds.removeKey((9,))
        kinds = sorted((k[0], total, label) for k, (total, label) in self.kinds.iterator())
        keys = sorted(k for (k,) in iter(self.kinds.keys())) == [k for k, _, _ in kinds]
        values = sorted(v[0] for v in self.kinds.values()) == sorted(total for _, total, _ in kinds)
        yield Row(n=n, k=key[0], kinds=str(kinds), last=str(kept), worst=worst, seen=str((keys, values)))
        if amounts[0][0] < 0:
            self.count.clear()
            self.kinds.clear()
            self.last.clear()
            gone = (self.count.get(), self.kinds.exists(), self.last.exists(), list(self.kinds.iterator()))
            yield Row(k=key[0], n=None, kinds="", last="", worst=None, seen=str(gone))

    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.n, None))

    def close(self):
        pass


class Sessions(StatefulProcessor):
    """A session of each key ends a gap after its last row; its timer moves with each row."""

    def init(self, handle):
        self.handle = handle
        self.session = handle.getValueState("session", "first timestamp, latest timestamp, n int")

    def handleInputRows(self, key, rows, timerValues):
        times = sorted(row.t for row in rows)
        found = self.session.get()
        if found is not None:
            first, latest, n = found
            self.handle.deleteTimer(millis(latest) + GAP)
            first = min(millis(first), millis(times[0]))
            latest = max(millis(latest), millis(times[-1]))
        else:
            first, latest, n = millis(times[0]), millis(times[-1]), 0
        stamps = [pd.Timestamp(at, unit="ms", tz="UTC").to_pydatetime() for at in (first, latest)]
        self.session.update((*stamps, n + len(times)))
        self.handle.registerTimer(latest + GAP)
        assert list(self.handle.listTimers()) == [latest + GAP]
        yield Row(k=key[0], begin=first, end=latest, n=n, fired=None, watermark=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        first, latest, n = self.session.get()
        self.session.clear()
        yield Row(
            k=key[0],
            begin=millis(first),
            end=millis(latest),
            n=n,
            fired=expiredTimerInfo.getExpiryTimeInMs(),
            watermark=timerValues.getCurrentWatermarkInMs(),
        )

    def close(self):
        pass


class Reminders(StatefulProcessor):
    """Reminds of a key's amounts by processing time: each amount after so many seconds, the last one three times."""

    def init(self, handle):
        self.handle = handle
        self.amounts = handle.getListState("amounts", "v int")
        self.repeats = handle.getValueState("repeats", "n int")

    def took(self, key, amounts, now):
        """Keep sorted amounts; a negative one cancels all, a fresh start cancels what is to be repeated."""
        due = sorted(self.handle.listTimers())
        for at in due:
            if amounts[0] < 0 or (self.repeats.exists() and at > now + 1_000):
                self.handle.deleteTimer(at)
        if amounts[0] < 0:
            self.amounts.clear()
        self.repeats.clear()
        for amount in (each for each in amounts if each >= 0):
            self.handle.registerTimer(now + 1 + 100 * amount)
            self.amounts.appendValue((amount,))
        left = [amount for (amount,) in self.amounts.get()]
        return {"k": key[0], "at": now, "left": str(left), "due": str([*map(str, sorted(self.handle.listTimers()))])}

    def reminded(self, key, now, due):
        """Tell of a timer and what is left; the last timer comes again a second later, twice."""
        left = [amount for (amount,) in self.amounts.get()]
        self.amounts.put([(amount,) for amount in left[1:]])
        (n,) = self.repeats.get() or (0,)
        if len(left) <= 1 and n < 2:
            self.repeats.update((n + 1,))
            self.handle.registerTimer(now + 1_000 * (n + 1))
        return {"k": key[0], "at": now, "left": str(left), "due": str(due)}

    def handleInputRows(self, key, rows, timerValues):
        yield Row(**self.took(key, sorted(row.v for row in rows), timerValues.getCurrentProcessingTimeInMs()))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        now, due = timerValues.getCurrentProcessingTimeInMs(), expiredTimerInfo.getExpiryTimeInMs()
        assert due <= now
        yield Row(**self.reminded(key, now, due))

    def close(self):
        pass


class FrameReminders(Reminders):
    """The same with pandas."""

    def handleInputRows(self, key, rows, timerValues):
        amounts = sorted(int(amount) for frame in rows for amount in frame["v"])
        yield pd.DataFrame([self.took(key, amounts, timerValues.getCurrentProcessingTimeInMs())])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        now, due = timerValues.getCurrentProcessingTimeInMs(), expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame([self.reminded(key, now, due)])


class FrameSessions(Sessions):
    """The sessions with pandas, whose times have no zone."""

    def handleInputRows(self, key, rows, timerValues):
        times = [Row(t=at.tz_localize("UTC")) for frame in rows for at in frame["t"]]
        for row in super().handleInputRows(key, times, timerValues):
            yield pd.DataFrame([row.asDict()])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])


class Expiring(StatefulProcessor):
    """Works with pandas: what lives for a millisecond is gone in the next batch, what lives for an hour is not."""

    def init(self, handle):
        self.handle = handle
        self.brief = handle.getMapState("brief", "kind int", "v int", 1)
        self.briefer = handle.getListState("briefer", "v int", 1)
        self.long = handle.getValueState("long", "n bigint", HOUR)
        self.longer = handle.getListState("longer", "v int", HOUR)

    def handleInputRows(self, key, rows, timerValues):
        now = timerValues.getCurrentProcessingTimeInMs()
        before = len(list(self.brief.keys())), self.brief.exists(), len(list(self.briefer.get()))
        n = self.long.get()[0] if self.long.exists() else 0
        for frame in rows:
            n += len(frame)
            for kind, v in zip(frame["kind"], frame["v"], strict=True):
                self.brief.updateValue((kind,), (v,))
                self.briefer.appendValue((v,))
            self.longer.appendList([(v,) for v in frame["v"]])
        self.long.update((n,))
        self.handle.registerTimer(now)
        self.handle.registerTimer(now + 24 * HOUR)
        yield pd.DataFrame({"k": key, "what": [str(before)], "n": [n]})
        kinds = len(list(self.brief.values()))
        yield pd.DataFrame({"n": [kinds, len(list(self.longer.get()))], "what": ["kinds", "longer"], "k": key * 2})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        assert expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentProcessingTimeInMs()
        yield pd.DataFrame({"k": [key[0]], "what": ["timers"], "n": [len(list(self.handle.listTimers()))]})
        yield pd.DataFrame()

    def close(self):
        pass


def grouped(key, frames, state):
    """Count the rows of a key until it has been silent for a time; a negative amount removes its state."""
    if state.hasTimedOut:
        assert all(len(frame) == 0 for frame in frames)
        (n,) = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [n], "state": [f"over {state.exists}"]})
        return
    (n,) = state.getOption or (0,)
    latest, least = 0, 0
    for frame in frames:
        n += len(frame)
        latest = max(latest, int(frame["t"].max().value // 1_000_000))
        least = min(least, int(frame["v"].min()))
    at = state.getCurrentWatermarkMs()
    if least < 0:
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [n], "state": [f"removed {at}"]})
    elif n % 5 == 0:
        yield pd.DataFrame({"k": [key[0]], "n": [n], "state": [f"untouched {at}"]})
    else:
        state.update((n,))
        state.setTimeoutTimestamp(max(latest + GAP, at + 1))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "state": [f"updated {at}"]})


def told(value):
    """A value with the types of all its parts."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array {[told(each) for each in value]}"
    if isinstance(value, dict):
        return f"dict { {told(key): told(each) for key, each in value.items()} }"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} {[told(each) for each in value]}"
    return f"{type(value).__name__} {value!r}"


class Telling(StatefulProcessor):
    """Tells the key, all rows with their types, the keys of timers, and what removed variables say."""

    def init(self, handle):
        self.handle = handle
        row = StructType().add("n", IntegerType())
        value, rows, entries = (
            handle.getValueState("x", row),
            handle.getListState("y", row),
            handle.getMapState("z", row, row),
        )
        self.removed = [
            *((value, "exists"), (value, "get"), (value, "update", (1,)), (value, "clear")),
            *((rows, "exists"), (rows, "put", [(1,)]), (rows, "appendValue", (1,)), (rows, "appendList", [(1,)])),
            *((rows, "clear"), (entries, "exists"), (entries, "getValue", (1,)), (entries, "containsKey", (1,))),
            *((entries, "removeKey", (1,)), (entries, "updateValue", (1,), (2,)), (entries, "clear")),
        ]
        for name in ("x", "y", "z"):
            handle.deleteIfExists(name)

    def handleInputRows(self, key, rows, timerValues):
        self.handle.registerTimer(1)
        rows = sorted(rows, key=lambda row: row.v)
        yield Row(text=f"{told(key)} {list(rows[0].__fields__)} {told(rows)}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        said = []
        for variable, method, *arguments in self.removed:
            try:
                getattr(variable, method)(*arguments)
            except PySparkRuntimeError as error:
                said.append(str(error))
        yield Row(text=f"timer of {told(key)} {list(key.__fields__)} {said}")

    def close(self):
        pass


def told_frames(frames):
    """The columns and values of frames, a frame each."""
    frames = [frame.sort_values("v", ignore_index=True) for frame in frames]
    return [{name: f"{frame[name].dtype} {told(list(frame[name]))}" for name in frame} for frame in frames]


class FrameTelling(Telling):
    """The same with pandas; the frame goes through a result of its own."""

    def handleInputRows(self, key, rows, timerValues):
        self.handle.registerTimer(1)
        yield pd.DataFrame({"text": [f"{told(key)} {told_frames(rows)}"]})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])


def telling(key, frames, state):
    """Tell the key and its frames, and the key again when it has timed out."""
    if not state.hasTimedOut:
        state.update((1,))
        state.setTimeoutTimestamp(max(1, state.getCurrentWatermarkMs()))
    yield pd.DataFrame({"text": [f"{state.hasTimedOut} {told(key)} {told_frames(frames)}"]})
