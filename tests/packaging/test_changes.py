"""Fragments of the changelog: a wrong name would leave a change out of the notes without a word."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_fragment_has_a_kind_that_the_release_gathers() -> None:
    towncrier = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in towncrier["type"])
    names = {path.name for path in (ROOT / towncrier["directory"]).iterdir()} - {"README.md"}

    assert {name for name in names if not re.fullmatch(rf"\+[\w-]+\.({kinds})\.md", name)} == set()


def test_releases_are_added_behind_the_marker() -> None:
    assert (ROOT / "CHANGELOG.md").read_text().count("\n<!-- towncrier release notes start -->\n") == 1
