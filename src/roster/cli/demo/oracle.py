"""The plain computation the streamed result is held against, and the comparison.

A record is lost when a group's count in the output is below the file's count, double when it is above; both are summed
over groups, so that one of each does not cancel out.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd
import pyarrow.dataset as pads

if TYPE_CHECKING:
    from pathlib import Path

    from roster.cli.load.source import Source

Group: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one group: its records, and further sums that must be equal; () if there are none."""

    records: int
    sums: tuple[int, ...] = ()


Groups: TypeAlias = Mapping[Group, Figures]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the comparison, record by record."""

    expected: int
    once: int
    lost: int
    double: int
    groups: int
    wrong_sums: int

    @property
    def holds(self) -> bool:
        """Each record counted once, every sum equal."""
        return self.once == self.expected and not (self.lost or self.double or self.wrong_sums)

    def __str__(self) -> str:
        sums = f", {self.wrong_sums} sums differ" if self.wrong_sums else ""
        return f"{self.expected} records in, {self.once} counted once, {self.lost} lost, {self.double} double{sums}"


def compare(expected: Groups, got: Groups) -> Verdict:
    """Hold the output against the plain computation, group by group."""
    nothing = Figures(0)
    pairs = [(expected.get(group, nothing), got.get(group, nothing)) for group in expected.keys() | got.keys()]
    return Verdict(
        expected=sum(e.records for e, _ in pairs),
        once=sum(min(e.records, g.records) for e, g in pairs),
        lost=sum(max(0, e.records - g.records) for e, g in pairs),
        double=sum(max(0, g.records - e.records) for e, g in pairs),
        groups=len(expected),
        wrong_sums=sum(e.sums != g.sums for e, g in pairs if e.records == g.records),
    )


def read_columns(path: Path, columns: list[str]) -> pd.DataFrame:
    """Read columns of a CSV file, or of the one in a zip file; NA is null."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            text = archive.read(archive.namelist()[0]).decode()
    else:
        text = path.read_text()
    # From memory, as Ctrl-C while pandas reads a file is a ParserError.
    return pd.read_csv(io.StringIO(text), usecols=columns, keep_default_na=False, na_values=["NA"])


def flights_in_file(path: Path) -> Groups:
    """Flights, departures and minutes of delay by (carrier, hour in seconds since the epoch), by pandas."""
    frame = read_columns(path, ["carrier", "time_hour", "dep_delay"])
    hour = pd.to_datetime(frame["time_hour"], utc=True).astype("int64") // 10**9
    groups = frame.groupby(["carrier", hour])["dep_delay"].agg(["size", "count", "sum"])
    return {group: Figures(size, (count, int(total))) for group, size, count, total in groups.itertuples(name=None)}


def keys_in_file(source: Source) -> Groups:
    """Records by key, counted one by one."""
    source.check()
    counts: Counter[bytes | None] = Counter()
    for records in source.batches():
        counts.update(records["key"].to_pylist())
    return {(None if key is None else key.decode(),): Figures(count) for key, count in counts.items()}


def flights_in_output(path: Path) -> Groups:
    """The same as `flights_in_file`, added up from the partial rows the applications wrote."""
    rows = _added_up(path, ["carrier", "hour"], ["flights", "departed", "delay_minutes"])
    return {
        (row["carrier"], int(row["hour"].timestamp())): Figures(
            row["flights_sum"], (row["departed_sum"], row["delay_minutes_sum"])
        )
        for row in rows
    }


def keys_in_output(path: Path) -> Groups:
    """The same as `keys_in_file`, added up from the partial rows the applications wrote."""
    return {(row["key"],): Figures(row["records_sum"]) for row in _added_up(path, ["key"], ["records"])}


def _added_up(path: Path, by: list[str], sums: list[str]) -> list[dict[str, Any]]:
    if not path.is_dir():
        return []
    table = pads.dataset(path, format="parquet").to_table()
    if not table.num_rows:
        return []
    rows: list[dict[str, Any]] = table.group_by(by).aggregate([(name, "sum") for name in sums]).to_pylist()
    return rows


def total_of(groups: Groups) -> int:
    """Records over all groups."""
    return sum(figures.records for figures in groups.values())
