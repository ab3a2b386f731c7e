"""A consumer group over time: snapshots go in, rows and events come out.

`snapshot` holds what one look at a group found, `history` turns a sequence of looks into events, rates and owners,
`rows` lays the present out for a view, `looking` takes the looks through `roster.client`. All but `looking` is pure:
time comes in with the snapshots.
"""

from roster.console.events import Event, EventKind
from roster.console.history import GroupHistory
from roster.console.rows import GroupRows, MemberRow, PartitionRow, rows_of
from roster.console.snapshot import Away, MemberSeen, Snapshot
from roster.console.text import bars, number_runs, short_count

__all__ = [
    "Away",
    "Event",
    "EventKind",
    "GroupHistory",
    "GroupRows",
    "MemberRow",
    "MemberSeen",
    "PartitionRow",
    "Snapshot",
    "bars",
    "number_runs",
    "rows_of",
    "short_count",
]
