"""Texts as numbers, whatever texts stand beside them in a column."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from roster.state.expressions import FUNCTIONS

TEXTS = st.lists(st.none() | st.text(" \t+-.0123456789eE", max_size=24), max_size=3)


@given(texts=TEXTS, name=st.sampled_from(["int", "bigint", "float", "double"]))
@example(texts=["9223372036854775808", "12"], name="bigint")
@example(texts=["+5", ".5", "5.", "-0"], name="double")
def test_a_number_does_not_depend_on_the_texts_beside_it(texts: list[str | None], name: str) -> None:
    cast = FUNCTIONS[f"try {name}"]

    def numbers(values: list[str | None]) -> list[str]:
        return [repr(number) for number in cast(pa.array(values, pa.string())).to_pylist()]

    assert numbers(texts) == numbers([*texts, "no number"])[:-1]
