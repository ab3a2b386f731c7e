"""Nexmark's queries as pipelines, held to Spark's SQL, and timed beside Structured Streaming."""

from __future__ import annotations


def run(*, quick: bool) -> None:
    """With the default number of events, or a tenth of it."""
    from benchmarks.nexmark.__main__ import main  # noqa: PLC0415 - brings Spark with it

    main(["--records", "50000"] if quick else [])
