"""The test of a pipeline that the how-to page shows, with this run's Spark session."""

from __future__ import annotations

import re
from pathlib import Path

from roster.testing import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-application.md"


def test_the_test_on_the_page_passes(spark, tmp_path):
    text = PAGE.read_text().partition("## Test a pipeline on Spark\n")[2]
    namespace: dict[str, object] = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], namespace)
    with EmbeddedBroker(partitions=2) as broker:
        namespace["test_prices_are_written"](spark, broker, tmp_path)
