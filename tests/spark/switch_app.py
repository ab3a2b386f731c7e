"""The program of stateful_app.py, which numbers the rows of each key, and writes or is paused at first.

switch_app.py … of stateful_app.py … writes|paused
"""

from __future__ import annotations

import sys

from tests.spark.stateful_app import Numbering, main

if __name__ == "__main__":
    main(Numbering("number"), paused=sys.argv.pop() == "paused")
