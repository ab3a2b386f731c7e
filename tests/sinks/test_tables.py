"""Delta and Iceberg tables, on a folder and on an S3 server: each offset once, whoever writes, dies or comes back.

ROSTER_TABLE_KILLS is the number of kills of one run (4 without it).
"""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.sinks import delta
from roster.spark import Owner, SinkFencedError
from tests.sinks.table_places import FILES, T0, T1, Place, Row, Server, batch, opened, plain, rows
from tests.sinks.table_worker import GROUP, SCHEMA, forking, uncommitted, work

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.timeout(1200), pytest.mark.process]

KILLS = int(os.environ.get("ROSTER_TABLE_KILLS", "4"))


@pytest.fixture(params=[f"{kind} {where}" for where in ("local", "s3") for kind in FILES])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str, Server | None]:
    kind, on = request.param.split()
    return kind, str(tmp_path), request.getfixturevalue("s3") if on == "s3" else None


@pytest.fixture
def place(where: tuple[str, str, Server | None]) -> Place:
    kind, *rest = where
    return FILES[kind](*rest)


@pytest.mark.parametrize("partition_by", [[], ["shop"]])
def test_batches_are_rows_and_positions_in_one_commit(place: Place, partition_by: list[str]) -> None:
    sink = opened(place.sink(partition_by=partition_by), T0, T1)
    for ranges in ({T0: (0, 10)}, {T0: (10, 12), T1: (0, 7)}):
        each = batch(ranges)
        sink.commit(uncommitted(sink, each), each)
    assert rows(place) == plain({0: 12, 1: 7})
    assert sink.positions(GROUP, [T0, T1]) == {T0: 12, T1: 7}
    assert sink.positions("another", [T0]) == {}


def test_of_two_owners_one_wins_and_the_other_reads_again(place: Place) -> None:
    old, new = (opened(place.sink(), T0, member=name) for name in ("old", "new"))
    slow, quick = batch({T0: (0, 10)}, "old"), batch({T0: (0, 4)}, "new")
    late = uncommitted(old, slow)
    new.commit(uncommitted(new, quick), quick)
    with pytest.raises(SinkFencedError, match="t-0 stands at 4, not at 0"):
        old.commit(late, slow)
    assert old.claim([T0], slow.owner, {}) == {T0: 4}
    assert rows(place) == plain({0: 4})
    with pytest.raises(OSError):  # noqa: PT011 - of whichever file system
        late.writer.files.open_input_file(late.writer.path(late.files[0].name))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.sampled(4)
def test_random_histories_of_two_owners(place: Place, seed: int) -> None:
    """Each owner writes, commits late, dies and claims again at random moments."""
    chance = random.Random(seed)
    owners = [opened(place.sink(), T0, T1, member=name) for name in "ab"]
    at: list[dict[Any, int]] = [{}, {}]
    held: list[Any] = [None, None]
    for _ in range(20 if place.is_remote else 40):
        me = chance.randrange(2)
        if chance.random() < 0.2:
            owners[me] = opened(place.sink(), member=f"n{chance.random()}")
            at[me], held[me] = {}, None
        elif held[me] is None:
            at[me] = at[me] or {T0: 0, T1: 0, **owners[me].claim([T0, T1], Owner(GROUP, 1, "x"), {})}
            chosen = chance.sample([T0, T1], chance.randint(1, 2))
            each = batch({p: (at[me][p], at[me][p] + chance.randint(1, 5)) for p in chosen})
            held[me] = each, uncommitted(owners[me], each)
        else:
            each, files = held[me]
            try:
                owners[me].commit(files, each)
                at[me].update(each.next_offsets)
            except SinkFencedError:
                at[me] = {}
            held[me] = None
    final = batch({p: (n, n + 1) for p, n in {T0: 0, T1: 0, **owners[0].positions(GROUP, [T0, T1])}.items()})
    owners[0].commit(uncommitted(owners[0], final), final)
    assert rows(place) == plain({p.partition: end for p, end in owners[0].positions(GROUP, [T0, T1]).items()})


SIZE = 10


def _work(where: tuple[str, str, Server | None], member: str, end: Any) -> None:
    kind, *rest = where
    work(FILES[kind](*rest).sink, member, [0, 1], lambda: end.value, SIZE)


@pytest.mark.sampled(2)
def test_kills_and_take_overs(where: tuple[str, str, Server | None], place: Place) -> None:
    """Two applications at a time on the same partitions; one of them is killed at a random moment, again and again."""
    context = forking()
    chance = random.Random(KILLS)
    end = context.Value("q", 1_000_000, lock=False)  # until the last kill there is always more
    sink = opened(place.sink())
    sink.task_writer(batch({T0: (0, 1)}), SCHEMA)

    def start(number: int) -> Any:
        process = context.Process(target=_work, args=(where, f"m{number}", end))
        process.start()
        return process

    running = [start(0), start(1)]
    for number in range(2, 2 + KILLS):
        victim = chance.choice(running)
        victim.join(chance.uniform(0.0, 2.0 if place.is_remote else 1.0))
        assert victim.exitcode is None
        victim.kill()
        victim.join()
        running.remove(victim)
        running.append(start(number))
    end.value = max(sink.positions(GROUP, [T0, T1]).values(), default=0) + 5 * SIZE
    for process in running:
        process.join()
        assert process.exitcode == 0
    found = {p.partition: at for p, at in sink.positions(GROUP, [T0, T1]).items()}
    assert min(found[0], found[1]) >= end.value
    assert rows(place) == plain(found)
    print(f"{where[0]}: {KILLS} kills, {found} rows")


READERS = {
    "its own library": lambda place: place.arrow(),
    "duckdb": lambda place: place.duckdb().order("1").to_arrow_table(),
    "polars": lambda place: place.polars().to_arrow(),
}


@pytest.mark.sampled(2)
def test_readers_see_whole_batches_while_writing_and_merging_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_COMMITS", 2)
    sink, size, batches = opened(place.sink(), T0, T1), 5, 3 if place.is_remote else 8
    done = threading.Event()
    sink.task_writer(batch({T0: (0, 1)}), SCHEMA)

    def write() -> None:
        for start in range(0, batches * size, size):
            each = batch({T0: (start, start + size), T1: (start, start + size)})
            sink.commit(uncommitted(sink, each), each)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen: dict[str, list[int]] = {name: [0] for name in READERS}
    try:
        while True:
            was_done = done.is_set() or not writer.is_alive()
            for name, read in READERS.items():
                found = _rows(read(place))
                end = len(found) // 2
                assert found == plain({0: end, 1: end} if end else {}), name
                assert end % size == 0, f"{name} sees a part of a batch"
                assert end >= seen[name][-1], f"{name} goes back"
                seen[name].append(end)
            if was_done:
                break
    finally:
        writer.join()
    assert done.is_set()
    assert {ends[-1] for ends in seen.values()} == {batches * size}


def _rows(found: pa.Table) -> list[Row]:
    return sorted((row["partition"], row["offset"], row["shop"]) for row in found.to_pylist())
