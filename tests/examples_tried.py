"""Hypothesis profiles, and how many examples or seeded cases a test tries.

| profile | examples |
|---|---|
| `full` | the same in each run: `make gate`, and pytest by itself |
| `quick` | few of them, the same in each run: `make unit`, `make test` |
| `explore` | those that `--hypothesis-seed` and ROSTER_SEED draw, whatever failed before: `make explore` |
"""

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import Phase, settings

_PHASES = [phase for phase in Phase if phase is not Phase.explain]
"""Before Python 3.12 an explanation traces each line while an example shrinks: minutes, for a hint."""
QUICK = 5
"""Most examples of any test under the profile `quick`."""
Case = TypeVar("Case")


def load_profile() -> None:
    """Register the profiles and load the one that `HYPOTHESIS_PROFILE` names."""
    settings.register_profile("full", deadline=None, derandomize=True, print_blob=True, phases=_PHASES)
    settings.register_profile("quick", settings.get_profile("full"), max_examples=QUICK)
    settings.register_profile("explore", deadline=None, database=None, print_blob=True, phases=_PHASES)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "full"))


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
