"""A program that stands still once, with its JVM and its tasks, at a step of a batch's transaction.

    python frozen_driver.py STEP FILE PROGRAM

STEP is a method of `KafkaTransactions`, before which it stands still, or `committed`: behind `commit`. It does so at
the first step after FILE is there, and removes FILE.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from roster.sinks.kafka_transactions import KafkaTransactions


def stand_still(file: Path) -> None:
    if file.exists():
        file.unlink()
        os.killpg(0, signal.SIGSTOP)


def freeze_at(step: str, file: Path) -> None:
    """Have every instance stand still at that step."""
    name = "commit" if step == "committed" else step
    original = getattr(KafkaTransactions, name)

    def watched(*arguments: Any, **more: Any) -> Any:
        if step == name:
            stand_still(file)
        result = original(*arguments, **more)
        if step != name:
            stand_still(file)
        return result

    setattr(KafkaTransactions, name, watched)


if __name__ == "__main__":
    _, chosen, awaited, program = sys.argv
    freeze_at(chosen, Path(awaited))
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")
