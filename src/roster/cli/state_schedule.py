"""`roster state export --every`: an export at each moment, the last ones of which are kept."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from roster.cli.errors import Failure, UserError, one_line
from roster.cli.signals import check_told, end_like_ctrl_c
from roster.state.saved.folder import Folder, FolderError
from roster.state.saved.manifest import MANIFEST, Manifest
from roster.state.saved.moments import exports_in, keep_last, name_of, remove_unfinished

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.spark.state import Export

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Period(click.ParamType[timedelta]):
    """A whole number of seconds, minutes, hours or days, such as 10m."""

    name = "period"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        found = re.fullmatch(r"([1-9]\d{0,5})([smhd])", value)
        if found is None:
            self.fail(f"{value!r} is not a number with s, m, h or d, such as 10m", param, ctx)
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


class Schedule:
    """Exports of a group, each in a folder of its own.

    export: exports to the folder named, with Failure or UserError.
    """

    def __init__(self, group: str, place: str, keep: int | None, export: Callable[[str], Export]) -> None:
        self._group, self._keep, self._export = group, keep, export
        try:
            self._folder = Folder(place)
            self._check()
        except FolderError as error:
            raise UserError(f"--to: {error}") from None

    def _check(self) -> None:
        """Raise UserError if the folder has something else."""
        if self._folder.size(MANIFEST) is not None:
            raise UserError(f"--to: {self._folder.shown} is an export itself; name a folder for several")
        for name in exports_in(self._folder)[-1:]:
            group = Manifest.read(self._folder.below(name)).group
            if group != self._group:
                raise UserError(f"--to: {self._folder.shown} has exports of the group {group!r}; name another folder")

    def run(self, every: timedelta, show: Callable[[Export], None]) -> None:
        """Export now and after each period, until SIGTERM or Ctrl-C.

        A failure is told, and the next moment tried. Raises UserError for a mistake in the command line, which the
        first export shows.
        """
        end_like_ctrl_c(signal.SIGTERM, signal.SIGHUP)
        begun, period = time.monotonic(), every.total_seconds()
        has_begun = False
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                self._tidy()
                try:
                    show(self._export(self._folder.below(name_of(datetime.now(UTC))).place))
                except (Failure, UserError) as error:
                    if isinstance(error, UserError) and not has_begun:
                        raise
                    _tell(f"no export: {one_line(error)}")
                finally:
                    self._tidy()
                has_begun = True
                check_told()
                time.sleep(period - (time.monotonic() - begun) % period)

    def _tidy(self) -> None:
        """Delete what ended early, and exports that are older than those to keep."""
        try:
            remove_unfinished(self._folder)
            if self._keep is not None:
                keep_last(self._folder, self._keep)
        except FolderError as error:
            _tell(f"older exports are not deleted: {one_line(error)}")


def _tell(problem: str) -> None:
    click.echo(f"{datetime.now(UTC).isoformat(timespec='seconds')} {problem}", err=True)
