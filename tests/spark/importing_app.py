"""An import that kills its own process, workers and JVM included, behind one step.

importing_app.py BOOTSTRAP GROUP FOLDER STEP
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from roster.client import TransactionalProducer
from roster.spark import session
from roster.spark.state import import_state
from roster.spark.state.saved.importing import Importer

STEPS: dict[str, tuple[type, str]] = {
    "topics": (Importer, "_make_topics"),
    "partitions": (TransactionalProducer, "add_partitions"),
    "records": (Importer, "_write"),
    "commit": (TransactionalProducer, "commit"),
}


def main() -> None:
    bootstrap, group, folder, step = sys.argv[1:]
    owner, name = STEPS[step]
    made = getattr(owner, name)

    def and_kill(*given: Any) -> None:
        made(*given)
        os.killpg(os.getpid(), signal.SIGKILL)

    setattr(owner, name, and_kill)
    import_state(session("import"), bootstrap, group, folder)


if __name__ == "__main__":
    main()
