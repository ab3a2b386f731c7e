"""A clock of the modules under test alone.

A patched `time.monotonic` or `time.sleep` would be that of every thread of the process too: PySpark's, other brokers'.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def patch_time(patch: pytest.MonkeyPatch, *modules: ModuleType, **functions: Any) -> None:
    """Give modules that `import time` these functions of it, for example `monotonic=lambda: now[0]`."""
    for module in modules:
        patch.setattr(module, "time", SimpleNamespace(**{**vars(module.time), **functions}))
