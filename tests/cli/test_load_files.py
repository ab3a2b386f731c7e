"""Files as records: what is sent for each format, and that a bad row is named by its line before anything is sent."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import json
import math
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roster.cli.errors import UserError
from roster.cli.load import csv_source
from roster.cli.load.formats import open_source
from roster.cli.load.json_rows import json_rows
from roster.cli.load.source import Checked
from tests.examples_tried import examples

LONG_BEFORE_A_BAD_BYTE = gzip.compress(b"k,b\n" + (b"1,%02000d\n" % 2) * 6_000 + b"\xff,2\n", mtime=0)


def column(records, name: str) -> list[bytes | None]:
    return records.column(name).to_pylist()


def read(path: Path, key: tuple[str, ...] = (), **options) -> tuple[list[bytes | None], list[dict]]:
    source = open_source(path, key, **options)
    checked = source.check()
    keys, values = [], []
    for records in source.batches():
        keys += column(records, "key")
        values += [json.loads(value) for value in column(records, "value")]
    assert checked.rows == len(values) == len(keys)
    return keys, values


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_csv_numbers_are_numbers_only_where_every_value_of_the_column_is_one(tmp_path):
    path = write(tmp_path / "a.csv", b"n,zip,mixed,flag,x\n1,01234,7,true,1.50\n-2,99999,N7,false,\n")
    keys, values = read(path, ("zip",))
    assert keys == [b"01234", b"99999"]
    assert values == [
        {"n": 1, "zip": "01234", "mixed": "7", "flag": True, "x": 1.5},
        {"n": -2, "zip": "99999", "mixed": "N7", "flag": False, "x": None},
    ]


def test_csv_digits_arrive_as_they_were_written(tmp_path):
    source = open_source(write(tmp_path / "a.csv", b"x\n0.10000000000000000000001\n1e400\n"), ())
    source.check()
    (records,) = source.batches()
    assert column(records, "value") == [b'{"x": 0.10000000000000000000001}', b'{"x": 1e400}']


def test_csv_several_key_columns_make_a_json_array_and_null_stays_null(tmp_path):
    path = write(tmp_path / "a.csv", b'carrier,tail\nUA,N1\nUA,\n"a""b",x\n')
    assert read(path, ("carrier", "tail"))[0] == [b'["UA", "N1"]', b'["UA", null]', b'["a\\"b", "x"]']
    assert read(path, ("tail",))[0] == [b"N1", None, b"x"]


def test_csv_named_nulls(tmp_path):
    path = write(tmp_path / "a.csv", b"x,y\n1,NA\nNA,b\n")
    assert read(path, nulls=("NA",))[1] == [{"x": 1, "y": None}, {"x": None, "y": "b"}]
    assert read(path)[1] == [{"x": "1", "y": "NA"}, {"x": "NA", "y": "b"}]


@pytest.mark.parametrize("pack", ["gz", "zip"])
def test_packed_files_read_like_plain_ones(tmp_path, pack):
    data = b"a,b\n1,x\n2,y\n"
    path = tmp_path / f"f.csv.{pack}"
    if pack == "gz":
        path.write_bytes(gzip.compress(data))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("f.csv", data)
            archive.writestr("__MACOSX/._f.csv", b"junk")
    assert read(path, ("a",)) == ([b"1", b"2"], [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])


def test_csv_a_bad_row_is_named_by_its_line_even_after_values_that_span_lines(tmp_path):
    path = write(tmp_path / "a.csv", b'a,b\n"x\ny",1\n\n2,3\n4\n5,6\n')
    with pytest.raises(UserError, match=r"line 6: 1 columns, expected 2: '4'; correct the line or pass --skip-bad"):
        read(path)
    assert read(path, skip_bad=True)[1] == [{"a": "x\ny", "b": 1}, {"a": "2", "b": 3}, {"a": "5", "b": 6}]


def test_csv_a_bad_row_behind_the_last_good_one_is_seen(tmp_path):
    with pytest.raises(UserError, match="line 2: 3 columns"):
        read(write(tmp_path / "a.csv", b"a,b\n1,2,3\n"))


@pytest.mark.parametrize("skip_bad", [False, True])
def test_csv_a_quote_that_is_never_closed_does_not_swallow_the_rows_behind_it(tmp_path, skip_bad):
    path = write(tmp_path / "a.csv", b'a,b\n"x\ny",1\n2,"open\n3,4\n5,6\n')
    with pytest.raises(UserError, match=r"line 4: a quote is opened and never closed; correct the line"):
        read(path, skip_bad=skip_bad)


def test_csv_a_lone_quote_inside_a_value_is_text(tmp_path):
    assert read(write(tmp_path / "a.csv", b'a,b\n5" disk,1\nx,2'))[1] == [{"a": '5" disk', "b": 1}, {"a": "x", "b": 2}]


def test_csv_bad_rows_are_found_before_the_first_record_is_sent(tmp_path):
    rows = (b"1,%0200d\n" % 2) * 40_000
    source = open_source(write(tmp_path / "a.csv", b"a,b\n" + rows + b"oops\n"), ())
    with pytest.raises(UserError, match="line 40002"):
        source.check()


def test_csv_a_bad_row_that_is_met_while_rows_before_it_are_checked_is_not_forgotten(tmp_path, monkeypatch):
    handlers = []

    options_of, row = pacsv.ParseOptions, pacsv.InvalidRow(expected_columns=2, actual_columns=1, number=3, text="oops")

    def parse_options(*, invalid_row_handler, **options):
        handlers.append(invalid_row_handler)
        return options_of(invalid_row_handler=invalid_row_handler, **options)

    def parsed_ahead(*_):
        handlers.pop()(row)
        return 0

    monkeypatch.setattr(pacsv, "ParseOptions", parse_options)
    monkeypatch.setattr(csv_source, "_most_bytes", parsed_ahead)  # as pyarrow's own thread does if the file is slow
    source = open_source(write(tmp_path / "a.csv", b"a,b\n1,2\n"), ())
    with pytest.raises(UserError, match="line 3: 1 columns, expected 2"):
        source.check(1)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"", "is empty; expected a CSV header line"),
        ("a.csv", b"a,a\n1,2\n", "has the column a more than once"),
        ("a.csv", b"a,b\n1,2\n", "--key: no column k in .*; it has a, b"),
        ("a.csv", b"\xff\xfe,b\n1,2\n", "line 1"),
        ("a.csv", b"k,\xe9\n1,2\n", "line 1: the byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("a.csv", b"k,b\n1,\xff\n", "line 2: the byte 0xff is not UTF-8; save the file as UTF-8"),
        ("a.csv", b'\xef\xbb\xbfk,b\r\n"1\r\n\r\n2",\xc3\xa4\r\n3,\xc3\r\n', "line 5: the byte 0xc3 is not UTF-8"),
        ("a.csv.gz", LONG_BEFORE_A_BAD_BYTE, "line 6002: the byte 0xff"),
        ("a.txt", b"k\n1\n", "cannot tell the format"),
        ("a.csv.gz", b"k\n1\n", "damaged or cut short"),
        ("a.csv.gz", gzip.compress(b"k,l\n" * 1000, mtime=0)[:-9], "damaged or cut short"),
        ("a.csv.zip", b"k\n1\n", "not a zip archive"),
        ("a.parquet", b"PAR1 nonsense", "not readable as Parquet"),
        ("a.parquet.gz", b"", "unpack it first"),
        ("a.jsonl", b'{"k": 1}\n{"k": \n', "line 2: not JSON"),
        ("a.jsonl", b'{"k": 1}\n[1]\n', "line 2: expected a JSON object"),
        ("a.jsonl", b'{"k": 1}\n\n{"j": 1}\n', "--key: no field k in .* line 3; it has j"),
        ("a.jsonl", b'{"k": 1}\n\xff\n', "line 2: not UTF-8: invalid start byte at byte 0"),
        (
            "a.jsonl",
            b'{"k": 1}\n{"k": 1, "x": NaN}\n',
            "line 2: NaN is not JSON, use null; correct the line or pass --s",
        ),
        ("a.jsonl", b'{"k": Infinity}\n', "line 1: Infinity is not JSON"),
        ("a.jsonl", b'{"k": {"a.b": [1, {"c": -Infinity}]}}\n', "line 1: -Infinity is not JSON"),
        ("a.jsonl", b'{"k": NaN, "k": 1}\n', "line 1: NaN is not JSON"),
        ("a.jsonl", b"NaN\n", "line 1: NaN is not JSON"),
        ("a.jsonl", b'{"k":' * 2000 + b"NaN" + b"}" * 2000, "line 1: "),
    ],
)
def test_every_unreadable_file_is_one_clear_error(tmp_path, name, data, message):
    with pytest.raises(UserError, match=message) as caught:
        read(write(tmp_path / name, data), ("k",))
    assert "\n" not in caught.value.message


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    with pytest.raises(UserError, match="is not there"):
        open_source(tmp_path / "no.csv", ())
    with pytest.raises(UserError, match="is a directory"):
        open_source(tmp_path, ())


def test_json_lines_are_sent_as_their_own_bytes(tmp_path):
    lines = [b'{"k":1.0,"v":[1, 2]}', '{"k":"\u00e4", "v":null}'.encode(), b'{"k":null}']
    source = open_source(write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\n\n"), ("k",))
    assert source.check() == Checked(3, 0)
    (records,) = source.batches()
    assert column(records, "value") == lines
    assert column(records, "key") == [b"1.0", "\u00e4".encode(), None]


def test_json_lines_skip_bad_rows(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"k":1}\nnope\n{"k":2}\n{"k":NaN}\n')
    source = open_source(path, ("k",), skip_bad=True)
    assert source.check() == Checked(2, 2)
    assert read(path, ("k",), skip_bad=True)[0] == [b"1", b"2"]


def test_parquet_types_become_json(tmp_path):
    table = pa.table(
        {
            "i": [1, None],
            "f": [1.5, math.nan],
            "s": ['q"\\\t', None],
            "d": pa.array(["x", "y"]).dictionary_encode(),
            "t": pa.array([datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC), None], pa.timestamp("ms", "UTC")),
            "day": [datetime.date(2013, 1, 1), None],
            "m": [decimal.Decimal("1.50"), None],
            "b": [b"\x00\xff", None],
            "l": [[1.0, math.inf], None],
            "o": [{"a": datetime.date(2013, 1, 1)}, None],
            "e": [True, None],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    keys, values = read(tmp_path / "a.parquet", ("i", "d", "t"))
    assert keys == [b'["1", "x", "2013-01-01T05:00:00.000Z"]', b'[null, "y", null]']
    assert values[0] == {
        "i": 1,
        "f": 1.5,
        "s": 'q"\\\t',
        "d": "x",
        "t": "2013-01-01T05:00:00.000Z",
        "day": "2013-01-01",
        "m": 1.5,
        "b": "AP8=",
        "l": [1.0, None],
        "o": {"a": "2013-01-01"},
        "e": True,
    }
    assert values[1] == dict.fromkeys(values[0]) | {"d": "y"}


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "text": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
                "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
                "real": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "flag": st.none() | st.booleans(),
                'na"me\\': st.none() | st.lists(st.integers(0, 9), max_size=2),
            }
        ),
        min_size=1,
    )
)
def test_rows_read_back_by_the_json_module_are_the_rows_written(rows):
    schema = pa.schema(
        {
            "text": pa.string(),
            "whole": pa.int64(),
            "real": pa.float64(),
            "flag": pa.bool_(),
            'na"me\\': pa.list_(pa.int64()),
        }
    )
    texts = json_rows(pa.RecordBatch.from_pylist(rows, schema)).to_pylist()
    assert [json.loads(text) for text in texts] == rows


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.integers()), min_size=1),
    st.sampled_from(["\n", "\r\n"]),
)
def test_csv_written_by_the_csv_module_reads_back(tmp_path, rows, newline):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=newline, quoting=csv.QUOTE_ALL)
    writer.writerows([("s", "n"), *rows])
    _, values = read(write(tmp_path / "h.csv", text.getvalue().encode()))
    assert [(str(value["s"]), str(value["n"])) for value in values] == [(s, str(n)) for s, n in rows] or all(
        isinstance(value["s"], bool | int | float) for value in values
    )
