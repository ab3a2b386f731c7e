"""What mypy and ruff are told to leave alone: three counts of lines that do not grow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("pattern", "most", "instead"),
    [
        (r"\bAny\b", 600, "the type, a Protocol, a type variable or object"),
        ("type: ignore", 33, "a type that mypy understands, or an override in pyproject.toml for a kind of file"),
        (r"\bnoqa\b", 111, "other code, or a rule in pyproject.toml for a kind of file"),
    ],
)
def test_no_more_lines_are_exempt(pattern: str, most: int, instead: str) -> None:
    lines = (line for path in SOURCE.rglob("*.py") for line in path.read_text(encoding="utf-8").splitlines())
    count = sum(re.search(pattern, line) is not None for line in lines)
    assert count <= most, f"{count} lines of src have {pattern}; write {instead}"
