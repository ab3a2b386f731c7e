"""Every kind of store in another number of partitions: the entries of a group that always had that number."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.saved.moving import common_marks
from roster.saved.tasks.moving import RECORDS, ProveTask, SeedTask, Source, SplitTask, unpacked
from roster.spark import PipelineError
from roster.state.aggregate import Aggregation
from roster.state.changelog import latest
from roster.state.deduplicate import Deduplication
from roster.state.definition import STATE_KEY, OtherDefinitionError
from roster.state.event_time import STREAM_TIME_KEY, read_time, time_bytes
from roster.state.processor.batch import Plan, TimeMode
from roster.state.processor.variables import REGISTRY_KEY
from roster.state.saved.folder import Folder
from roster.state.saved.manifest import SavedStore
from roster.state.saved.parts import StoreEntries, merged_marks, seed_parts
from roster.state.saved.variables import POSITION
from roster.state.sessions import SessionAggregation
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.tasks.placement import Placement, Proof, placements, placing_keys
from tests.state import test_sessions, test_stream_join
from tests.state.processor.test_batch import NUMBER, Recorder, process_batch
from tests.state.test_saved import changelog_of, records_of, unordered
from tests.state.test_windows import AGGREGATES, SECOND, batches_of
from tests.stateful.test_placement import java_hash

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUMBERS = range(400)
WAY = Placement(("k",), "text", "murmur2")
LONG = 10_000 * SECOND


class Ignored:
    """An accumulator that nobody reads."""

    def add(self, _: object) -> None:
        pass


def key_of(n: int) -> str:
    return f"k{n * 7 % 61}"


def batch(path: Path, operator: Any, numbers: list[int]) -> pa.Table:
    return records_of(path, operator, batches_of([(key_of(n), n, n % 90) for n in numbers], [len(numbers) // 2]))


def joined(path: Path, numbers: list[int]) -> pa.Table:
    rows = [(n % 3 == 0, key_of(n), n % 40, n) for n in numbers]
    return records_of(path, test_stream_join.operator(5, 9999, "left"), [test_stream_join.table_of(rows)])


def processed(path: Path, numbers: list[int]) -> pa.Table:
    acts = ["update", "append", "set", "register", "set"]
    process_batch(
        path, [(key_of(n), acts[n % 5], n) for n in numbers], Plan(("key",), TimeMode.PROCESSING), 0, Recorder()
    )
    return changelog_of(path)


STORES: dict[str, Callable[[Path, list[int]], pa.Table]] = {
    "aggregate": lambda path, numbers: batch(path, Aggregation(("k",), AGGREGATES), numbers),
    "window": lambda path, numbers: batch(
        path, WindowedAggregation(("k",), AGGREGATES, Window("t", 6 * SECOND, 2 * SECOND, LONG), final=True), numbers
    ),
    "session": lambda path, numbers: batch(
        path,
        SessionAggregation(("k",), test_sessions.ALL, Window.session("t", 9 * SECOND, grace=LONG), final=True),
        numbers,
    ),
    "deduplicate": lambda path, numbers: batch(path, Deduplication(("n", "k"), "t", LONG), numbers),
    "join": joined,
    "processor": processed,
}


def states(path: Path, kind: str, count: int) -> dict[int, StoreEntries]:
    """The entries of each partition of a group that has read all records."""
    numbers = defaultdict[int, list[int]](list)
    for n in NUMBERS:
        numbers[java_hash(key_of(n).encode()) % count].append(n)
    return {
        at: StoreEntries.of(latest(STORES[kind](path / f"{kind}-{count}-{at}", of)))
        for at, of in sorted(numbers.items())
    }


def plain(entries: pa.Table) -> dict[bytes, bytes]:
    found = dict(zip(entries["key"].to_pylist(), entries["value"].to_pylist(), strict=True))
    assert len(found) == len(entries)
    return found


def shown(kind: str, entries: StoreEntries) -> Any:
    """The entries; of sessions the rows without when they may end, which depends on the task's other keys."""
    if kind == "session":
        ((_, table),) = entries.tables()
        return unordered(table.drop_columns("ends").to_pylist())
    return plain(entries.plain)


def source_of(folder: Folder, kind: str, at: int, before: int, after: int, entries: StoreEntries) -> Source:
    noted = entries.definition_record()
    assert noted is not None
    files = {
        part: folder.write_table(f"{kind}/{part}/{at}.parquet", [table], table.schema)
        for part, table in entries.tables()
    }
    return Source(kind, at, before, range(after), files, placing_keys(noted.definition))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("before", "after"), [(6, 12), (12, 5)])
def test_the_entries_are_those_of_a_group_that_always_had_that_number(
    tmp_path: Path, kind: str, before: int, after: int
) -> None:
    folder, old = Folder(str(tmp_path / "export")), states(tmp_path, kind, before)
    sources = [source_of(folder, kind, at, before, after, entries) for at, entries in old.items()]
    assert sources[0].keys is not None
    among = placements(sources[0].keys)
    proofs = list(ProveTask(sources, folder, {kind: among}, Ignored())(range(len(sources))))  # type: ignore[arg-type]
    assert not [each.problem for each in proofs if each.problem]
    way = Proof.all_of([each.proof for each in proofs if each.proof]).chosen(before, after, is_named=False)
    assert way == WAY
    moved = defaultdict[int, list[Any]](list)
    for place, chunk in SplitTask(sources, folder, {kind: way})(reversed(range(len(sources)))):
        moved[place].append(chunk)
    for at, wanted in states(tmp_path, kind, after).items():
        entries = StoreEntries.join(wanted.marks, unpacked(moved.pop(at)))
        assert shown(kind, entries) == shown(kind, wanted)
        marks = {key for key in wanted.marks if key != STATE_KEY and not key.endswith(b"swept")}
        assert merged_marks([each.marks for each in old.values()]).keys() == marks
    assert not moved


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.sampled(2)
def test_a_seed_of_tables_has_the_entries_of_a_group_that_read_the_records(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roster.saved.tasks.moving._BATCHES", 2)
    wanted = states(tmp_path, kind, 6)
    noted = wanted[0].definition_record()
    assert noted is not None
    definition = replace(noted.definition, registry=wanted[0].marks.get(REGISTRY_KEY, b""))
    tables = defaultdict[str, list[pa.Table]](list)
    for entries in wanted.values():
        for part, table in entries.tables():
            tables[part].append(table)
    moved = defaultdict[int, list[Any]](list)
    parts = seed_parts(definition)
    for part, of in tables.items():
        table = pa.concat_tables(of, promote_options="permissive")
        table = table.append_column(POSITION, pa.array(range(len(table)), pa.int64()))
        table = table.select(parts[part].columns.names)
        task = SeedTask(part, parts[part].columns, placing_keys(definition), WAY, 6)
        # Rows of a join come in their order, others in any.
        batches = table.to_batches(max_chunksize=3)
        for row in pa.Table.from_batches(task(batches if kind == "join" else batches[::-1])).to_pylist():
            moved[row["log"]].append((row["part"], row["number"], row["rows"]))
    assert sum(map(len, moved.values())) > 12, "several pieces for each"
    for at, own in wanted.items():
        assert shown(kind, StoreEntries.join(own.marks, unpacked(moved.pop(at)))) == shown(kind, own)
    assert not moved


def test_records_on_their_way_keep_their_order_and_those_without_a_key_go_first(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    keys = [None if n % 10 == 0 else key_of(n).encode() for n in NUMBERS]
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": [b"%d" % n for n in NUMBERS]})
    file = folder.write_table("r/0.parquet", [table], table.schema)
    source = Source("r", 0, 1, range(4), {RECORDS: file})
    found = {place: unpacked([chunk]) for place, chunk in SplitTask([source], folder, {})([0])}
    for place, parts in found.items():
        rows = parts[RECORDS]
        expected = [n for n, key in zip(NUMBERS, keys, strict=True) if (java_hash(key) % 4 if key else 0) == place]
        assert [int(value) for value in rows["value"].to_pylist()] == expected


def test_marks_of_several_tasks_become_one(tmp_path: Path) -> None:
    more = pa.schema([*NUMBER, ("more", pa.string())])
    process_batch(tmp_path / "a", [("a", "update", 1)], Plan(("key",)), 0, Recorder())
    process_batch(tmp_path / "b", [("a", "update", 1)], Plan(("key",)), 0, Recorder())
    process_batch(tmp_path / "b", [("a", "look", 1)], Plan(("key",)), 0, Recorder(schema=more))
    process_batch(tmp_path / "c", [("a", "look", 1)], Plan(("key",)), 0, Recorder(schema=more))
    first, second, other = (StoreEntries.of(changelog_of(tmp_path / name)).marks for name in "abc")
    times = {STREAM_TIME_KEY: time_bytes(-5)}, {STREAM_TIME_KEY: time_bytes(3)}, {b"\xffswept": b"x"}
    merged = merged_marks([{**first, **times[0]}, {**second, **times[1]}, {**first, **times[2]}])
    assert merged == {REGISTRY_KEY: second[REGISTRY_KEY], STREAM_TIME_KEY: time_bytes(3)}
    assert read_time(merged[STREAM_TIME_KEY]) == 3
    with pytest.raises(OtherDefinitionError, match=r"different lists of variables \('value'\)"):
        merged_marks([first, other])
    assert (
        json.loads(second[REGISTRY_KEY])["value"]["written"][0]
        == json.loads(first[REGISTRY_KEY])["value"]["written"][0]
    )


def test_entries_of_two_releases_are_not_mixed(tmp_path: Path) -> None:

    notes = {}
    for at, aggregates in enumerate([AGGREGATES, {"count": AGGREGATES["count"]}]):
        entries = StoreEntries.of(latest(batch(tmp_path / str(at), Aggregation(("k",), aggregates), [1, 2])))
        noted = entries.definition_record()
        assert noted is not None
        notes[at] = noted
    store = SavedStore("c", 2, notes)
    with pytest.raises(
        PipelineError, match=r"'s' cannot have 3 partitions instead of 2: some partitions have entries of"
    ):
        common_marks("s", store, 3)
    assert STATE_KEY in common_marks("s", SavedStore("c", 2, {0: notes[0]}), 3)
