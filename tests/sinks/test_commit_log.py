"""The commit log keeps its promise whatever dies, and wherever another writer gets in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.model import TopicPartition
from roster.pipeline.batch import Owner, Range
from roster.pipeline.errors import PipelineError, SinkFencedError
from roster.sinks.commit_log import CHECKPOINTS, LOG, STAGING, UNCOMMITTED, CommitLog, Entry
from roster.sinks.parquet import ParquetSink
from roster.sinks.storage import Storage
from tests.examples_tried import some

if TYPE_CHECKING:
    from collections.abc import Callable

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B = Owner("g", 1, "member-a"), Owner("g", 2, "member-b")
LOG_END = {T0: 30, T1: 20}


class Crash(BaseException):
    """The process is gone: nothing may catch this."""


class Scripted:
    """A storage on which `before`/`after` of the operation with number `at` something happens."""

    def __init__(self, inner: Storage, at: int, act: Callable[[], None], *, after: bool) -> None:
        self._inner, self._at, self._act, self._after = inner, at, act, after
        self.operations = 0
        self.acted = False
        self.uri = inner.uri

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            number = self.operations
            self.operations += 1
            here, self.acted = number == self._at, self.acted or number == self._at
            if here and not self._after:
                self._act()
            result = operation(*arguments)
            if here and self._after:
                self._act()
            return result

        return call


class Memory:
    """A storage of a few dictionaries: fast enough to stop at every operation of long histories."""

    uri = "memory:/out"

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def prepare(self, name: str) -> None:
        pass

    def create(self, name: str, data: bytes) -> bool:
        return self.content.setdefault(name, data) is data

    def read(self, name: str) -> bytes | None:
        return self.content.get(name)

    def children(self, name: str) -> list[str]:
        base = "" if name == "." else f"{name}/"
        return sorted({n.removeprefix(base).partition("/")[0] for n in self.content if n.startswith(base)})

    def publish(self, source: str, target: str) -> None:
        if source in self.content:
            self.content[target] = self.content.pop(source)

    def sync(self, name: str) -> None:
        pass

    def remove(self, name: str) -> None:
        for found in [n for n in self.content if n == name or n.startswith(f"{name}/")]:
            del self.content[found]

    def visible(self) -> list[str]:
        """The rows of every file below the root outside of the log."""
        names = [name for name in self.content if not name.startswith("_roster/")]
        return sorted(line for name in names for line in self.content[name].decode().splitlines())


def copy(log: CommitLog, place: Memory, owner: Owner, step: int, most: int = 1000) -> None:
    """Claim T0 and copy it into files, at most so many batches, as a pipeline does."""
    log.prepare()
    log.open()
    for _ in range(most):
        at = log.claim((T0,), owner).get(T0, 0)
        span = Range(at, min(at + step, LOG_END[T0]))
        if not span.size:
            return
        folder = log.new_folder({T0: span})
        name = f"part.txt{UNCOMMITTED}"
        place.create(f"{folder}/{name}", "".join(f"{T0} {offset}\n" for offset in range(*span)).encode())
        log.commit(owner, {T0: span}, folder, [name], span.size)


T0_ROWS = sorted(f"{T0} {offset}" for offset in range(LOG_END[T0]))


class Writer:
    """Works like a pipeline: claims, then copies ranges of offsets into files until the logs' ends are reached."""

    def __init__(self, root: Path, owner: Owner, place: Any = None, *, step: int = 10) -> None:
        self.root, self.owner, self.step = root, owner, step
        self.log = CommitLog(place or Storage(str(root)), checkpoint_every=2)

    def uncommitted(self, ranges: dict[TopicPartition, Range]) -> tuple[str, list[str]]:
        folder = self.log.new_folder(ranges)
        files = []
        for partition, span in ranges.items():
            file = self.root / folder / f"part-{partition.partition}.txt{UNCOMMITTED}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{partition} {offset}\n" for offset in range(*span)))
            files.append(file.name)
        return folder, files

    def work(self, partitions: tuple[TopicPartition, ...] = (T0, T1)) -> None:
        self.log.prepare()
        self.log.open()
        while True:
            positions = self.log.claim(partitions, self.owner)
            ranges = {
                p: Range(positions.get(p, 0), min(positions.get(p, 0) + self.step, LOG_END[p])) for p in partitions
            }
            ranges = {p: span for p, span in ranges.items() if span.size}
            if not ranges:
                return
            folder, files = self.uncommitted(ranges)
            self.log.commit(self.owner, ranges, folder, files, sum(span.size for span in ranges.values()))


def visible(root: Path) -> list[str]:
    """What a reader sees that takes every file of the kind anywhere below the root, as DuckDB's globs do."""
    return sorted(line for path in root.rglob("*.txt") for line in path.read_text().splitlines())


def left(root: Path) -> list[str]:
    """What is left in the staging folder."""
    return sorted(path.name for path in (root / STAGING).iterdir())


ALL = sorted(f"{partition} {offset}" for partition, end in LOG_END.items() for offset in range(end))


def operations_of_a_run(root: Path) -> int:
    place = Scripted(Storage(str(root)), -1, lambda: None, after=False)
    Writer(root, A, place).work()
    assert visible(root) == ALL
    return place.operations


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_operation_loses_and_doubles_nothing(tmp_path: Path, after: bool) -> None:
    for at in some(range(operations_of_a_run(tmp_path / "whole"))):
        root = tmp_path / f"crash-{at}"

        def die() -> None:
            raise Crash

        with pytest.raises(Crash):
            Writer(root, A, Scripted(Storage(str(root)), at, die, after=after)).work()
        seen = visible(root)
        assert len(seen) == len(set(seen)), "a reader never sees a row twice"
        Writer(root, B).work()
        assert visible(root) == ALL, f"crash at operation {at}"
        assert left(root) == [], "nothing uncommitted is left"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_paused_writer_that_wakes_up_after_a_take_over_writes_nothing_more(tmp_path: Path, after: bool) -> None:
    for at in some(range(operations_of_a_run(tmp_path / "whole"))):
        root = tmp_path / f"pause-{at}"
        others: list[list[str]] = []

        def take_over(root: Path = root, others: list[list[str]] = others) -> None:
            other = Writer(root, B)
            other.log.open()
            other.log.claim((T0, T1), B)
            others.append(visible(root))

        zombie = Writer(root, A, Scripted(Storage(str(root)), at, take_over, after=after))
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
    mine, mine_too = first.uncommitted(one), second.uncommitted(two)
    assert second.log.commit(B, two, *mine_too, 5).version == 3
    assert first.log.commit(A, one, *mine, 10).version == 4, "the version was taken, the ranges were not"
    assert CommitLogOf(tmp_path).positions == {T0: 10, T1: 5}


def CommitLogOf(root: Path) -> CommitLog:
    log = CommitLog(Storage(str(root)))
    log.open()
    return log


def test_a_writer_without_a_claim_or_at_the_wrong_offset_is_fenced_and_its_files_are_gone(tmp_path: Path) -> None:
    writer = Writer(tmp_path, A)
    writer.log.open()
    for claim, span, why in [(False, Range(0, 5), "claimed by no member"), (True, Range(5, 9), "stands at 0")]:
        if claim:
            writer.log.claim((T0,), A)
            writer.log.commit(A, {T0: Range(0, 0)}, *writer.uncommitted({}), 0)
        folder, files = writer.uncommitted({T0: span})
        with pytest.raises(SinkFencedError, match=why):
            writer.log.commit(A, {T0: span}, folder, files, span.size)
        assert not (tmp_path / folder).exists()
    assert visible(tmp_path) == []


def test_what_another_kind_of_member_did_and_committed_is_passed_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path, A)
    writer.work()
    again = CommitLogOf(tmp_path)
    assert again.claim((T0, T1), B, {T0: 25, T1: 28}) == {T0: 30, T1: 28}
    assert again.claim((T0, T1), B, {T0: 25, T1: 28}) == {T0: 30, T1: 28}
    assert CommitLogOf(tmp_path).positions == {T0: 30, T1: 28}
    span = {T1: Range(28, 29)}
    again.commit(B, span, *Writer(tmp_path, B).uncommitted(span), 1)
    assert visible(tmp_path) == sorted([*ALL, "t-1 28"])


def test_opening_reads_only_what_follows_the_checkpoint(tmp_path: Path) -> None:
    Writer(tmp_path, A, step=2).work()
    place = Scripted(Storage(str(tmp_path)), -1, lambda: None, after=False)
    log = CommitLog(place)  # type: ignore[arg-type]
    log.open()
    assert log.positions == LOG_END
    assert log.rows == sum(LOG_END.values())
    assert place.operations <= 9, (
        "looks at checkpoints, one checkpoint, at most two entries, one look past the end, looks at staging folders"
    )


def test_another_group_is_refused(tmp_path: Path) -> None:
    Writer(tmp_path, A).work()
    with pytest.raises(PipelineError, match="holds the results of group 'g', not of 'other'"):
        Writer(tmp_path, Owner("other", 1, "x")).work()


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": 99}', b"\xff"])
def test_a_damaged_log_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    Writer(tmp_path, A).work()
    (tmp_path / "_roster/log" / f"{99:020}.json").write_bytes(b"not reached")
    (tmp_path / "_roster/log" / f"{CommitLogOf(tmp_path).version + 1:020}.json").write_bytes(data)
    with pytest.raises(PipelineError, match="not an entry of a commit log"):
        CommitLogOf(tmp_path)
    newest = max((tmp_path / CHECKPOINTS).iterdir())
    newest.write_bytes(data)
    with pytest.raises(PipelineError, match="is damaged"):
        CommitLogOf(tmp_path)
    shutil.rmtree(newest.parent)
    with pytest.raises(PipelineError, match=r"_roster/checkpoints is missing, and the log begins at entry \d+\. Bring"):
        CommitLogOf(tmp_path)


@pytest.mark.parametrize(
    "place", ["hdfs://127.0.0.1:1/out", "abfss://c@a.dfs.core.windows.net/out", "s3a://bucket/out"]
)
def test_a_place_that_is_no_local_path_is_one_error_that_names_the_sinks_for_it(place: str) -> None:
    with pytest.raises(
        PipelineError, match=r"^path: .*is not a local path\. Use DeltaSink or IcebergSink for"
    ) as caught:
        ParquetSink(place)
    assert place in str(caught.value)


def test_files_are_created_only_once_listed_published_and_removed(tmp_path: Path) -> None:
    place = Storage(tmp_path.as_uri())
    assert place.uri == f"file://{tmp_path}"
    assert place.read("a/log/1") is None
    assert place.children("a") == []
    place.prepare("b/c")
    place.prepare("b/c")
    assert place.children("b") == ["c"]
    assert place.create("a/log/1", b"one")
    assert not place.create("a/log/1", b"two")
    assert place.read("a/log/1") == b"one"
    assert place.children("a/log") == ["1"]
    place.sync("a/log/1")
    place.publish("a/log/1", "day=1/part")
    place.publish("a/log/1", "day=1/part")
    assert place.read("day=1/part") == b"one"
    place.remove("a")
    place.remove("a")
    assert place.children("a") == []


def test_published_names_keep_partition_folders_and_sort_in_commit_order(tmp_path: Path) -> None:
    writer = Writer(tmp_path, A)
    writer.log.open()
    writer.log.claim((T0,), A)
    folder = writer.log.new_folder({T0: Range(0, 1)})
    name = f"day=1/part-00000-abc.c000.snappy.parquet{UNCOMMITTED}"
    file = tmp_path / folder / name
    file.parent.mkdir(parents=True)
    file.write_text("x")
    writer.log.commit(A, {T0: Range(0, 1)}, folder, [name], 1)
    assert (tmp_path / "day=1" / "part-0000000002-00000.c000.snappy.parquet").exists()


def test_the_log_is_trimmed_behind_its_checkpoints(tmp_path: Path) -> None:
    Writer(tmp_path, A, step=1).work()
    entries = sorted(path.name for path in (tmp_path / LOG).iterdir())
    assert len(entries) <= 4, "those after the second newest checkpoint, at checkpoint_every=2"
    assert len(list((tmp_path / CHECKPOINTS).iterdir())) == 2
    assert visible(tmp_path) == ALL
    log = CommitLogOf(tmp_path)
    assert (log.positions, log.rows, log.files) == (LOG_END, 50, 50)
    assert log.version > 30


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("batches", [1, 3, 6, 12])
@pytest.mark.sampled(3)
def test_a_writer_that_sleeps_while_others_trim_the_log_writes_nothing_twice(after: bool, batches: int) -> None:
    """At each operation of its first three batches; while it sleeps another copies so many, and a third one follows."""
    at = fenced = 0
    while True:
        place = Memory()
        slept = False

        def others(place: Memory = place) -> None:
            nonlocal slept
            slept = True
            copy(CommitLog(place, checkpoint_every=2), place, B, 2, batches)
            copy(CommitLog(place, checkpoint_every=2), place, Owner("g", 3, "member-c"), 1, batches)

        scripted: Any = Scripted(place, at, others, after=after)  # type: ignore[arg-type]
        log = CommitLog(scripted, checkpoint_every=2)
        try:
            copy(log, scripted, A, 3, 3)
        except SinkFencedError:
            fenced += 1
        seen = place.visible()
        assert len(seen) == len(set(seen)), f"asleep at operation {at}"
        copy(CommitLog(place, checkpoint_every=2), place, Owner("g", 4, "member-d"), 5)
        assert place.visible() == T0_ROWS, f"asleep at operation {at}"
        assert not [name for name in place.content if name.startswith(STAGING)]
        if not slept:
            break
        at += 1
    assert at > 30
    assert fenced


def test_a_reader_that_sleeps_while_the_log_is_trimmed_sees_a_state_there_was() -> None:
    for at in range(12):
        place = Memory()
        copy(CommitLog(place, checkpoint_every=2), place, A, 1, 5)
        scripted: Any = Scripted(
            place,  # type: ignore[arg-type]
            at,
            lambda place=place: copy(CommitLog(place, checkpoint_every=2), place, B, 1, 9),  # type: ignore[misc]
            after=False,
        )
        log = CommitLog(scripted)
        log.open()
        assert (log.rows, log.positions) in [(5, {T0: 5}), (14, {T0: 14})]
        assert place.visible() == sorted(f"{T0} {offset}" for offset in range(5 if not scripted.acted else 14))


def test_an_entry_whose_writer_slept_and_died_before_it_looked_at_the_checkpoints_does_not_count() -> None:
    place = Memory()
    copy(CommitLog(place, checkpoint_every=2), place, A, 1, 3)
    asleep = CommitLog(place, checkpoint_every=2)
    asleep.open()
    copy(CommitLog(place, checkpoint_every=2), place, B, 1, 12)
    folder = f"{STAGING}/dead"
    place.create(f"{folder}/part.txt", b"t-0 3\n")
    stale = Entry(
        asleep.version + 1, A, ranges={T0: Range(3, 4)}, folder=folder, files=[(f"{folder}/part.txt", "x.txt")]
    )
    assert place.create(f"{LOG}/{stale.version:020}.json", stale.encode()), "its version was trimmed"
    asleep.refresh()
    asleep.complete()
    assert asleep.positions == {T0: 15}
    assert place.visible() == sorted(f"t-0 {offset}" for offset in range(15))


def test_files_that_an_earlier_release_left_beside_the_path_are_published(tmp_path: Path) -> None:
    root, folder = tmp_path / "out", "../.out.staging/abc"
    Writer(root, A).work()
    (root / folder).mkdir(parents=True)
    (root / folder / "part-0.txt").write_text("t-0 30\n")
    version = CommitLogOf(root).version + 1
    files = [(f"{folder}/part-0.txt", "part-0.txt")]
    entry = Entry(version, A, ranges={T0: Range(30, 31)}, folder=folder, files=files, rows=1)
    assert Storage(str(root)).create(f"{LOG}/{version:020}.json", entry.encode())
    assert CommitLogOf(root).positions[T0] == 31
    assert visible(root) == sorted([*ALL, "t-0 30"])
    assert not (root / folder).exists()
