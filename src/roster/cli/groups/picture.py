"""A group drawn in a given width and height: status, members, partitions, events, as lines of Rich text.

Every block takes the lines it may have and returns no more, so the newest event is on the screen whatever its size.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.text import Text

from roster.console.snapshot import ABSENT, REBALANCING
from roster.console.text import bars, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roster.console.history import GroupHistory, Member
    from roster.console.rows import GroupRows, MemberRow, PartitionRow

PALETTE = ("cyan", "magenta", "green", "yellow", "bright_blue", "bright_magenta", "bright_green", "bright_cyan")
FULL_HEIGHT = 60
"""Lines of partitions where the height is not limited."""
MOST_EVENTS = 3
"""Lines the newest event may take where it is longer than the width."""
HEADING = "bold"
_GAP = "  "
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

Lines = list[Text]


class Told(Protocol):
    """An event: its time, in seconds, and its text."""

    @property
    def at(self) -> float:
        """Seconds of the clock that `stamp` knows."""

    @property
    def text(self) -> str:
        """One sentence."""


@dataclass(frozen=True, slots=True)
class Size:
    """Columns and lines to draw in; without a number of lines all is drawn."""

    width: int
    height: int | None = None


def spinner(now: float) -> str:
    """A frame that changes ten times a second."""
    return _SPINNER[int(now * 10) % len(_SPINNER)]


def style_of(member: Member | None, waits: bool = False) -> str:
    """The colour of a member; dim for none."""
    if member is None:
        return "dim"
    return f"dim {PALETTE[member.colour % len(PALETTE)]}" if waits else PALETTE[member.colour % len(PALETTE)]


def picture(
    head: Lines,
    rows: GroupRows,
    events: Sequence[Told],
    size: Size,
    stamp: Callable[[float], str],
    people: Lines | None = None,
) -> Lines:
    """Draw the head, then members (or `people`), partitions and events in what is left; at most `size.height` lines."""
    if size.height is None:
        above = members(rows, size.width, None) if people is None else people
        body = [*above, Text(), *partitions(rows, size), Text()]
        return [*head, Text(), *body, *timeline(events, size.width, None, stamp)]
    head = head[: max(1, size.height - MOST_EVENTS)]
    left = size.height - len(head)
    wanted = min(len(events), max(MOST_EVENTS, left // 6)) + 1
    group = _group(rows, Size(size.width, max(0, left - wanted)), people)
    return [*head, *group, *timeline(events, size.width, left - len(group), stamp)]


def _group(rows: GroupRows, size: Size, people: Lines | None) -> Lines:
    assert size.height is not None  # only drawn so
    room = min(len(rows.members) + 1, max(2, size.height // 3))
    above = (members(rows, size.width, room) if people is None else people)[: size.height]
    rest = size.height - len(above)
    blank = 1 if above and rest > len(rows.partitions) + 2 else 0
    return [*above, *[Text()] * blank, *partitions(rows, Size(size.width, rest - blank))]


def fitted(text: Text | str, width: int, *, right: bool = False) -> Text:
    """Exactly `width` columns: cut with an ellipsis, or padded."""
    line = Text(text) if isinstance(text, str) else text.copy()
    line.rstrip()
    line.overflow = "ellipsis"
    line.align("right" if right else "left", max(0, width))
    return line


def in_a_row(parts: Sequence[Text | str], width: int) -> Text:
    """As many of the parts, in order, as fit into a line; the first one is cut if it must be."""
    line = fitted(parts[0], min(width, Text(str(parts[0])).cell_len))
    for part in parts[1:]:
        more = Text(part) if isinstance(part, str) else part
        if line.cell_len + len(_GAP) + more.cell_len <= width:
            line = Text.assemble(line, _GAP, more)
    return line


def table_line(cells: Sequence[Text | str], widths: Sequence[int], width: int, style: str) -> Text:
    """Cells side by side in `width` columns; a negative width is that of a cell to the right."""
    parts = [fitted(cell, abs(wide), right=wide < 0) for cell, wide in zip(cells, widths, strict=True)]
    line = Text(_GAP).join(parts)
    line.stylize(style)
    return fitted(line, width)


# Status.


def status(group: str, history: GroupHistory, width: int, now: float, generation: str | None = None) -> Lines:
    """The group's name and state; lag and rates with their course; what the group waits for, if anything."""
    state, style = _state(history)
    parts = [Text(group, style="bold"), Text(state, style=style)]
    generation_text = generation or generation_of(history)
    results = history.results and f"results {history.results}"
    parts += [Text(part) for part in (generation_text, history.protocol, results) if part]
    parts.append(Text(f"{counted(history.rebalances, 'rebalance')} seen", style="dim"))
    if history.coordinator:
        parts.append(Text(history.coordinator, style="dim"))
    return [in_a_row(parts, width), _course(history, width), _note(history, width, now)]


def _state(history: GroupHistory) -> tuple[str, str]:
    if history.away_since is not None:
        return "coordinator away", "bold red"
    if history.state == ABSENT:
        return "no such group", "yellow"
    if history.state in REBALANCING:
        return history.state, "bold yellow"
    return history.state, "green" if history.state == "Stable" else "yellow"


def generation_of(history: GroupHistory) -> str:
    """Generation as a lower bound, from the claims in the subscriptions, or the epoch of KIP-848."""
    if history.epoch is not None:
        return f"epoch {history.epoch}"
    return "" if history.generation_at_least is None else f"generation ≥ {history.generation_at_least}"


def lag_of(history: GroupHistory) -> str:
    """The lag in figures; `unknown` or `at least` where offsets are missing."""
    if all(position.lag is None for position in history.positions.values()):
        return "lag unknown" if history.positions or history.members else "lag -"
    return f"lag {'' if history.lag_is_whole else 'at least '}{history.lag:,}"


def _course(history: GroupHistory, width: int) -> Text:
    drawn = max(6, min(30, (width - 54) // 2))
    lag = Text.assemble((lag_of(history), "bold"), " ", (bars(history.lag_total.values, drawn), "yellow"))
    read, course = f"{_per_second(history.rate)} read", bars(history.rate_total.values, drawn)
    rate = Text.assemble((read, "bold"), " ", (course, "cyan"))
    return in_a_row([lag, rate, f"{_per_second(history.produced_rate)} written"], width)


def _per_second(rate: float | None) -> str:
    return "-/s" if rate is None else f"{rate:,.0f}/s"


def _note(history: GroupHistory, width: int, now: float) -> Text:
    """Note of what the group waits for or lacks; else an empty line, so that nothing below jumps."""
    text, style = history.trouble and f"lag is not known: {history.trouble}", "yellow"
    if history.away_since is not None:
        text, style = f"{spinner(now)} no answer for {now - history.away_since:.0f} s: {history.away_reason}", "red"
    elif history.rebalancing_since is not None:
        text = f"{spinner(now)} rebalancing for {now - history.rebalancing_since:.1f} s; owners are those before it"
    return fitted(Text(text, style=style), width)


# Members.


def members(rows: GroupRows, width: int, height: int | None) -> Lines:
    """A heading and a line a member; where lines are few, the last one sums up the others."""
    if not rows.members or (height is not None and height < 2):
        return []
    name = max(12, min(width - 40, max(len(row.member.name) for row in rows.members) + 2))
    widths = (name, -10, -10, -7, width)
    lines = [table_line(("member", "partitions", "lag", "read/s", "host"), widths, width, HEADING)]
    room = len(rows.members) if height is None else height - 1
    shown = rows.members if len(rows.members) <= room else rows.members[: room - 1]
    lines += [_member(row, widths, width) for row in shown]
    if rest := rows.members[len(shown) :]:
        owned = sum(len(row.partitions) for row in rest)
        text = f"… {len(rest)} more with {counted(owned, 'partition')}, lag {sum(row.lag for row in rest):,}"
        lines.append(fitted(Text(text, style="dim"), width))
    return lines


def _member(row: MemberRow, widths: Sequence[int], width: int) -> Text:
    member = row.member
    lag = "unknown" if row.unknown_lags and row.unknown_lags == len(row.partitions) else f"{row.lag:,}"
    lag = f"≥ {lag}" if 0 < row.unknown_lags < len(row.partitions) else lag
    rate = "-" if row.rate is None else f"{row.rate:,.0f}"
    left = member.left_at is not None
    host = "left, its partitions wait" if left else member.seen.host
    cells = (f"{member.mark} {member.name}", str(len(row.partitions)), lag, rate, host)
    return table_line(cells, widths, width, style_of(member, waits=left))


# Partitions.


def partitions(rows: GroupRows, size: Size) -> Lines:
    """A heading and a line a partition; where lines are few, those furthest behind, and a line for the others."""
    height = FULL_HEIGHT if size.height is None else size.height
    if not rows.partitions or height < 2:
        return []
    shown: Sequence[PartitionRow] = rows.partitions
    if len(shown) >= height:
        shown = sorted(shown, key=lambda row: -1 if row.lag is None else row.lag, reverse=True)[: height - 2]
    lines = _table(shown, rows.topics, size.width)
    if rest := len(rows.partitions) - len(shown):
        lag = sum(row.lag or 0 for row in rows.partitions) - sum(row.lag or 0 for row in shown)
        lines.append(fitted(Text(f"… {rest:,} more, lag {lag:,}", style="dim"), size.width))
    return lines


def _table(rows: Sequence[PartitionRow], topics: Sequence[str], width: int) -> Lines:
    """Partitions go by their number where there is one topic."""
    heading = topics[0] if len(topics) == 1 else "partition"
    labels = [f"{'' if len(topics) == 1 else f'{row.partition.topic} '}{row.partition.partition}" for row in rows]
    label = min(max(len(text) for text in (heading, *labels)), max(6, width // 4))
    owner = max(5, min(18, max((len(row.owner.name) + 2 for row in rows if row.owner), default=5)))
    drawn = max(0, min(60, width - label - owner - 9 - 7 - 4 * len(_GAP)))
    widths = (label, owner, -9, -7, drawn)
    lines = [table_line((heading, "owner", "lag", "read/s", "lag lately"[:drawn]), widths, width, HEADING)]
    for text, row in zip(labels, rows, strict=True):
        lag = "unknown" if row.lag is None else f"{row.lag:,}"
        rate = "-" if row.rate is None else f"{row.rate:,.0f}"
        lags = row.lags.values
        course = bars(lags, min(drawn, len(lags)))
        cells = (_cut_front(text, label), _owner(row), lag, rate, course)
        lines.append(table_line(cells, widths, width, style_of(row.owner, row.waits)))
    return lines


def _owner(row: PartitionRow) -> str:
    if row.owner is None:
        return "-"
    return f"{row.owner.mark} left" if row.waits else f"{row.owner.mark} {row.owner.name}"


def _cut_front(text: str, width: int) -> str:
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


# Events.


def timeline(events: Sequence[Told], width: int, height: int | None, stamp: Callable[[float], str]) -> Lines:
    """The newest events, oldest first, below a rule; whole where there is room for all, else the older ones in a line.

    The newest takes up to three lines in any case.
    """
    if height is not None and height < 1:
        return []
    rule = [Text("─ events ".ljust(width, "─"), style="dim")] if height is None or height > 1 else []
    if not events:
        return rule
    room = None if height is None else height - len(rule)
    if room is None or len(events) <= room:
        whole = [line for event in events for line in _wrapped(event, width, MOST_EVENTS, stamp)]
        if room is None or len(whole) <= room:
            return [*rule, *whole]
    newest = _wrapped(events[-1], width, min(room, MOST_EVENTS), stamp)
    before = events[:-1][max(0, len(events) - 1 - (room - len(newest))) :]
    return [*rule, *(fitted(_event(event, stamp), width) for event in before), *newest]


def _event(event: Told, stamp: Callable[[float], str]) -> Text:
    return Text.assemble((stamp(event.at), "dim"), _GAP, event.text)


def _wrapped(event: Told, width: int, height: int, stamp: Callable[[float], str]) -> Lines:
    indent = len(stamp(event.at)) + len(_GAP)
    first, *more = textwrap.wrap(
        event.text, max(1, width - indent), max_lines=height, placeholder="…", break_on_hyphens=False
    ) or [""]
    head = Text.assemble((stamp(event.at), "dim"), _GAP, first)
    return [fitted(head, width), *(fitted(" " * indent + line, width) for line in more)]
