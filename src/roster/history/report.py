"""A page that compares assignors over a recorded history: one HTML file that asks for nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TypeAlias

from roster._json import JsonObject

Row: TypeAlias = JsonObject
PLOT_POINTS = 200
"""Points of time in a plot, at most."""
GROUPS_SHOWN = 30

_COLUMNS = {
    "policy": "assignor",
    "rebalances": "rebalances",
    "moved": "partitions moved",
    "stopped": "partitions stopped",
    "rounds": "generations",
    "uneven": "not even",
    "lag_spread": "lag spread, mean",
    "drain_median": "drain, median s",
    "drain_p95": "drain, 95th percentile s",
}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860, 240, 70, 24
_COLOURS = ("#4269d0", "#e8883a", "#3ca951", "#d0444f", "#8a63c9", "#2aa7a7", "#9c6b4e")
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto } svg text { fill: currentColor; font-size: 12px } .axis { stroke: #8888 }
.key { margin-right: 1rem; white-space: nowrap } .key::before { content: "\\25A0 "; color: var(--c) }
"""


def report(totals: Sequence[Row], over_time: Sequence[Row], groups: Sequence[Row]) -> str:
    """Return the page.

    totals: a row for each policy. over_time: sums of `moved` and `stopped` by policy and `at` (seconds since 1970),
    ascending. groups: sums of `stopped` by group, a column for each policy.
    """
    policies = [str(row["policy"]) for row in totals]
    colour = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(policies)}
    key = "".join(f'<span class="key" style="--c:{colour[name]}">{escape(name)}</span>' for name in policies)
    parts = ["<h1>Assignors over a recorded history</h1>"]
    if not totals:
        parts.append("<p>The history has no rebalances of groups with members.</p>")
    else:
        parts += [_table(_COLUMNS, totals), _NOTES]
        for name, title in (("moved", "Partitions moved"), ("stopped", "Partitions stopped")):
            parts += [f"<h2>{title}, summed up from the start</h2>", f"<p>{key}</p>", _plot(over_time, name, colour)]
        heads = {"group": "group", **{name: name for name in policies}}
        parts += [f"<h2>Groups with most partitions stopped, at most {GROUPS_SHOWN}</h2>", _table(heads, groups)]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Replay</title>'
    start = f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head>'
    return f"{start}<body>{''.join(parts)}</body></html>\n"


_NOTES = """<p>Moved: another member had the partition before. Stopped: a member that stayed had to stop reading it; an
eager assignor stops all. Not even: the share of rebalances after which two members differ by more than one partition.
Lag spread: records between the members with least and most to read. Drain: until the member that needs longest has read
what waited. A dash: not known.</p>"""


def _table(columns: Mapping[str, str], rows: Sequence[Row]) -> str:
    heads = "".join(f"<th>{escape(title)}</th>" for title in columns.values())
    body = "".join(f"<tr>{''.join(f'<td>{_cell(name, row[name])}</td>' for name in columns)}</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{body}</table>"


def _cell(name: str, value: object) -> str:
    if value is None:
        return "–"
    if name == "uneven":
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def _plot(rows: Sequence[Row], name: str, colour: Mapping[str, str]) -> str:
    """Return a line for each policy: the sum of a column up to each time."""
    first, last = int(rows[0]["at"]), int(rows[-1]["at"])
    lines: dict[str, list[tuple[int, int]]] = {policy: [] for policy in colour}
    for row in rows:
        line = lines[row["policy"]]
        line.append((int(row["at"]), int(row[name]) + (line[-1][1] if line else 0)))
    most = max(line[-1][1] for line in lines.values() if line) or 1
    x_of = (_WIDTH - _LEFT) / max(last - first, 1)
    y_of = (_HEIGHT - _BOTTOM - 10) / most
    shapes = [*_axes(first, last, most, y_of)]
    for policy, line in lines.items():
        points = " ".join(
            f"{_LEFT + (seconds - first) * x_of:.1f},{_HEIGHT - _BOTTOM - n * y_of:.1f}" for seconds, n in line
        )
        shapes.append(f'<polyline fill="none" stroke-width="2" stroke="{colour[policy]}" points="{points}"/>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(shapes)}</svg>'


def _axes(first: int, last: int, most: int, y_of: float) -> Iterator[str]:
    for share in (0, 0.5, 1):
        value = round(most * share)
        y = _HEIGHT - _BOTTOM - value * y_of
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>'
    for seconds, x, anchor in ((first, _LEFT, "start"), (last, _WIDTH, "end")):
        label = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
        yield f'<text x="{x}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{label}</text>'
