"""Small files of appended tables are merged: each version has each row once, whoever writes, dies or merges as well."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table.metadata import TableMetadataV2

from roster.sinks import delta, iceberg, small_files, table
from roster.sinks.small_files import FAN, SECONDS, SmallFiles
from roster.sinks.tasks.parquet import WrittenFile
from roster.spark import SinkFencedError
from tests.examples_tried import examples
from tests.sinks.table_places import FILES, T0, T1, DeltaPlace, IcebergPlace, Place, batch, opened, plain, rows
from tests.sinks.table_worker import GROUP, SCHEMA, forking, uncommitted, work

if TYPE_CHECKING:
    from pathlib import Path

    from roster.sinks.table import TableSink

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=FILES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return FILES[request.param](str(tmp_path))


def append(sink: Any, at: int, count: int = 2) -> None:
    """Commit the next offsets of T0 and T1, and wait for what the sink's thread does."""
    each = batch({T0: (at, at + count), T1: (at, at + count)})
    sink.commit(uncommitted(sink, each), each)
    settle(sink)


def settle(sink: TableSink[Any]) -> None:
    if sink._background is not None:
        sink._later(lambda: None).result()


def versions(place: Place) -> list[list[tuple[int, int, int]]]:
    """The rows of each version that is there."""
    newest: Any = place.table()  # type: ignore[attr-defined]
    found = []
    if isinstance(place, DeltaPlace):
        for version in range(1, newest.version() + 1):
            newest.load_as_version(version)
            found.append(newest.to_pyarrow_table())
    else:
        found = [newest.scan(snapshot_id=each.snapshot_id).to_arrow() for each in newest.snapshots()]
    return [sorted((r["partition"], r["offset"], r["shop"]) for r in each.to_pylist()) for each in found]


def test_many_commits_leave_few_files_and_each_version_has_each_row_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "FAN", 4)
    sink: Any = opened(place.sink(), T0, T1)
    commits = examples(50, quick=18)
    for number in range(commits):
        append(sink, 2 * number)
    assert rows(place) == plain({0: 2 * commits, 1: 2 * commits})
    assert sink.positions(GROUP, [T0, T1]) == {T0: 2 * commits, T1: 2 * commits}
    # A batch has two files here; of the commits and of each level there are at most those of one merge, and one behind.
    assert len(place.live_files()) <= 2 * 5 + 2 * 4
    seen = versions(place)
    assert all(found == plain({0: len(found) // 2, 1: len(found) // 2}) for found in seen)
    assert [len(found) for found in seen] == sorted(len(found) for found in seen)


def test_files_lie_in_the_tables_partitions_behind_a_merge(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    sink: Any = opened(place.sink(partition_by=["shop"]), T0, T1)
    for number in range(9):
        append(sink, 3 * number, 3)
    assert rows(place) == plain({0: 27, 1: 27})
    assert len(place.live_files()) <= 2 * 3 + 3 * 6, "two merges with a file a partition, and three commits with six"
    newest: Any = place.table()  # type: ignore[attr-defined]
    if isinstance(place, DeltaPlace):
        found = newest.to_pyarrow_table(filters=[("shop", "=", 1)])
    else:
        found = newest.scan(row_filter="shop = 1").to_arrow()
    assert sorted(found["offset"].to_pylist()) == sorted([*range(1, 27, 3)] * 2)


def until_merging(sink: Any) -> int:
    """Append until a merge is made and not committed yet; return the next offset."""
    at = 0
    while sink._merging is None:
        append(sink, at)
        at += 2
    settle(sink)
    return at


def test_a_merge_counts_whoever_owns_the_partitions_by_now(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    zombie: Any = opened(place.sink(), T0, T1, member="old")
    at = until_merging(zombie)
    owner: Any = opened(place.sink(), T0, T1, member="new")
    append(owner, at)
    before = place.live_files()
    zombie.check_target()
    assert len(place.live_files()) < len(before)
    append(owner, at + 2)
    assert rows(place) == plain({0: at + 4, 1: at + 4})
    assert owner.positions(GROUP, [T0, T1]) == {T0: at + 4, T1: at + 4}


def test_a_merge_is_dropped_if_its_files_were_replaced_by_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    sink: Any = opened(place.sink(), T0, T1)
    at = until_merging(sink)
    made = {file.name for file in sink._merging.written_files.result()}
    place.table().delete("shop = 1")  # type: ignore[attr-defined]
    sink.check_target()
    assert not made & place.files()
    assert rows(place) == [row for row in plain({0: at, 1: at}) if row[2] != 1]
    append(sink, at)
    assert rows(place) == [row for row in plain({0: at + 2, 1: at + 2}) if row[2] != 1 or row[1] >= at]


def test_a_merge_whose_answer_is_lost_counts_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    sink: Any = opened(place.sink(), T0, T1)
    at = until_merging(sink)
    commit = type(sink)._try_commit

    def lossy(*arguments: Any) -> None:
        commit(*arguments)
        monkeypatch.undo()
        raise table.CommitLostError("the connection broke")

    monkeypatch.setattr(type(sink), "_try_commit", lossy)
    sink.check_target()
    assert len(place.live_files()) == 1 + 2 * (at // 2 - 3)
    assert rows(place) == plain({0: at, 1: at})


def test_files_of_a_merge_that_was_not_committed_go_when_the_sink_is_closed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    sink: Any = opened(place.sink(), T0, T1)
    at = until_merging(sink)
    sink.close()
    assert place.files() == place.live_files()
    assert rows(place) == plain({0: at, 1: at})


def test_a_table_that_was_there_keeps_its_versions(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    sink: Any = opened(place.sink(), T0, T1)
    append(sink, 0)
    sink.close()
    sink = opened(place.sink(), T0, T1)
    for number in range(1, 12):
        append(sink, 2 * number)
    assert any(merges(place))
    found: Any = place.table()  # type: ignore[attr-defined]
    properties = found.metadata().configuration if isinstance(place, DeltaPlace) else found.properties
    assert not {name for name in properties if "etention" in name or "snapshot-age" in name}
    told = [each.message for each in caplog.records if "batches as frequent as these" in each.message]
    assert len(told) == 1


def test_a_writer_that_is_alone_reads_the_table_once_a_batch_at_most(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_RECENT_SECONDS", 1000.0)
    sink: Any = opened(place.sink(), T0, T1)
    append(sink, 0)
    other: Any = opened(place.sink(), T0, T1, member="other")
    read = type(sink)._read
    readers: list[Any] = []

    def counted(self: Any) -> Any:
        readers.append(self)
        return read(self)

    monkeypatch.setattr(type(sink), "_read", counted)
    for number in range(1, 6):
        append(sink, 2 * number)
    assert readers == [sink] * (5 if isinstance(place, DeltaPlace) else 0)
    each = batch({T0: (12, 14), T1: (12, 14)})
    files = uncommitted(sink, each)
    append(other, 12)
    with pytest.raises(SinkFencedError, match="t-0 stands at 14, not at 12"):
        sink.commit(files, each)
    assert rows(place) == plain({0: 14, 1: 14})


def test_files_of_a_batch_whose_commit_got_no_answer_stay(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then its version may be gone, and the positions may be those of another one."""
    sink: Any = opened(place.sink(), T0, T1)
    append(sink, 0)
    commit = type(sink)._try_commit

    def unanswered(*arguments: Any) -> None:
        commit(*arguments)
        raise table.CommitLostError("the gateway gave up", is_told=False)

    monkeypatch.setattr(type(sink), "_try_commit", unanswered)
    monkeypatch.setattr(type(sink), "_has", lambda *_: False)
    with pytest.raises(SinkFencedError):
        append(sink, 2)
    assert rows(place) == plain({0: 4, 1: 4})


def test_a_delta_table_is_tidied_once_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink: Any = opened(DeltaPlace(str(tmp_path)).sink(), T0, T1)
    append(sink, 0)
    sink._has_merged, goes_on, calls = True, threading.Event(), []
    monkeypatch.setattr(delta, "_MERGED_TIDYING_SECONDS", 0.0)
    monkeypatch.setattr(sink, "_tidied_up", lambda: calls.append(goes_on.wait(60)))
    for _ in range(5):
        sink._tidy()
    goes_on.set()
    settle(sink)
    assert calls == [True]
    sink._tidy()
    settle(sink)
    assert calls == [True, True]


SIZE = 2


def _work(kind: str, folder: str, member: str, end: Any) -> None:
    small_files.FAN = 3
    work(FILES[kind](folder).sink, member, [0, 1], lambda: end.value, SIZE)


@pytest.mark.process
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.gate
def test_kills_amid_merges_of_two_applications_with_one_table(kind: str, tmp_path: Path) -> None:
    context = forking()
    place, chance = FILES[kind](str(tmp_path)), random.Random(7)
    end = context.Value("q", 1_000_000, lock=False)
    sink = opened(place.sink())
    sink.task_writer(batch({T0: (0, 1)}), SCHEMA)  # type: ignore[attr-defined]

    def start(number: int) -> Any:
        process = context.Process(target=_work, args=(kind, str(tmp_path), f"m{number}", end))
        process.start()
        return process

    running = [start(0), start(1)]
    for number in range(2, 6):
        victim = chance.choice(running)
        victim.join(chance.uniform(0.3, 1.0))
        assert victim.exitcode is None
        victim.kill()
        victim.join()
        running.remove(victim)
        running.append(start(number))
    end.value = max(sink.positions(GROUP, [T0, T1]).values(), default=0) + 10 * SIZE
    for process in running:
        process.join()
        assert process.exitcode == 0
    found = {p.partition: at for p, at in sink.positions(GROUP, [T0, T1]).items()}
    assert rows(place) == plain(found)
    assert any(made for made in merges(place)), "something was merged"


def merges(place: Place) -> list[bool]:
    """Whether each commit was a merge."""
    newest: Any = place.table()  # type: ignore[attr-defined]
    if isinstance(place, DeltaPlace):
        return ["group" not in entry["roster"] for entry in newest.history() if "roster" in entry]
    return [each.summary.operation.value == "replace" for each in newest.snapshots()]


# -- Delta -------------------------------------------------------------------------------------------------------------


def test_a_delta_table_keeps_its_log_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    place = DeltaPlace(str(tmp_path))
    sink: Any = opened(place.sink(), T0, T1)
    for number in range(6):
        append(sink, 2 * number)
    properties = place.table().metadata().configuration
    assert properties["delta.logRetentionDuration"] == properties["delta.deletedFileRetentionDuration"]
    later = time.monotonic() + 1000
    monkeypatch.setattr(time, "monotonic", lambda: later)
    append(sink, 12)
    assert list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet"))
    assert rows(place) == plain({0: 14, 1: 14})


def test_a_delta_tables_own_retention_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    place = DeltaPlace(str(tmp_path))
    sink: Any = opened(place.sink(), T0, T1)
    append(sink, 0)
    place.table().alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 7 days"})
    for number in range(1, 8):
        append(sink, 2 * number)
    assert any(merges(place))
    properties = place.table().metadata().configuration
    assert properties == {"delta.deletedFileRetentionDuration": "interval 7 days"}


def test_a_delta_table_with_deletion_vectors_is_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that such a vector takes from a file would come back."""
    monkeypatch.setattr(small_files, "FAN", 3)
    place = DeltaPlace(str(tmp_path))
    sink: Any = opened(place.sink(), T0, T1)
    at = until_merging(sink)
    monkeypatch.setattr(delta, "_is_unread", lambda table: True)
    for number in range(6):
        append(sink, at + 2 * number)
    assert not any(merges(place))
    assert place.files() == place.live_files()


# -- Iceberg -----------------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_an_iceberg_table_forgets_old_snapshots_and_keeps_every_groups_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    place = IcebergPlace(str(tmp_path))
    append(opened(place.sink(), T0, T1), 0, 1)
    first = place.table().current_snapshot().summary["roster.positions.g"]
    with place.table().transaction() as transaction:
        age, least = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
        transaction.set_properties({age: "0", least: "4"})
        update = transaction.update_snapshot(snapshot_properties={"roster.positions.other": first})
        with update.fast_append():
            pass
    sink: Any = opened(place.sink(), T0, T1)
    for at in range(1, 31):
        append(sink, at, 1)
    assert len(place.table().snapshots()) <= 4 + 4, "those since the last merge are there too"
    assert rows(place) == plain({0: 31, 1: 31})
    assert sink.positions("other", [T0, T1]) == {T0: 1, T1: 1}
    assert sink.positions(GROUP, [T0, T1]) == {T0: 31, T1: 31}
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    later = time.time() * 1000 + 2 * iceberg._OLD_MS
    monkeypatch.setattr(iceberg, "wall_ms", lambda: int(later))
    append(sink, 31, 1)
    settle(sink)
    gone = {path for path in before if not path.exists()}
    assert {path.suffix for path in gone} >= {".parquet", ".avro"}
    assert rows(place) == plain({0: 32, 1: 32})
    assert versions(place)[0]


def test_an_iceberg_table_of_this_run_keeps_snapshots_for_a_minute_and_their_files_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    place = IcebergPlace(str(tmp_path))
    sink: Any = opened(place.sink(), T0, T1)
    for number in range(12):
        append(sink, 2 * number)
    before, files = place.table(), place.files()
    assert len(before.snapshots()) >= 12
    later = time.time() * 1000 + 2 * iceberg._KEPT_MS
    monkeypatch.setattr(iceberg, "wall_ms", lambda: int(later))
    for number in range(12, 18):
        append(sink, 2 * number)
    assert len(place.table().snapshots()) <= 4
    assert files <= place.files()
    assert before.scan().to_arrow().num_rows == 48, "who has begun to read finds the files"
    assert rows(place) == plain({0: 36, 1: 36})


@pytest.mark.gate
def test_a_branch_keeps_the_files_that_merges_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    place = IcebergPlace(str(tmp_path))
    sink: Any = opened(place.sink(), T0, T1)
    append(sink, 0)
    append(sink, 2)
    start = place.table().current_snapshot().snapshot_id
    with place.table().manage_snapshots() as changes:
        changes.create_branch(start, "audit")
    for number in range(2, 8):
        append(sink, 2 * number)
    mine = place.table().scan(snapshot_id=start).to_arrow()
    place.table().append(mine, branch="audit")
    for passed in (2 * iceberg._KEPT_MS, 2 * iceberg._OLD_MS):
        at = int(time.time() * 1000 + passed)
        monkeypatch.setattr(iceberg, "wall_ms", lambda at=at: at)
        for number in range(8, 14) if passed < iceberg._OLD_MS else range(14, 20):
            append(sink, 2 * number)
    assert place.table().scan(snapshot_id=place.table().refs()["audit"].snapshot_id).to_arrow().num_rows == 16
    assert rows(place) == plain({0: 40, 1: 40})


def test_a_commit_copies_an_iceberg_tables_snapshots_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg does so each time that a transaction looks at its table, which is most of a commit."""
    sink: Any = opened(IcebergPlace(str(tmp_path)).sink(), T0, T1)
    append(sink, 0)
    copy, copies = TableMetadataV2.model_copy, []

    def counted(self: Any, *, deep: bool = False, **more: Any) -> Any:
        copies.append(deep)
        return copy(self, deep=deep, **more)

    monkeypatch.setattr(TableMetadataV2, "model_copy", counted)
    append(sink, 2)
    assert 1 <= sum(copies) <= 3


def test_merges_of_an_iceberg_table_are_replacements_and_count_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "FAN", 3)
    place = IcebergPlace(str(tmp_path))
    sink: Any = opened(place.sink(), T0, T1)
    at = until_merging(sink)
    sink.check_target()
    newest = place.table().current_snapshot()
    assert newest.summary.operation.value == "replace"
    assert newest.summary["total-data-files"] == str(len(place.live_files()))
    assert newest.summary["total-records"] == str(2 * at)
    assert newest.summary["roster.positions.g"] == f'{{"t":{{"0":{at},"1":{at}}}}}'


# -- what is merged ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("between", "merged"), [(SECONDS / 2, True), (2 * SECONDS, False)])
def test_only_frequent_commits_are_merged(monkeypatch: pytest.MonkeyPatch, between: float, merged: bool) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    found, most = SmallFiles(256 << 20), 0
    for number in range(600):
        found.add([WrittenFile(f"{number}", 8, 2000)], None)
        due = found.due()
        assert merged or due is None
        if due is not None:
            parts, level = due
            found.add([WrittenFile(f"{number} merged", 8 * len(parts), 2000)], None, level + 1)
        most = max(most, sum(len(parts) for parts in found._levels))
        now += between
    assert most <= 2 * FAN


def test_large_commits_stay_as_they_are() -> None:
    found = SmallFiles(FAN * 1000)
    for number in range(2 * FAN):
        found.add([WrittenFile(f"{number}", 8, 600), WrittenFile(f"{number} too", 8, 400)], None)
    assert found.due() is None
