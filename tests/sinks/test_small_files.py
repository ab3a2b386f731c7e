"""Small files of Delta tables are compacted while batches go on: each version has each row once, whoever dies."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table.metadata import TableMetadataV2

from roster.sinks import delta, table
from roster.sinks.upsert import file_rows
from roster.spark import SinkFencedError
from tests.clocks import patch_time
from tests.examples_tried import examples
from tests.sinks.table_places import FILES, T0, T1, DeltaPlace, IcebergPlace, Place, batch, opened, plain, rows
from tests.sinks.table_worker import GROUP, SCHEMA, forking, uncommitted, work

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=FILES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return FILES[request.param](str(tmp_path))


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaPlace:
    """A table that is compacted after every third commit."""
    monkeypatch.setattr(delta, "_COMMITS", 3)
    return DeltaPlace(str(tmp_path))


def append(sink: Any, at: int, count: int = 2) -> None:
    """Commit the next offsets of T0 and T1, and wait for what the sink's thread does."""
    each = batch({T0: (at, at + count), T1: (at, at + count)})
    sink.commit(uncommitted(sink, each), each)
    settle(sink)


def settle(sink: Any) -> None:
    if getattr(sink, "_tidying", None) is not None:
        sink._tidying.result()


def compactions(place: DeltaPlace) -> int:
    return sum("compaction" in (entry.get("roster") or {}) for entry in place.table().history())


def test_many_commits_leave_few_files_and_each_version_has_each_row_once(quick: DeltaPlace) -> None:
    sink: Any = opened(quick.sink(), T0, T1)
    commits = examples(50, quick=18)
    for number in range(commits):
        append(sink, 2 * number)
    assert rows(quick) == plain({0: 2 * commits, 1: 2 * commits})
    assert sink.positions(GROUP, [T0, T1]) == {T0: 2 * commits, T1: 2 * commits}
    assert len(quick.live_files()) <= 2 * 3 + 1, "a commit has two files"
    newest, seen = quick.table(), []
    for version in range(1, newest.version() + 1):
        newest.load_as_version(version)
        seen.append(sorted((r["partition"], r["offset"], r["shop"]) for r in newest.to_pyarrow_table().to_pylist()))
    assert all(found == plain({0: len(found) // 2, 1: len(found) // 2}) for found in seen)
    assert [len(found) for found in seen] == sorted(len(found) for found in seen)
    assert compactions(quick) == commits // 3


def test_files_lie_in_the_tables_partitions_behind_a_compaction(quick: DeltaPlace) -> None:
    sink: Any = opened(quick.sink(partition_by=["shop"]), T0, T1)
    for number in range(9):
        append(sink, 3 * number, 3)
    assert rows(quick) == plain({0: 27, 1: 27})
    assert len(quick.live_files()) == 3
    found = quick.table().to_pyarrow_table(filters=[("shop", "=", 1)])
    assert sorted(found["offset"].to_pylist()) == sorted([*range(1, 27, 3)] * 2)


def test_files_have_the_sinks_compression(quick: DeltaPlace, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for compression in ("none", "zstd"):
        place = DeltaPlace(str(tmp_path / compression))
        sink: Any = opened(place.sink(compression=compression), T0, T1)
        for number in range(3):
            append(sink, 2 * number)
        (name,) = place.live_files()
        (path,) = (path for path in tmp_path.rglob("*.parquet") if path.name == name)
        kind = pq.read_metadata(path).row_group(0).column(0).compression
        assert kind == {"none": "UNCOMPRESSED", "zstd": "ZSTD"}[compression]


def test_batches_go_on_beside_a_compaction_of_a_writer_without_partitions(quick: DeltaPlace) -> None:
    zombie: Any = opened(quick.sink(), T0, T1, member="old")
    append(zombie, 0)
    owner: Any = opened(quick.sink(), T0, T1, member="new")
    append(owner, 2)
    zombie._tidied_up(is_compacted=True, is_tidied=False)
    assert compactions(quick) == 1
    append(owner, 4)
    assert rows(quick) == plain({0: 6, 1: 6})
    assert owner.positions(GROUP, [T0, T1]) == {T0: 6, T1: 6}


def test_a_compaction_that_is_refused_is_a_warning(
    quick: DeltaPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(delta, "file_rows", refuse)
    sink: Any = opened(quick.sink(), T0, T1)
    for number in range(4):
        append(sink, 2 * number)
    assert rows(quick) == plain({0: 8, 1: 8})
    assert "it is tidied up later: OSError: the disk is full" in caplog.text


@pytest.mark.parametrize("does", ["compacts", "optimizes", "appends"])
def test_a_compaction_beside_another_writer_has_each_row_once(
    quick: DeltaPlace, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    sink: Any = opened(quick.sink(), T0, T1)
    other: Any = opened(quick.sink(), T0, T1, member="other")
    append(sink, 0)
    append(other, 2)
    begun = [
        {
            "compacts": lambda: other._tidied_up(is_compacted=True, is_tidied=False),
            "optimizes": quick.table().optimize.compact,
            "appends": lambda: append(other, 4),
        }[does]
    ]

    def first_the_other(*arguments: Any) -> Any:
        if begun:
            begun.pop()()
        return file_rows(*arguments)

    monkeypatch.setattr(delta, "file_rows", first_the_other)
    sink._tidied_up(is_compacted=True, is_tidied=False)
    end = 6 if does == "appends" else 4
    assert rows(quick) == plain({0: end, 1: end})
    assert compactions(quick) == (0 if does == "optimizes" else 1)
    assert len(quick.live_files()) == (3 if does == "appends" else 1)


def test_a_compaction_whose_commit_got_no_answer_keeps_its_file(
    quick: DeltaPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake.exceptions import CommitFailedError

    write = delta.DeltaSink._write

    def unanswered(self: Any, *arguments: Any, is_change: bool = True) -> None:
        write(self, *arguments, is_change=is_change)
        if not is_change:
            raise CommitFailedError("the gateway gave up")

    monkeypatch.setattr(delta.DeltaSink, "_write", unanswered)
    sink: Any = opened(quick.sink(), T0, T1)
    for number in range(4):
        append(sink, 2 * number)
    assert rows(quick) == plain({0: 8, 1: 8})
    assert compactions(quick) == 1


def test_a_table_that_was_there_keeps_its_versions(quick: DeltaPlace, caplog: pytest.LogCaptureFixture) -> None:
    sink: Any = opened(quick.sink(), T0, T1)
    append(sink, 0)
    sink.close()
    sink = opened(quick.sink(), T0, T1)
    for number in range(1, 12):
        append(sink, 2 * number)
    assert compactions(quick)
    assert not [name for name in quick.table().metadata().configuration if "etention" in name]
    assert len([each for each in caplog.records if "batches as frequent as these" in each.message]) == 1


def test_slow_batches_are_left_alone(quick: DeltaPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_APART", 0.0)
    sink: Any = opened(quick.sink(), T0, T1)
    for number in range(6):
        append(sink, 2 * number)
    assert not compactions(quick)


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
    sink._compactions, goes_on, calls = 1, threading.Event(), []
    monkeypatch.setattr(delta, "_QUICK_TIDYING_SECONDS", 0.0)
    monkeypatch.setattr(sink, "_tidied_up", lambda **_: calls.append(goes_on.wait(60)))
    for _ in range(5):
        sink._tidy()
    goes_on.set()
    settle(sink)
    assert calls == [True]
    sink._tidy()
    settle(sink)
    assert calls == [True, True]


SIZE = 2


def _work(folder: str, member: str, end: Any) -> None:
    delta._COMMITS = 3
    work(DeltaPlace(folder).sink, member, [0, 1], lambda: end.value, SIZE)


@pytest.mark.process
@pytest.mark.gate
def test_kills_amid_compactions_of_two_applications_with_one_table(tmp_path: Path) -> None:
    context = forking()
    place, chance = DeltaPlace(str(tmp_path)), random.Random(7)
    end = context.Value("q", 1_000_000, lock=False)
    sink = opened(place.sink())
    sink.task_writer(batch({T0: (0, 1)}), SCHEMA)  # type: ignore[attr-defined]

    def start(number: int) -> Any:
        process = context.Process(target=_work, args=(str(tmp_path), f"m{number}", end))
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
    assert compactions(place)


def test_a_delta_table_keeps_its_log_short(quick: DeltaPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink: Any = opened(quick.sink(), T0, T1)
    for number in range(6):
        append(sink, 2 * number)
    properties = quick.table().metadata().configuration
    assert properties["delta.logRetentionDuration"] == properties["delta.deletedFileRetentionDuration"]
    later = time.monotonic() + 1000
    patch_time(monkeypatch, delta, table, monotonic=lambda: later)
    append(sink, 12)
    assert list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet"))
    assert rows(quick) == plain({0: 14, 1: 14})


def test_a_delta_tables_own_retention_stays(quick: DeltaPlace) -> None:
    sink: Any = opened(quick.sink(), T0, T1)
    append(sink, 0)
    quick.table().alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 7 days"})
    for number in range(1, 8):
        append(sink, 2 * number)
    assert compactions(quick)
    properties = quick.table().metadata().configuration
    assert properties == {"delta.deletedFileRetentionDuration": "interval 7 days"}


def test_a_delta_table_with_deletion_vectors_is_not_compacted(
    quick: DeltaPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that such a vector takes from a file would come back."""
    monkeypatch.setattr(delta, "_is_unread", lambda table: True)
    sink: Any = opened(quick.sink(), T0, T1)
    for number in range(6):
        append(sink, 2 * number)
    assert not compactions(quick)


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
