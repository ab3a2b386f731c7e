"""Rooms that need no Spark are imported without PySpark, but for the files that the import contract names."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
CONTRACT = next(contract for contract in CONTRACTS if "need no PySpark" in contract["name"])
NAMED = [line.partition(" -> ")[0] for line in CONTRACT["ignore_imports"]]
PROGRAM = """
import importlib, pkgutil, sys
*rooms, named = sys.argv[1:]
for room in rooms:
    for found in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
        if found.name not in named.split():
            importlib.import_module(found.name)
            assert "pyspark" not in sys.modules, found.name
print(sum(name.startswith(tuple(rooms)) for name in sys.modules))
"""


@pytest.mark.process
def test_no_module_of_these_rooms_imports_pyspark() -> None:
    command = [sys.executable, "-c", PROGRAM, *CONTRACT["source_modules"], " ".join(NAMED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert int(done.stdout) > 80
