"""The hooks with which the site is built."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.real.realparts import installed


@pytest.fixture(scope="session")
def hooks() -> ModuleType:
    """Load docs/hooks.py, which is in no package."""
    for tool in ("griffe", "mkdocs", "mermaidx"):
        installed(tool)
    spec = importlib.util.spec_from_file_location("docs_hooks", Path(__file__).parents[2] / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
