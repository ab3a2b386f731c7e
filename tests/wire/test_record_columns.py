"""Records to Arrow columns: the compiled loops against `read_batch` and against themselves as checked Python."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.records import native
from roster.wire import WireError
from roster.wire.columns import decode_kernel, decode_layout, reader
from roster.wire.columns.reader import Aborted, Part, RecordColumns, ScanError, Unreadable, UnreadableError, scan
from roster.wire.compression import Compression, decompress, most_expanded
from roster.wire.frames import decode_response, encode_response
from roster.wire.messages import FetchResponse
from roster.wire.records import HEADER_SIZE, Record, build_batch, crc32c, read_batch, read_header, split_batches
from tests.examples_tried import examples
from tests.wire.plain_kernel import PlainKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, LAST = 0, 2**62


NATIVE = native.kernel()
PLAIN = PlainKernel(decode_kernel)
KERNELS = [pytest.param(NATIVE, id="native"), pytest.param(PLAIN, id="plain")]


def rows(
    kernel: Any,
    data: bytes,
    start: int = FIRST,
    stop: int = LAST,
    aborted: list[Aborted] | None = None,
    *,
    headers: bool = True,
    max_rows: int = 1 << 16,
) -> list[tuple[Any, ...]]:
    pages = np.frombuffer(b"front" + data + b"behind", np.uint8)
    part = Part(5, 5 + len(data), start, stop, 1, aborted or ())
    scanned = scan(kernel, pages, [part], committed=aborted is not None).table
    found: list[tuple[Any, ...]] = []
    columns = RecordColumns(kernel, [("s", 8), ("t", 3)], headers=headers, max_rows=max_rows)
    for batch in columns.batches(pages, scanned):
        batch.validate(full=True)
        assert 0 < batch.num_rows <= max_rows
        assert set(batch.column("topic").to_pylist()) == {"t"}
        assert set(batch.column("partition").to_pylist()) == {3}
        table = batch.set_column(5, "timestamp", batch.column("timestamp").view("int64"))
        names = ["offset", "timestamp", "timestampType", "key", "value"] + ["headers"] * headers
        found += zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return found


def expected(records: list[Record], append_time: bool = False, *, headers: bool = True) -> list[tuple[Any, ...]]:
    """The rows that `read_batch` stands for; a time that leaves 64 bits of microseconds is null."""
    found = []
    for record in records:
        stamp = record.timestamp * 1000 if -(2**63) <= record.timestamp * 1000 < 2**63 else None
        entries = [{"key": name, "value": value} for name, value in record.headers] or None
        found.append((record.offset, stamp, int(append_time), record.key, record.value) + (entries,) * headers)
    return found


def recheck(batch: bytearray) -> bytes:
    """The batch with a CRC that fits its bytes."""
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


some_bytes = st.none() | st.binary(max_size=40) | st.integers(100, 3000).map(bytes)
names = st.text(st.characters(codec="utf-8"), max_size=5)
some_records = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(-(2**40), 2**42) | st.integers(-(2**62), 2**62),
        key=some_bytes,
        value=some_bytes,
        headers=st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=9,
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[tuple[Any, ...]]]:
    """Batches with gaps in and between them, and the rows in them."""
    offset = draw(st.integers(0, 2**40))
    data, found = b"", []
    for records in draw(st.lists(some_records, max_size=5)):
        at, placed = offset, []
        for record in records:
            at += draw(st.sampled_from([0, 0, 0, 1, 200]))
            placed.append(record._replace(offset=at))
            at += 1
        last = at - 1 + draw(st.sampled_from([0, 0, 3]))
        batch = bytearray(
            build_batch(placed, base_offset=offset, last_offset=last, compression=draw(st.sampled_from(Compression)))
        )
        append_time = draw(st.booleans())
        if append_time:
            batch[22] |= 8
        whole = recheck(batch)
        data += whole
        found += expected(read_batch(whole), append_time)
        offset = last + 1 + draw(st.sampled_from([0, 0, 7]))
    return data, found


@given(logs(), st.data())
@settings(max_examples=examples(150))
def test_rows_are_those_of_read_batch_in_any_range_and_however_they_are_cut(
    log: tuple[bytes, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    records, found = log
    assert rows(NATIVE, records) == found
    offsets = [row[0] for row in found] or [0]
    start, stop = (data.draw(st.integers(offsets[0] - 1, offsets[-1] + 2)) for _ in range(2))
    inside = [row for row in found if start <= row[0] < stop]
    assert rows(NATIVE, records, start, stop, max_rows=data.draw(st.integers(1, 4))) == inside
    assert rows(NATIVE, records, start, stop, headers=False) == [row[:5] for row in inside]


@given(logs(), st.data())
def test_a_response_cut_off_anywhere_gives_the_batches_that_are_whole(
    log: tuple[bytes, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    cut = log[0][: data.draw(st.integers(0, len(log[0])))]
    batches = [header for header, _ in split_batches(log[0])]
    ends = accumulate(header.size for header in batches)
    whole = [header for header, end in zip(batches, ends, strict=True) if end <= len(cut)]
    scanned = scan(NATIVE, np.frombuffer(cut, np.uint8), [Part(0, len(cut), FIRST, LAST)])
    assert scanned.next_offsets == [whole[-1].last_offset + 1 if whole else -1]
    assert rows(NATIVE, cut) == log[1][: sum(header.records_count for header in whole)]


def random_batch(rng: random.Random, compression: Compression) -> bytearray:
    records = [
        Record(
            timestamp=rng.choice([0, 1_700_000_000_000, rng.getrandbits(50)]),
            key=rng.choice([None, b"", rng.randbytes(3)]),
            value=rng.choice([None, b"", rng.randbytes(9), rng.randbytes(70)]),
            headers=tuple(("h", rng.choice([None, b"x"])) for _ in range(rng.choice([0, 0, 1, 2]))),
        )
        for _ in range(rng.randint(1, 5))
    ]
    return bytearray(build_batch(records, base_offset=5, compression=compression))


def damage(rng: random.Random, batch: bytearray) -> None:
    """Flip bits, or overwrite with numbers at the ends of their ranges, behind the CRC."""
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(21, len(batch))
        match rng.randrange(3):
            case 0:
                batch[place] ^= 1 << rng.randrange(8)
            case 1:
                batch[place : place + 5] = rng.choice([b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f"])[
                    : len(batch) - place
                ]
            case _:
                batch[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])


def verdict(read: Any) -> Any:
    try:
        return read()
    except WireError:
        return "refused"


def compare_damaged(kernel: Any, seed: int) -> bool:
    """One damaged batch whose CRC fits, read by `kernel` and by `read_batch`; whether both refused it."""
    rng = random.Random(seed)
    batch = random_batch(rng, Compression.NONE if rng.random() < 0.8 else rng.choice(list(Compression)))
    damage(rng, batch)
    # What is hidden is not read: control batches, and attributes that only the header knows.
    batch[22] &= 0b1111
    whole = recheck(batch)

    def reference() -> Any:
        return expected(read_batch(whole), read_header(whole).is_log_append_time)

    wanted = verdict(reference)
    got = verdict(lambda: rows(kernel, whole))
    assert got == wanted, seed
    return bool(wanted == "refused")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_time_that_microseconds_cannot_hold_is_null(kernel: Any) -> None:
    greatest = (2**63 - 1) // 1000
    stamps = [0, greatest, greatest + 1, -greatest, -greatest - 1, 1_700_000_000_000_000_000, 2**63 - 1]
    whole = build_batch([Record(timestamp=stamp, value=b"v") for stamp in stamps], base_offset=5)
    expected_times = [0, greatest * 1000, None, -greatest * 1000, None, None, None]
    assert [row[1] for row in rows(kernel, whole)] == expected_times
    least = build_batch([Record(timestamp=-(2**63), value=b"v")], base_offset=5)
    assert [row[1] for row in rows(kernel, least)] == [None]


def test_damage_behind_a_fitting_crc_is_refused_where_read_batch_refuses_it() -> None:
    count = examples(1500, quick=150)
    refused = sum(compare_damaged(NATIVE, seed) for seed in range(count))
    assert count / 3 < refused < count * 0.97


def test_no_index_leaves_its_array() -> None:
    """The same loops as plain Python, where every index is compared with its array's length."""
    count = examples(150, quick=30)
    assert count / 3 < sum(compare_damaged(PLAIN, seed) for seed in range(count)) < count * 0.97


GUARDED = """
import ctypes, mmap, random, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../.."]
import numpy as np
import test_record_columns as cases
from roster.wire import WireError

PAGE = mmap.PAGESIZE
area = mmap.mmap(-1, 3 * PAGE)
base = np.frombuffer(area, np.uint8)
address = base.__array_interface__["data"][0]
libc = ctypes.CDLL(None, use_errno=True)
for page in (0, 2):
    assert libc.mprotect(ctypes.c_void_p(address + page * PAGE), PAGE, 0) == 0

class Guarded:
    def __getattr__(self, name):
        def call(data, *rest):
            if 0 < data.size <= PAGE:
                for begin in (PAGE, 2 * PAGE - data.size):
                    base[begin : begin + data.size] = data
                    kept = [a.copy() if isinstance(a, np.ndarray) else a for a in rest]
                    first = getattr(cases.NATIVE, name)(base[begin : begin + data.size], *kept)
                assert first == getattr(cases.NATIVE, name)(data, *rest)
                return first
            return getattr(cases.NATIVE, name)(data, *rest)
        return call

begin, count = int(sys.argv[2]), int(sys.argv[3])
print(sum(cases.compare_damaged(Guarded(), seed) for seed in range(begin, begin + count)))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="mprotect")
def test_no_byte_outside_the_response_is_touched() -> None:
    """Machine code with the response between two pages that end the process when they are read."""
    command = [sys.executable, "-c", GUARDED, str(Path(__file__).parent), "10000", "500"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 100


@pytest.mark.parametrize("compression", Compression)
def test_a_flipped_bit_is_an_error_or_without_effect_on_rows(compression: Compression) -> None:
    rng = random.Random(1)
    for seed in range(150):
        batch = random_batch(rng, compression)
        sound = rows(NATIVE, bytes(batch))
        place = rng.randrange(8, len(batch))
        batch[place] ^= 1 << rng.randrange(8)
        got = verdict(lambda batch=batch: rows(NATIVE, bytes(batch)))
        if place < 12:
            assert got in ("refused", []), (seed, place)  # a longer batch is one that is cut off
        elif place < 16:
            assert got == sound, "a broker places a batch without a new CRC"
        else:
            assert got == "refused", (seed, place)


@pytest.mark.parametrize("kernel", KERNELS)
def test_older_message_formats_are_refused_by_name(kernel: Any) -> None:
    batch = bytearray(build_batch([Record(value=b"v")]))
    batch[16] = 1
    with pytest.raises(WireError, match="magic 1, only 2 is supported"):
        rows(kernel, bytes(batch))


@pytest.mark.parametrize("size", [5, 2000], ids=["checked by the loop", "checked outside"])
def test_damage_names_the_offset_of_its_batch(size: int) -> None:
    one, two = (bytearray(build_batch([Record(value=bytes(size))] * 3, base_offset=offset)) for offset in (10, 13))
    two[-1] ^= 1
    with pytest.raises(WireError, match=r"^offset 13: .*CRC"):
        rows(NATIVE, bytes(one + two))


def test_batches_that_go_back_are_refused() -> None:
    one, two = (build_batch([Record(value=b"v")] * 3, base_offset=offset) for offset in (10, 12))
    with pytest.raises(WireError, match="base_offset 12"):
        rows(NATIVE, one + two)


def test_header_names_must_be_text() -> None:
    batch = bytearray(build_batch([Record(value=b"v", headers=(("name", b""),))]))
    batch[batch.index(b"name")] = 0xFF
    with pytest.raises(WireError, match="header name: not UTF-8"):
        rows(NATIVE, recheck(batch))


def test_a_header_that_compaction_left_is_passed_over() -> None:
    one, two, three = (build_batch([Record(value=b"v")], base_offset=offset) for offset in (3, 4, 5))
    header = bytearray(two[:HEADER_SIZE])
    header[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    header[57:61] = bytes(4)
    assert [row[0] for row in rows(NATIVE, one + recheck(header) + three)] == [3, 5]
    two = bytearray(two)
    two[57:61] = bytes(4)
    with pytest.raises(WireError, match="records_count 0"):
        rows(NATIVE, one + recheck(two) + three)


def marker(offset: int, producer: int, kind: int) -> bytes:
    record = Record(key=b"\0\0" + kind.to_bytes(2, "big"), value=bytes(6))
    return build_batch([record], base_offset=offset, producer_id=producer, transactional=True, control=True)


class Transactions(NamedTuple):
    """A log, where its first open transaction begins, what was aborted, and offsets: of committed records, of all."""

    log: bytes
    stable: int
    aborted: list[Aborted]
    visible: list[int]
    all: list[int]


def interleaved(steps: list[tuple[int, int]]) -> Transactions:
    """Interleaved producers: 0 writes without transactions, 1-3 with; the last steps of each may stay open."""
    log, offset = b"", 0
    opened: dict[int, int] = {}
    owners: list[tuple[int, int, int]] = []  # offset, producer, first offset of its transaction
    aborted, committed = [], set()
    for producer, step in steps:
        if producer and step >= 4 and producer in opened:
            first = opened.pop(producer)
            log += marker(offset, producer, step - 4)
            if step == 4:
                aborted.append(Aborted(producer, first))
            else:
                committed.add((producer, first))
            offset += 1
            continue
        count = step % 3 + 1
        if producer:
            opened.setdefault(producer, offset)
        owners += [(offset + n, producer, opened.get(producer, -1)) for n in range(count)]
        records = [Record(value=b"%d" % (offset + n)) for n in range(count)]
        log += build_batch(
            records, base_offset=offset, producer_id=producer or -1, transactional=bool(producer), producer_epoch=0
        )
        offset += count
    stable = min(opened.values(), default=offset)
    visible = [o for o, producer, first in owners if o < stable and (not producer or (producer, first) in committed)]
    return Transactions(log, stable, aborted, visible, [o for o, _, _ in owners])


some_steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30)


@given(st.lists(some_steps.map(interleaved), min_size=1, max_size=4), st.sampled_from([NATIVE, PLAIN]))
def test_committed_records_are_those_of_transactions_that_end_with_a_commit(
    logs: list[Transactions], kernel: Any
) -> None:
    """In a response of several partitions the transactions of one are not those of another."""
    pages = np.frombuffer(b"".join(each.log for each in logs), np.uint8)
    ends = list(accumulate((len(each.log) for each in logs), initial=0))
    columns = RecordColumns(kernel, [("t", number) for number in range(len(logs))])

    def read(parts: list[Part], *, committed: bool) -> list[tuple[Any, ...]]:
        batches = columns.batches(pages, scan(kernel, pages, parts, committed=committed).table)
        names = ("partition", "offset", "value")
        return [row for batch in batches for row in zip(*(batch[name].to_pylist() for name in names), strict=True)]

    parts = [Part(*ends[n : n + 2], 0, each.stable, n, each.aborted) for n, each in enumerate(logs)]
    assert read(parts, committed=True) == [(n, o, b"%d" % o) for n, each in enumerate(logs) for o in each.visible]
    parts = [part._replace(stop=LAST) for part in parts]
    assert read(parts, committed=False) == [(n, o, b"%d" % o) for n, each in enumerate(logs) for o in each.all]


def test_an_abort_marker_without_a_type_is_refused() -> None:
    record = Record(key=b"\0", value=b"")
    batch = build_batch([record], producer_id=1, transactional=True, control=True)
    with pytest.raises(WireError, match="control record without a type"):
        rows(NATIVE, batch, aborted=[])


def test_columns_beyond_the_reach_of_their_offsets_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_INT32_MAX", 400)
    records = [Record(key=bytes(n), value=bytes(100 - n), headers=(("h" * n, bytes(n)),)) for n in range(50)]
    batch = build_batch(records)
    assert rows(NATIVE, batch) == expected(read_batch(batch))
    pages = np.frombuffer(batch, np.uint8)
    table = scan(NATIVE, pages, [Part(0, len(batch), 0, 50)]).table
    assert len([*RecordColumns(NATIVE, [("t", 0)], headers=True).batches(pages, table)]) > 10
    monkeypatch.setattr(reader, "_INT32_MAX", 90)
    with pytest.raises(WireError, match="too large for a column"):
        rows(NATIVE, batch)


def columns_of(data: bytes, told: list[Unreadable] | None = None, **options: Any) -> Iterator[Any]:
    """Record batches of partition 3 of topic t; with `told` what is unreadable is left out."""
    pages = np.frombuffer(data, np.uint8)
    table = scan(NATIVE, pages, [Part(0, len(data), FIRST, LAST, 1)]).table
    columns = RecordColumns(NATIVE, [("s", 8), ("t", 3)], **options)
    return columns.batches(pages, table) if told is None else columns.batches(pages, table, told.append)


def bombs(offsets: range, size: int) -> bytes:
    packed = build_batch([Record(value=bytes(size))], compression=Compression.GZIP)
    return b"".join(offset.to_bytes(8, "big") + packed[8:] for offset in offsets)


def test_no_more_is_expanded_at_once_than_a_record_batch_and_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 1 << 20)
    waiting = most = 0

    def counted(*arguments: Any) -> bytes:
        nonlocal waiting, most
        body = decompress(*arguments)
        waiting += len(body)
        most = max(most, waiting)
        return body

    monkeypatch.setattr(reader, "decompress", counted)
    found: list[int] = []
    for batch in columns_of(bombs(range(20), 300 << 10) + bombs(range(20, 29), 2 << 20)):
        assert batch.nbytes <= (2 << 20) + 1000
        waiting = 0
        found += batch.column("offset").to_pylist()
    assert found == [*range(29)]
    assert most < (1 << 20) + (2 << 20) + 1000


def test_a_batch_that_expands_too_far_is_named_and_those_around_it_are_read() -> None:
    bomb = bombs(range(7, 8), most_expanded(0))
    data = bombs(range(1), 5) + bomb + bombs(range(9, 10), 6)
    with pytest.raises(
        UnreadableError, match=r"t-3: the batch with offsets 7 to 7 \(\d+ bytes\) cannot be read: .*expand"
    ):
        list(columns_of(data))
    told: list[Unreadable] = []
    assert [offset for batch in columns_of(data, told) for offset in batch.column("offset").to_pylist()] == [0, 9]
    (bad,) = told
    assert (bad.topic, bad.partition, bad.first_offset, bad.last_offset, bad.data) == ("t", 3, 7, 7, bomb)


def test_what_a_batch_may_expand_to_grows_with_what_was_sent() -> None:
    assert most_expanded(1000) == 64 << 20
    assert most_expanded(10 << 20) == 200 << 20


def damaged(batch: bytes, kind: str) -> bytes:
    """A batch of three records, with a CRC that fits."""
    broken = bytearray(batch)
    if kind == "record":
        broken[HEADER_SIZE] = 0x7F
    elif kind == "name":
        broken[broken.index(b"name")] = 0xFF
    elif kind == "behind":
        broken += b"x"
        broken[8:12] = (len(broken) - 12).to_bytes(4, "big")
    return recheck(broken)


@given(
    st.lists(st.sampled_from(["good", "good", "record", "name", "behind", "packed"]), max_size=12),
    st.sampled_from([Compression.NONE, Compression.GZIP]),
    st.integers(1, 7),
)
@settings(max_examples=examples(100))
def test_each_unreadable_batch_is_told_once_and_no_other_row_is_missing(
    kinds: list[str], good: Compression, max_rows: int
) -> None:
    data, whole, bad = b"", [], []
    for number, kind in enumerate(kinds):
        records = [Record(value=b"%d" % n, headers=(("name", b""),)) for n in range(3)]
        batch = build_batch(records, base_offset=3 * number, compression=good if kind == "good" else Compression.NONE)
        if kind == "packed":  # its bytes are not those of the codec it names
            packed = bytearray(batch)
            packed[22] |= Compression.GZIP
            batch = recheck(packed)
        data += damaged(batch, kind)
        (whole if kind == "good" else bad).append(number)
    told: list[Unreadable] = []
    found = [
        offset
        for batch in columns_of(data, told, headers=True, max_rows=max_rows)
        for offset in batch.column("offset").to_pylist()
    ]
    assert [(each.first_offset, each.last_offset) for each in told] == [(3 * n, 3 * n + 2) for n in bad]
    readable = [3 * n + k for n in whole for k in range(3)]
    assert [offset for offset in found if offset // 3 in whole] == readable
    if max_rows >= 3 * len(kinds):
        assert found == readable


def test_a_table_of_batches_grows_with_the_response() -> None:
    data = b"".join(build_batch([Record(value=b"%d" % n)], base_offset=n) for n in range(5000))
    assert [row[4] for row in rows(NATIVE, data)] == [b"%d" % n for n in range(5000)]


def test_object_code_is_kept_and_damage_to_it_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = native.cache_folder()
    assert folder == tmp_path / "roster"
    path = folder / "kernel.o"
    assert native._read(path) is None
    native._write(path, b"code")
    assert native._read(path) == b"code"
    path.write_bytes(path.read_bytes()[:-1])
    assert native._read(path) is None
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_code_shipped_from_another_kind_of_machine_is_not_run() -> None:
    foreign = native.kernel(native.Compiled("another machine", b"no code"))
    same = native.kernel(native.compiled())
    batch = build_batch([Record(value=b"v")])
    assert rows(foreign, batch) == rows(same, batch) == expected(read_batch(batch))


@pytest.mark.process
def test_a_process_with_cached_code_imports_no_numba() -> None:
    check = "import sys; from roster.records.native import kernel; kernel(); print('numba' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_records_of_a_fetch_response_are_views_into_its_frame() -> None:
    part = FetchResponse.Partition(records=build_batch([Record(value=b"v")]))
    frame = encode_response(FetchResponse(responses=[FetchResponse.Topic(topic="t", partitions=[part])]), 12, 1)[4:]
    records = decode_response(FetchResponse, 12, frame)[1].responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame


def test_header_size_is_one_constant() -> None:
    assert decode_layout.HEADER == HEADER_SIZE


def test_partitions_of_a_response_share_record_batches() -> None:
    parts = [build_batch([Record(value=b"%d" % n)] * 3, base_offset=10 * n) for n in range(4)]
    pages = np.frombuffer(b"".join(parts), np.uint8)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    spans = enumerate(zip([0, *ends], ends, strict=False))
    table = scan(NATIVE, pages, [Part(*span, 10 * n + 1, 10 * n + 3, n) for n, span in spans]).table
    partitions = [("b", 7), ("a", 7), ("b", 0), ("a", 1)]
    (batch,) = RecordColumns(NATIVE, partitions).batches(pages, table)
    found = zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")), strict=True)
    assert [*found] == [(*partitions[n], 10 * n + k, b"%d" % n) for n in range(4) for k in (1, 2)]


@pytest.mark.parametrize("size", [1, 5000])
def test_a_wrong_crc_is_told_with_its_partition(size: int) -> None:
    whole = build_batch([Record(value=bytes(size))], base_offset=7)
    pages = np.frombuffer(whole * 2 + whole[:-1] + b"x", np.uint8)
    parts = [Part(n * len(whole), (n + 1) * len(whole), 7, 8, 5 - n) for n in range(3)]
    with pytest.raises(ScanError, match="offset 7: record batch: the CRC") as raised:
        scan(NATIVE, pages, parts)
    assert raised.value.source == 3


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("more", [1, 5, 3000])
@pytest.mark.parametrize("field", ["key", "value", "header"])
def test_a_last_record_that_goes_on_behind_its_batch_is_refused(kernel: Any, field: str, more: int) -> None:
    """Its lengths agree with each other: what lies behind, another partition's bytes, completes it."""
    filler = b"x" * (3000 + more)
    parts = {"key": {"key": filler}, "value": {"value": filler}, "header": {"headers": (("h", filler),)}}
    whole = build_batch([Record(**parts[field])])  # type: ignore[arg-type]
    short = bytearray(whole[: len(whole) - more])
    short[8:12] = (len(short) - 12).to_bytes(4, "big")
    pages = np.frombuffer(recheck(short) + whole[len(short) :] + b"more", np.uint8)
    table = scan(kernel, pages, [Part(0, len(short), FIRST, LAST)]).table
    with pytest.raises(WireError, match="length beyond the bytes left"):
        list(RecordColumns(kernel, [("t", 0)], headers=True).batches(pages, table))
