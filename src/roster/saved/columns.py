"""Columns of a DataFrame that has to be a part of a store."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType


def column_types(schema: StructType) -> dict[str, str]:
    """Return each column's type as Spark names it."""
    return {field.name: field.dataType.simpleString() for field in schema}


def column_differences(given: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return all differences between columns and those wanted, "" if there are none."""
    missing = [f"{name} {kind} is missing" for name, kind in wanted.items() if name not in given]
    others = [f"{name} {kind} is too many" for name, kind in given.items() if name not in wanted]
    common = [name for name in wanted if name in given]
    changed = [f"{name} is {given[name]}, not {wanted[name]}" for name in common if given[name] != wanted[name]]
    return "; ".join([*missing, *changed, *others])
