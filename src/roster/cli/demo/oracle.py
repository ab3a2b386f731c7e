"""The plain computation the streamed result is held against, and the comparison.

A record is lost when a group's count in the output is below the file's count, double when it is above; both are summed
over groups, so that one of each does not cancel out.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from roster.cli.load.files import unpacked

_COLUMNS = ["carrier", "tailnum", "time_hour", "dep_delay", "distance"]

Group: TypeAlias = tuple[object, ...]


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a demo: the number of records, verdicts by subject; `late` records fell out of windows."""

    records: int
    verdicts: Mapping[str, Verdict]
    late: int = 0

    @property
    def holds(self) -> bool:
        """All results are equal to the plain computation."""
        return all(verdict.holds for verdict in self.verdicts.values()) and not self.late

    def __str__(self) -> str:
        if len(self.verdicts) == 1:
            return "".join(map(str, self.verdicts.values()))
        if self.holds:
            groups = " and ".join(f"{verdict.groups:,} {about}" for about, verdict in self.verdicts.items())
            return f"{self.records:,} flights, the state of {groups} equals a plain computation"
        wrong = "; ".join(f"{about}: {verdict}" for about, verdict in self.verdicts.items())
        return f"{self.records:,} flights, NOT equal to a plain computation: {wrong}; {self.late} late"


def compare(expected: Groups, actual: Groups) -> Verdict:
    """Hold the output against the plain computation, group by group."""
    nothing = Figures(0)
    pairs = [(expected.get(group, nothing), actual.get(group, nothing)) for group in expected.keys() | actual.keys()]
    return Verdict(
        expected=sum(e.records for e, _ in pairs),
        once=sum(min(e.records, g.records) for e, g in pairs),
        lost=sum(max(0, e.records - g.records) for e, g in pairs),
        double=sum(max(0, g.records - e.records) for e, g in pairs),
        groups=len(expected),
        wrong_sums=sum(e.sums != g.sums for e, g in pairs if e.records == g.records),
    )


def read_flights(path: Path) -> pd.DataFrame:
    """Read the columns of the plain computations from a CSV file, or the one in a zip file; NA is null."""
    with unpacked(path) as stream:  # into memory, as Ctrl-C while pandas reads a file is a ParserError
        text = io.StringIO(stream.read().decode())
    return pd.read_csv(text, usecols=_COLUMNS, keep_default_na=False, na_values=["NA"])


def total_of(groups: Groups) -> int:
    """Records over all groups."""
    return sum(figures.records for figures in groups.values())
