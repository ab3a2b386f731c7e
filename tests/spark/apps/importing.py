"""An import, or a repartition of a group's state, that kills its own process, workers and JVM too, behind one step.

importing.py BOOTSTRAP GROUP FOLDER STEP [repartition]
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from roster.client import Admin, TransactionalProducer
from roster.saved.importing import Importer
from roster.spark import session
from roster.spark.state import import_state, repartition_state

STEPS: dict[str, tuple[type, str]] = {
    "topics": (Importer, "_make_topics"),
    "partitions": (TransactionalProducer, "add_partitions"),
    "records": (Importer, "_write"),
    "commit": (TransactionalProducer, "commit"),
}
NOTED: dict[str, tuple[type, str]] = {"note": (Admin, "commit_group_offsets")}
"""The step of a repartition that an import has not."""


def main() -> None:
    bootstrap, group, folder, step, *more = sys.argv[1:]
    owner, name = (STEPS | NOTED)[step]
    made = getattr(owner, name)

    def and_kill(*given: Any) -> None:
        made(*given)
        os.killpg(os.getpid(), signal.SIGKILL)

    setattr(owner, name, and_kill)
    work = repartition_state if more else import_state
    work(session("import"), bootstrap, group, folder)


if __name__ == "__main__":
    main()
