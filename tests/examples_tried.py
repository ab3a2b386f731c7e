"""Hypothesis profiles, and how many examples or seeded cases a test tries.

| profile | examples |
|---|---|
| `dev` | new ones in each run |
| `ci` | the same in each run |
| `seeded` | what `--hypothesis-seed` says, whatever failed before |
| `quick` | few, the same in each run: `make unit` |
"""

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

QUICK = 8
"""Most examples of any test under the profile `quick`."""
Case = TypeVar("Case")


def load_profile(default: str) -> None:
    """Register the profiles and load the one that `HYPOTHESIS_PROFILE` names."""
    settings.register_profile("dev", deadline=None)
    settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
    settings.register_profile("seeded", deadline=None, database=None)
    settings.register_profile("quick", settings.get_profile("ci"), max_examples=QUICK)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", default))


def examples(count: int, variable: str | None = None, quick: int = QUICK) -> int:
    """How many examples a test tries that asks for `count`, or for what the environment `variable` says."""
    asked = int(os.environ.get(variable, count)) if variable else count
    return min(asked, quick) if is_quick() else asked


def some(cases: Sequence[Case], quick: int = QUICK) -> Sequence[Case]:
    """All cases; under the profile `quick` so many of them, spread evenly, with the first and the last."""
    if not is_quick() or len(cases) <= quick:
        return cases
    return [cases[number * (len(cases) - 1) // (quick - 1)] for number in range(quick)]


def is_quick() -> bool:
    """True under the profile `quick`."""
    return os.environ.get("HYPOTHESIS_PROFILE") == "quick"
