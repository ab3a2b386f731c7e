"""What keeps tasks in Python workers cheap: loaded modules stay out of garbage collection, parts are sent once.

PySpark's daemon runs a full collection after each task. With pyarrow and numpy loaded it visits some hundred thousand
objects that live as long as the worker. That takes 40 to 50 ms of CPU, several times the cost of a small batch's task.
"""

from __future__ import annotations

import gc
import sys


class SentOnce:
    """A part of tasks that never changes: the worker that stays gets its bytes once, not with each task."""

    __slots__ = ()


_modules_frozen = 0
"""How many modules were loaded when objects were frozen last."""


def is_in_task() -> bool:
    """Return True in a process that runs a Spark task, False in the driver."""
    loaded = sys.modules.get("pyspark.taskcontext")  # which Spark's worker imports before it runs a task
    return loaded is not None and loaded.TaskContext.get() is not None


def freeze_loaded() -> None:
    """Freeze live objects (`gc.freeze`) at the end of a task, if modules were loaded since the last time.

    Garbage is collected first. Does nothing outside a Spark task.
    """
    global _modules_frozen  # noqa: PLW0603 - a process's own
    if not is_in_task() or len(sys.modules) == _modules_frozen:
        return
    gc.collect()
    gc.freeze()
    _modules_frozen = len(sys.modules)
