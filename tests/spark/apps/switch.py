"""The program of stateful.py, which numbers the rows of each key, and writes or is paused at first.

switch.py … of stateful.py … writes|paused
"""

from __future__ import annotations

import sys

from tests.spark.apps.stateful import Numbering, main

if __name__ == "__main__":
    main(Numbering("number"), paused=sys.argv.pop() == "paused")
