"""The commit log keeps its promise whatever dies, and wherever another writer gets in between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.model import TopicPartition
from roster.spark.batch import Owner, Range
from roster.spark.commitlog import CHECKPOINT, STAGING, CommitLog, folder
from roster.spark.errors import PipelineError, SinkFencedError
from roster.spark.storage import LocalStorage, storage

if TYPE_CHECKING:
    from collections.abc import Callable

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B = Owner("g", 1, "member-a"), Owner("g", 2, "member-b")
LOG_END = {T0: 30, T1: 20}


class Crash(BaseException):
    """The process is gone: nothing may catch this."""


class Scripted:
    """A storage on which `before`/`after` of the operation with number `at` something happens."""

    def __init__(self, inner: LocalStorage, at: int, act: Callable[[], None], *, after: bool) -> None:
        self._inner, self._at, self._act, self._after = inner, at, act, after
        self.operations = 0
        self.uri = inner.uri

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            number = self.operations
            self.operations += 1
            if number == self._at and not self._after:
                self._act()
            result = operation(*arguments)
            if number == self._at and self._after:
                self._act()
            return result

        return call


class Writer:
    """Works like a pipeline: claims, then copies ranges of offsets into files until the logs' ends are reached."""

    def __init__(self, root: Path, owner: Owner, place: Any = None, *, step: int = 10) -> None:
        self.root, self.owner, self.step = root, owner, step
        self.log = CommitLog(place or LocalStorage(str(root)), checkpoint_every=2)

    def stage(self, ranges: dict[TopicPartition, Range]) -> tuple[str, list[str]]:
        stage = self.log.stage(ranges)
        files = []
        for partition, span in ranges.items():
            file = self.root / folder(stage) / f"part-{partition.partition}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{partition} {offset}\n" for offset in range(*span)))
            files.append(file.name)
        return stage, files

    def work(self, partitions: tuple[TopicPartition, ...] = (T0, T1)) -> None:
        self.log.open()
        while True:
            positions = self.log.claim(partitions, self.owner)
            ranges = {
                p: Range(positions.get(p, 0), min(positions.get(p, 0) + self.step, LOG_END[p])) for p in partitions
            }
            ranges = {p: span for p, span in ranges.items() if span.size}
            if not ranges:
                return
            stage, files = self.stage(ranges)
            self.log.commit(self.owner, ranges, stage, files, sum(span.size for span in ranges.values()))


def visible(root: Path) -> list[str]:
    """What a plain reader sees: every file outside folders that start with an underscore or dot."""
    lines = []
    for path in root.rglob("*"):
        if path.is_file() and not any(part[0] in "._" for part in path.relative_to(root).parts):
            lines += path.read_text().splitlines()
    return sorted(lines)


ALL = sorted(f"{partition} {offset}" for partition, end in LOG_END.items() for offset in range(end))


def operations_of_a_run(root: Path) -> int:
    place = Scripted(LocalStorage(str(root)), -1, lambda: None, after=False)
    Writer(root, A, place).work()
    assert visible(root) == ALL
    return place.operations


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_operation_loses_and_doubles_nothing(tmp_path: Path, after: bool) -> None:
    for at in range(operations_of_a_run(tmp_path / "whole")):
        root = tmp_path / f"crash-{at}"

        def die() -> None:
            raise Crash

        with pytest.raises(Crash):
            Writer(root, A, Scripted(LocalStorage(str(root)), at, die, after=after)).work()
        seen = visible(root)
        assert len(seen) == len(set(seen)), "a reader never sees a row twice"
        Writer(root, B).work()
        assert visible(root) == ALL, f"crash at operation {at}"
        assert list((root / STAGING).iterdir()) == [], "nothing is left staged"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_paused_writer_that_wakes_up_after_a_take_over_writes_nothing_more(tmp_path: Path, after: bool) -> None:
    for at in range(operations_of_a_run(tmp_path / "whole")):
        root = tmp_path / f"pause-{at}"
        others: list[list[str]] = []

        def take_over(root: Path = root, others: list[list[str]] = others) -> None:
            other = Writer(root, B)
            other.log.open()
            other.log.claim((T0, T1), B)
            others.append(visible(root))

        zombie = Writer(root, A, Scripted(LocalStorage(str(root)), at, take_over, after=after))
        claim = zombie.log.claim

        def claim_while_member(*arguments: Any, others: list[list[str]] = others, claim: Any = claim) -> Any:
            positions = claim(*arguments)
            if others:
                raise SinkFencedError("the group has told the zombie by now")
            return positions

        zombie.log.claim = claim_while_member  # type: ignore[method-assign]
        try:
            zombie.work()
        except SinkFencedError:
            assert visible(root) == others[0], f"the zombie wrote after the take-over at operation {at}"
        Writer(root, B).work()
        assert visible(root) == ALL, f"pause at operation {at}"


def test_two_writers_of_different_partitions_interleave(tmp_path: Path) -> None:
    first, second = Writer(tmp_path, A), Writer(tmp_path, B)
    first.log.open()
    second.log.open()
    first.log.claim((T0,), A)
    second.log.claim((T1,), B)
    one, two = {T0: Range(0, 10)}, {T1: Range(0, 5)}
    staged, staged_too = first.stage(one), second.stage(two)
    assert second.log.commit(B, two, *staged_too, 5).version == 3
    assert first.log.commit(A, one, *staged, 10).version == 4, "the version was taken, the ranges were not"
    assert CommitLogOf(tmp_path).positions == {T0: 10, T1: 5}


def CommitLogOf(root: Path) -> CommitLog:
    log = CommitLog(LocalStorage(str(root)))
    log.open()
    return log


def test_a_writer_without_a_claim_or_at_the_wrong_offset_is_fenced_and_its_files_are_gone(tmp_path: Path) -> None:
    writer = Writer(tmp_path, A)
    writer.log.open()
    for claim, span, why in [(False, Range(0, 5), "taken over by nobody"), (True, Range(5, 9), "stands at 0")]:
        if claim:
            writer.log.claim((T0,), A)
            writer.log.commit(A, {T0: Range(0, 0)}, *writer.stage({}), 0)
        stage, files = writer.stage({T0: span})
        with pytest.raises(SinkFencedError, match=why):
            writer.log.commit(A, {T0: span}, stage, files, span.size)
        assert not (tmp_path / folder(stage)).exists()
    assert visible(tmp_path) == []


def test_what_another_kind_of_member_did_and_committed_is_passed_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path, A)
    writer.work()
    again = CommitLogOf(tmp_path)
    assert again.claim((T0, T1), B, {T0: 25, T1: 28}) == {T0: 30, T1: 28}
    assert again.claim((T0, T1), B, {T0: 25, T1: 28}) == {T0: 30, T1: 28}
    assert CommitLogOf(tmp_path).positions == {T0: 30, T1: 28}
    span = {T1: Range(28, 29)}
    again.commit(B, span, *Writer(tmp_path, B).stage(span), 1)
    assert visible(tmp_path) == sorted([*ALL, "t-1 28"])


def test_opening_reads_only_what_follows_the_checkpoint(tmp_path: Path) -> None:
    Writer(tmp_path, A, step=2).work()
    place = Scripted(LocalStorage(str(tmp_path)), -1, lambda: None, after=False)
    log = CommitLog(place)  # type: ignore[arg-type]
    log.open()
    assert log.positions == LOG_END
    assert log.rows == sum(LOG_END.values())
    assert place.operations <= 6, (
        "one checkpoint, at most two entries, one look past the end, one at the staging folder"
    )


def test_another_group_is_refused(tmp_path: Path) -> None:
    Writer(tmp_path, A).work()
    with pytest.raises(PipelineError, match="holds the results of group 'g', not of 'other'"):
        Writer(tmp_path, Owner("other", 1, "x")).work()


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": 99}', b"\xff"])
def test_a_damaged_log_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    Writer(tmp_path, A).work()
    (tmp_path / "_roster/log" / f"{99:020}.json").write_bytes(b"not reached")
    (tmp_path / CHECKPOINT).unlink()
    (tmp_path / "_roster/log" / f"{2:020}.json").write_bytes(data)
    with pytest.raises(PipelineError, match="not an entry of a commit log"):
        CommitLogOf(tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(data)
    with pytest.raises(PipelineError, match="is damaged"):
        CommitLogOf(tmp_path)


def test_a_store_that_cannot_create_if_absent_is_refused() -> None:
    with pytest.raises(PipelineError, match="s3a:// cannot create a file only if it is absent"):
        storage("s3a://bucket/path")


def test_published_names_keep_partition_folders_and_sort_in_commit_order(tmp_path: Path) -> None:
    writer = Writer(tmp_path, A)
    writer.log.open()
    writer.log.claim((T0,), A)
    stage = writer.log.stage({T0: Range(0, 1)})
    file = tmp_path / folder(stage) / "day=1" / "part-00000-abc.c000.snappy.parquet"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    writer.log.commit(A, {T0: Range(0, 1)}, stage, ["day=1/part-00000-abc.c000.snappy.parquet"], 1)
    assert (tmp_path / "day=1" / "part-0000000002-00000.c000.snappy.parquet").exists()
