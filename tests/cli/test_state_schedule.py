"""Exports on a schedule: which are there after failures, kills and removals, and which one an import takes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from roster.cli import state_schedule
from roster.cli.errors import Failure, UserError
from roster.cli.root import run
from roster.cli.signals import check_told
from roster.cli.state_schedule import Schedule
from roster.state.saved.folder import Folder, FolderError, Written
from roster.state.saved.manifest import MANIFEST, Manifest, SavedStore
from roster.state.saved.moments import last_before

EVERY = timedelta(minutes=10)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
    with contextlib.suppress(KeyboardInterrupt):  # the next test in this process was not told to end
        check_told()


class Exporter:
    """A group whose exports take 70 s and hold how many there were; its clock, which sends SIGTERM at the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, moments: int) -> None:
        self.begin = self.time = datetime(2026, 11, 24, 2, 0, tzinfo=UTC)
        self.left, self.count = moments, 0
        self.without: dict[int, BaseException] = {}
        monkeypatch.setattr(state_schedule, "datetime", self)
        monkeypatch.setattr(state_schedule, "time", self)

    def now(self, _zone: object) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return (self.time - self.begin).total_seconds()

    def sleep(self, seconds: float) -> None:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGTERM)
        self.time += timedelta(seconds=seconds)

    def export(self, place: str) -> tuple[Folder, Manifest]:
        self.count += 1
        self.time += timedelta(seconds=70)
        folder, table = Folder(place), pa.table({"n": [self.count]})
        written = folder.write_table("stores/a/entries/0.parquet", [table], table.schema)
        if self.count in self.without:
            raise self.without[self.count]
        store = SavedStore("g-a-changelog", 1, {}, {"entries": {"n": "int64"}}, {"entries": (written,)})
        manifest = Manifest("g", None, self.time.isoformat(), {"a": store}, {})
        folder.write(MANIFEST, manifest.encode())
        return folder, manifest


def held(folder: Folder, manifest: Manifest) -> int:
    (file,) = manifest.written
    assert isinstance(file, Written)
    (row,) = folder.read_table(file).to_pylist()
    return int(row["n"])


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def follow(exporter: Exporter, path: Path, keep: int | None) -> list[tuple[Folder, Manifest]]:
    shown: list[tuple[Folder, Manifest]] = []
    Schedule("g", str(path), keep, exporter.export).run(EVERY, shown.append)  # type: ignore[arg-type]
    return shown


def test_the_last_exports_stay_and_a_failure_costs_one_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exporter = Exporter(monkeypatch, 7)
    exporter.without = {3: Failure("the broker\nis away"), 5: UserError("group: it is gone"), 6: Failure("full")}
    (tmp_path / "notes").mkdir()
    (tmp_path / "20261124T010000Z" / "stores").mkdir(parents=True)  # of an export that was killed
    shown = follow(exporter, tmp_path, keep=3)
    assert [held(*each) for each in shown[1:]] == [2, 4, 7], "the first one is deleted"
    assert names(tmp_path) == ["20261124T021000Z", "20261124T023000Z", "20261124T030000Z", "notes"]
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" no export: ")[2] for line in told] == ["the broker is away", "group: it is gone", "full"]
    for before, expected in (
        ("2026-11-24T03:01:10+00:00", 4),
        ("2026-11-24T03:01:11+00:00", 7),
        ("2026-11-24T02:12:00+00:00", 2),
        (None, 7),
    ):
        moment = None if before is None else datetime.fromisoformat(before)
        assert held(*last_before(Folder(str(tmp_path)), moment)) == expected
    with pytest.raises(FolderError, match=r"no export before 2026-11-24T02:11:10.*; the first is 20261124T021000Z"):
        last_before(Folder(str(tmp_path)), datetime(2026, 11, 24, 2, 11, 10, tzinfo=UTC))


def test_an_export_that_is_interrupted_leaves_nothing_and_old_ones_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exporter = Exporter(monkeypatch, 9)
    exporter.without = {3: KeyboardInterrupt()}
    assert [held(*each) for each in follow(exporter, tmp_path, keep=2)] == [1, 2]
    assert names(tmp_path) == ["20261124T020000Z", "20261124T021000Z"]


def test_a_removal_that_fails_holds_up_no_export(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    delete = Folder.delete

    def fails(folder: Folder) -> None:
        if exporter.count in (2, 3):
            raise FolderError("away")
        delete(folder)

    exporter = Exporter(monkeypatch, 4)
    monkeypatch.setattr(Folder, "delete", fails)
    assert [held(*each) for each in follow(exporter, tmp_path, keep=1)[3:]] == [4]
    assert names(tmp_path) == ["20261124T023000Z"]
    assert set(capsys.readouterr().err.splitlines()) >= {
        "2026-11-24T02:11:10+00:00 older exports are not deleted: away"
    }


def test_a_mistake_in_the_command_line_ends_the_first_export(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exporter = Exporter(monkeypatch, 3)
    exporter.without = {1: UserError("group: it has no state")}
    with pytest.raises(UserError, match="it has no state"):
        follow(exporter, tmp_path / "new", None)
    assert names(tmp_path / "new") == []
    follow(Exporter(monkeypatch, 1), tmp_path / "g", None)
    for place, message in (
        (tmp_path / "g", r"--to: .* has exports of the group 'g'; name another folder"),
        (tmp_path / "g" / "20261124T020000Z", r"--to: .*Z is an export itself"),
    ):
        with pytest.raises(UserError, match=message):
            Schedule("h", str(place), None, exporter.export).run(EVERY, lambda _: None)  # type: ignore[arg-type]
    command = ["state", "export", "g", "--to", str(tmp_path / "x")]
    for wrong, message in (
        (["--every", "10"], "'10' is not a number with s, m, h or d, such as 10m"),
        (["--every", "0m"], "'0m' is not a number"),
        (["--keep", "3"], "--keep: is for --every"),
        (["--every", "1m", "--keep", "0"], "--keep"),
        (["--every", "1m", "--to", "ftp://x/y"], "--to: ftp://x/y"),
    ):
        assert run([*command, *wrong]) == 2
        assert message in capsys.readouterr().err
    command = ["state", "import", str(tmp_path / "g"), "--group", "new", "--before"]
    for before, message in (
        ("then", "--before: 'then' is not a time like 2026-01-31T12:00"),
        ("2026-11-24T02:00", "--before: .* has no export before 2026-11-24T02:00:00+00:00"),
    ):
        assert run([*command, before]) == 2
        assert message.split(".*")[-1] in capsys.readouterr().err
