"""Short forms of numbers and partitions, and names that a terminal can show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roster.model import TopicPartition

BARS = "▁▂▃▄▅▆▇█"
GAP = " "
_HARDLY, _FLAT = 0.05, "▄"
_ESCAPED_AT_ONCE = 1 << 16
"""Characters: the text of each is an object of its own until they are joined."""


def bars(values: Sequence[float | None], width: int) -> str:
    """The newest `width` values as bars of one scale, newest to the right; a gap for None and for missing values.

    The scale begins at the least value, so that a slope shows also high up; values that hardly differ are
    a line half way up.
    """
    shown = list(values[-width:]) if width > 0 else []
    known = [value for value in shown if value is not None]
    most, least = max(known, default=0), min(known, default=0)
    flat = most - least < _HARDLY * most
    drawn = "".join(
        GAP if value is None else _FLAT if flat and value > 0 else _bar(value, most, least) for value in shown
    )
    return drawn.rjust(max(0, width), GAP)


def _bar(value: float, most: float, least: float) -> str:
    """One bar of eight heights; the lowest is for nothing, any other value shows at least the second."""
    if value <= 0 or most <= least:
        return BARS[0]
    return BARS[min(len(BARS) - 1, 1 + int((len(BARS) - 2) * (value - least) / (most - least)))]


def number_runs(numbers: Iterable[int]) -> str:
    """Format 1, 2, 3, 7 as `1-3 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def named(partitions: Collection[TopicPartition]) -> str:
    """Format partitions briefly: `orders 0-3 7, users 2`."""
    by_topic = groupby(sorted(partitions), key=lambda partition: partition.topic)
    return ", ".join(f"{topic} {number_runs(tp.partition for tp in group)}" for topic, group in by_topic)


def named_briefly(partitions: Collection[TopicPartition], most: int = 60) -> str:
    """As `named` within `most` characters, else how many they are: `334 partitions of orders`."""
    text = named(partitions)
    if len(text) <= most:
        return text
    topics = {partition.topic for partition in partitions}
    where = next(iter(topics)) if len(topics) == 1 else counted(len(topics), "topic")
    return f"{counted(len(partitions), 'partition')} of {where}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: `1 member`, `2,000 members`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def escaped(text: str) -> str:
    """Escape control characters, which could move the cursor or end the line."""
    if text.isprintable():
        return text
    parts = (text[start : start + _ESCAPED_AT_ONCE] for start in range(0, len(text), _ESCAPED_AT_ONCE))
    return "".join("".join(c if c.isprintable() else ascii(c)[1:-1] for c in part) for part in parts)
