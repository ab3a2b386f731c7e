"""The program of stateful.py in one of several releases, which keep other results.

changing.py … of stateful.py … RELEASE
"""

from __future__ import annotations

import sys

from roster.state.aggregate import Aggregation
from tests.spark.apps.stateful import main
from tests.state.aggregate_texts import aggregate_of

RELEASES = [
    {"count": "count(*)", "sum": "sum(n)"},
    {"most": "max(n)", "sum": "sum(n)", "count": "count(*)"},
    {"sum": "sum(n)", "n": "count(*)", "mean": "avg(n)"},
]
MIGRATE = [None, None, {"n": "count"}]

if __name__ == "__main__":
    release = int(sys.argv.pop())
    kept = {name: aggregate_of(text) for name, text in RELEASES[release].items()}
    main(Aggregation(("k",), kept), migrate=MIGRATE[release])
