"""Properties files, as Java reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.security import SettingError
from roster.security.properties import read_properties
from tests.examples_tried import examples
from tests.real.realparts import jvm

PIECES = st.sampled_from(
    [*" \t\f=:#!\\", "\n", "\r", "\r\n", "\\\n", "\\\r\n", "a", "key", "é", "\\u00e9", "\\u12", "\\t", "\\\\", "\\:"]
)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a=b", {"a": "b"}),
        ("a : b ", {"a": "b "}),
        ("a b=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("# a=b\n ! c=d\n\n", {}),
        ("a=1\\\n   2,\\\r\n\t3", {"a": "12,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a\\=b\\ c\\:=d", {"a=b c:": "d"}),
        ("a=\\u00e9\\tx\\q", {"a": "é\txq"}),
        ("a=1\na=2", {"a": "2"}),
        ("a==b", {"a": "=b"}),
        ("a=1\\\n", {"a": "1"}),
    ],
)
def test_lines_are_read_as_java_reads_them(text: str, read: dict[str, str]) -> None:
    assert read_properties(text) == read


def test_a_cut_escape_names_its_line() -> None:
    with pytest.raises(SettingError, match="line 2: an escape"):
        read_properties("a=1\nb=\\u12")


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory):
    program = Path(__file__).parent / "java" / "PropertiesOracle.java"
    with jvm.oracle(program, jvm.jars(), tmp_path_factory.mktemp("properties") / "stderr.log") as ask:
        yield ask


@pytest.mark.real
@settings(max_examples=examples(300))
@given(text=st.lists(PIECES, max_size=24).map("".join))
@example(text="\\\n\\\n a")
@example(text="a=\\\n#b")
@example(text="a=b\\")
def test_any_text_is_read_as_java_util_properties_does(java, text: str) -> None:
    text += "\nz=1\n"  # at the very end Java makes "\\" a property without a name, "\\\r\n" none
    _, theirs = java("properties", 0, text.encode())
    try:
        ours = read_properties(text)
    except SettingError:
        ours = None
    assert ours == theirs
