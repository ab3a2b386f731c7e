"""The compiled loop over JSON objects: against Arrow's reader and Python's, with every index checked, and when odd."""

from __future__ import annotations

import json
import pickle
import random
import resource
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.pipeline.tasks.flat_json import FlatJson, is_flat
from roster.pipeline.tasks.json_values import JsonReader, parsed
from roster.records import native
from roster.wire.columns import json_kernel
from tests.examples_tried import examples
from tests.wire.plain_kernel import PlainKernel

FIELDS = pa.schema(
    [
        ("s", pa.string()),
        ("l", pa.int64()),
        ("i", pa.int8()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("w", pa.timestamp("us")),
        ("a", pa.date32()),
        ("größe", pa.string()),
    ]
)
READER = JsonReader(FIELDS)
NATIVE = FlatJson(FIELDS, native.compiled(native.JSON))
PLAIN = FlatJson(FIELDS, None, PlainKernel(json_kernel))
RECORDS = examples(20_000, "ROSTER_JSON_RECORDS", quick=2_000)


def column(lines: list[bytes | None]) -> pa.Array:
    """Values whose buffer ends where the last one does, behind others that are not theirs."""
    return pa.array([b'{"l":77}', *lines], pa.binary()).slice(1)


def is_odd(line: bytes) -> bool:
    """True if the loop leaves it to the other reader."""
    return len(NATIVE.read(column([line]))[1]) == 1


def shown(rows: Any) -> list[str]:
    """Rows as text: NaN, the sign of zero, and days and moments as their number."""
    of = {pa.date32(): pa.int32(), pa.timestamp("us"): pa.int64(), pa.timestamp("us", "UTC"): pa.int64()}
    columns = [each.cast(of.get(each.type, each.type)) for each in rows.columns]
    return [repr(row) for row in zip(*(each.to_pylist() for each in columns), strict=True)]


def check(lines: list[bytes | None]) -> None:
    """What the loop decides is what each value is alone, as read before there was a loop; odd values are read so."""
    values = column(lines)
    rows, problems = READER.read(values)
    rows.validate(full=True)
    assert rows.schema == FIELDS
    odd = NATIVE.read(values)[1].tolist()
    expected = {number: parsed(values.slice(number, 1), FIELDS, [number]) for number in range(len(lines))}
    assert not any(bad for number, (_, bad) in expected.items() if number not in odd)
    texts = [shown(row)[0] for row, _ in expected.values()]
    rest, bad = parsed(values.take(pa.array(odd, pa.int64())), FIELDS, odd)
    for number, text in zip(odd, shown(rest), strict=True):
        texts[number] = text
    assert (shown(rows), problems) == (texts, bad)


DIGITS = st.text("0123456789", max_size=22)
NUMBER = st.one_of(
    st.integers().map(str),
    st.floats().map(json.dumps),
    st.floats(width=32).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.builds(
        "{}{}.{}e{}{}".format, st.sampled_from(["", "-"]), DIGITS, DIGITS, st.sampled_from(["", "-", "+"]), DIGITS
    ),
)
ZONE = st.sampled_from(["", "Z", "z", "+01:00", ".5", ".123456Z", ".1234567Z", ".Z", " "])
TIME = st.one_of(
    st.datetimes().map(str),
    st.builds("{}{}".format, st.datetimes().map(lambda each: each.replace(microsecond=0).isoformat()), ZONE),
    st.dates().map(str),
    st.builds(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z".format, *(st.integers(0, most) for most in (9999, 13, 32, 24, 60, 60))
    ),
).map(json.dumps)
TEXT = st.one_of(
    st.text(max_size=6).map(json.dumps),
    st.text(max_size=6).map(lambda each: json.dumps(each, ensure_ascii=False)),
    st.text('\\"/bfnrtu0dD8aA', max_size=8).map('"{}"'.format),
)
SCALAR = st.one_of(
    NUMBER, TIME, TEXT, st.sampled_from(["null", "true", "false", "NaN", "nul", "-", "", "01", "1.", "tru"])
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{','.join(each)}]"),
        st.lists(st.tuples(TEXT, inner), max_size=3).map(lambda each: "{" + ", ".join(map(" : ".join, each)) + "}"),
    ),
    max_leaves=4,
)
NAME = st.sampled_from([*FIELDS.names, "other", "ll", "", "\\u006c"]).map('"{}"'.format) | TEXT
SPACE = st.text(" \t\r\n", max_size=2)
MEMBER = st.builds("{2}{0}{2}:{2}{1}{2}".format, NAME, VALUE, SPACE)
OF_ITS_TYPE = {
    "s": TEXT,
    "l": NUMBER,
    "i": NUMBER,
    "d": NUMBER,
    "f": NUMBER,
    "t": TIME,
    "w": TIME,
    "a": TIME,
    "größe": TEXT,
}
FITTING = st.one_of(
    *(st.builds(f'"{name}":{{}}'.format, value | st.just("null")) for name, value in OF_ITS_TYPE.items())
)
LINE = st.builds("{0}{{{1}}}{0}".format, SPACE, st.lists(MEMBER | FITTING | FITTING, max_size=5).map(",".join)).map(
    lambda each: each.encode(errors="replace")
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    made = bytearray(draw(LINE))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(made)))
        what = draw(st.sampled_from(["cut", "byte", "more"]))
        if what == "cut":
            del made[place:]
        elif what == "more":
            made[place:place] = draw(st.sampled_from([b'"', b"\\", b"}", b"{", b"\xc3", b"\xff", b"\0", b",", b"1"]))
        elif place < len(made):
            made[place] = draw(st.integers(0, 255))
    return bytes(made)


LINES = st.lists(st.one_of(LINE, LINE, mutated(), st.none(), st.binary(max_size=5)), max_size=12)


@given(LINES)
@settings(max_examples=examples(150))
def test_values_among_others_are_those_of_each_alone_without_the_loop(lines: list[bytes | None]) -> None:
    check(lines)


@given(LINES)
@settings(max_examples=examples(100))
def test_the_loop_is_the_same_as_plain_python_with_every_index_checked(lines: list[bytes | None]) -> None:
    (found, found_odd), (expected, expected_odd) = (each.read(column(lines)) for each in (NATIVE, PLAIN))
    assert found_odd.tolist() == expected_odd.tolist()
    assert [shown(each) for each in found] == [shown(each) for each in expected]


def test_mutated_records_do_no_harm_to_those_between_them() -> None:
    """Every second value is good. Memory stays within a bound."""
    chance = random.Random(11)
    rest = '"größe":"\\u00e9 \\"x\\"","t":"2026-02-28T10:00:00.25Z","a":"2024-02-29","more":{"x":[1,{"y":null}]}'
    good = [
        f'{{"s":"shop é {n}", "l":{n * 7919}, "i":{n}, "d":{n / 7}, "f":{n}.5, "b":{flag},{rest}}}'.encode()
        for n, flag in enumerate(["true", "false"] * 25)
    ]
    check(list(good))
    expected = shown(parsed(column(list(good)), FIELDS, range(50))[0])
    alphabet = b'{}[]",:\\0123456789.eE+-tfn \n\x00\x7f\x80\xc3\xe2\xf0\xff'
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(RECORDS // 50):
        mixed = list[bytes | None]()
        for each in good:
            bad = bytearray(each)
            for _ in range(chance.randint(1, 3)):
                place = chance.randrange(len(bad))
                if chance.random() < 0.3:
                    del bad[place : place + chance.randint(1, 3)]
                else:
                    bad[place : place + chance.randint(0, 1)] = bytes([chance.choice(alphabet)])
            mixed += [each, bytes(bad[: chance.randint(0, len(bad))]) if chance.random() < 0.2 else bytes(bad)]
        if turn % 40 == 0:
            check(mixed)
        (rows,), found = NATIVE.read(column(mixed))
        rows.validate(full=True)
        assert not (found % 2 == 0).any()
        assert shown(rows.take(pa.array(range(0, 100, 2)))) == expected
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


PLAINLY = {
    b"{}": {},
    b" { } \r\n": {},
    b'{"s":"","l":-0,"d":-0.0}': {"s": "", "l": 0, "d": -0.0},
    b'{"s":"a\\u00e9\\u20ac\\ud83d\\ude00\\/\\n\\\\"}': {"s": "aé€\N{GRINNING FACE}/\n\\"},
    b'{"l":9223372036854775807,"i":-127}': {"l": (1 << 63) - 1, "i": -127},
    b'{"d":0.1,"f":0.1}': {"d": 0.1, "f": float(np.float32("0.1"))},
    b'{"d":-73.98765432109876,"f":16777217}': {"d": -73.98765432109876, "f": 16777216.0},
    b'{"d":9007199254740993,"f":1.00000017881393432617187499e0}': {
        "d": 9007199254740992.0,
        "f": 1.0000001192092896,
    },
    b'{"d":1e23,"f":1e-12}': {"d": 1e23, "f": float(np.float32("1e-12"))},
    b'{"b":true,"l":null,"l":4}': {"b": True, "l": 4},
    b'{"x":[[],{},{"l":[1,"]"]},"\\u00e9\\ud83d\\ude00",1e99,true],"l":5}': {"l": 5},
    '{"größe":"große","größer":1}'.encode(): {"größe": "große"},
}


@pytest.mark.parametrize("line", PLAINLY)
def test_the_loop_decides_what_is_plain(line: bytes) -> None:
    assert not is_odd(line)
    row = READER.read(column([line]))[0].to_pylist()[0]
    assert repr(row) == repr(dict.fromkeys(FIELDS.names) | PLAINLY[line])


ODD = [
    b"", b" ", b"[]", b'"x"', b"null", b"{", b'{"l":1', b'{"l":1,}', b'{"l":1}}', b'{"l":1}{"l":2}',
    b'\xef\xbb\xbf{}', b'{"l":1.0}', b'{"l":1e0}', b'{"l":9223372036854775808}', b'{"i":128}', b'{"l":"1"}',
    b'{"l":01}', b'{"l":true}', b'{"d":"NaN"}', b'{"d":NaN}', b'{"d":1e400}', b'{"d":1e-400}', b'{"f":1e39}',
    b'{"d":.5}', b'{"d":1.}', b'{"d":1e}', b'{"d":+1}', b'{"s":1}', b'{"s":"a\nb"}', b'{"s":"\\x"}',
    b'{"s":"\\ud800"}', b'{"s":"\\ude00\\ud83d"}', b'{"s":"\\u0000"}', b'{"s":"\xff"}', b'{"s":"\xed\xa0\x80"}',
    b'{"l":1,"l":2}', b'{"l":1,"l":null}', b'{"\\u006c":1}', b'{"b":1}', b'{"b":"true"}', b'{"b":tru}',
    b'{"a":"2023-02-29"}', b'{"a":"2023-1-1"}', b'{"a":5}', b'{"t":"2023-01-01T24:00:00Z"}',
    b'{"t":"2023-01-01T10:00:00+01:00"}', b'{"t":1}', b'{"w":"2023-01-01T10:00:00Z"}', b'{"t":"99x1-01-01"}',
    b'{"l":[1]}', b'{"s":{"x":1}}', b'{"x":[1,]}', b'{"x":{"a"}}', b'{"x":[}', b'{"x":"\\ud800"}', b'{"x":nul}',
    b'{"x":' + b"9" * 5000 + b"}", b'{"x":' + b"[" * 100 + b"]" * 100 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("line", ODD)
def test_the_loop_leaves_the_rest_to_the_reader_that_was_there_before(line: bytes) -> None:
    assert is_odd(line)
    check([line, b'{"l":3}', line])


def test_every_cut_of_a_value_is_read_within_its_bytes() -> None:
    whole = (
        '{"s":"é\\u00e9\\ud83d\\ude00","l":-12,"d":1.5e-3,"b":false,"t":"2026-02-28T10:00:00.25Z",'
        '"a":"2024-02-29","größe":null,"x":{"y":[true,"\\n"]}}'
    ).encode()
    for end in range(len(whole) + 1):
        _, odd_rows = PLAIN.read(column([whole[:end]]))
        assert len(odd_rows) == (end < len(whole)), whole[:end]
        check([whole[:end]])


def test_large_batches_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roster.pipeline.tasks.flat_json._CELLS", 30)
    check([b'{"l":%d}' % n if n % 5 else b'{"l":"x"}' for n in range(20)])
    check([])


def test_it_is_sent_to_tasks_without_what_is_loaded() -> None:
    sent = pickle.loads(pickle.dumps(READER))
    assert sent.read(column([b'{"l":1}']))[0].column("l").to_pylist() == [1]


def test_only_flat_fields_with_names_of_their_own_are_read_by_the_loop() -> None:
    assert is_flat(FIELDS)
    for fields in (
        [("x", pa.list_(pa.int64()))],
        [("x", pa.int64()), ("x", pa.int64())],
        [("m", pa.decimal128(9, 2))],
        [],
    ):
        assert not is_flat(pa.schema(fields))
        assert JsonReader(pa.schema(fields)).read(column([b'{"y":1}', None]))[1] == {}


def test_names_that_meet_in_the_table_are_told_apart() -> None:
    names = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop"]
    reader = JsonReader(pa.schema([(name, pa.int64()) for name in names]))
    line = json.dumps({name: number for number, name in enumerate(names)} | {"zz": 1, "a": 2}).encode()
    assert reader.read(column([line]))[0].to_pylist() == [{name: number for number, name in enumerate(names)}]
