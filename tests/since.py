"""`pytest --since REVISION`: the tests of what has changed since, and of all that imports it.

A folder of tests stands for the package of its name. It runs if a module of that package has changed or imports,
through any others, a module that has. Tests with real parts are left to `make test`, but for those that changed, and
tests with Spark run only if `roster.spark` is among these modules.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import grimp
import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
STANDS_FOR = {
    "examples": "examples",
    "docs": "docs",
    "simulation": "src/roster/member",
    "packaging": "pyproject.toml",
}
"""Folders of tests without a package of their name: what they are about."""
RUN_PIPELINES = ("pipeline", "sinks", "stateful", "saved")
"""Folders whose tests run whole pipelines, with helpers of `tests/spark`: they are about `roster.spark`, too."""
EVERYTHING = ("constraints.txt", "tests/conftest.py", "tests/examples_tried.py", "tests/waiting.py")
"""Files whose change can make any test fail."""


def changed_files(revision: str) -> set[str]:
    """Return paths, relative to the root, that differ from a revision or are not in it. Raises UsageError."""
    paths: set[str] = set()
    for command in (["diff", "--name-only", revision, "--"], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise pytest.UsageError(f"--since: {done.stderr.strip().splitlines()[0]}")
        paths |= set(done.stdout.splitlines())
    return paths


def affected_sources(changed: set[str]) -> set[str]:
    """Return the changed files, and every module under `src` that imports one of them, as a path."""
    graph = grimp.build_graph("roster")
    modules = {_module(path) for path in changed if path.startswith("src/") and path.endswith(".py")} & graph.modules
    affected = modules.union(*(graph.find_downstream_modules(module) for module in modules))
    return changed | {f"src/{module.replace('.', '/')}.py" for module in affected}


def _module(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Since:
    """The plugin: ignores the files that need not run."""

    def __init__(self, revision: str) -> None:
        self.revision, self._changed = revision, changed_files(revision)
        self._sources = affected_sources(self._changed)
        self._folders = {str(Path(path).parent) for path in self._changed if path.startswith("tests/")}

    def runs(self, test: Path) -> bool:
        """True if a file of tests has to run."""
        path = test.relative_to(ROOT).as_posix()
        if path in self._changed or self._changed & set(EVERYTHING):
            return True
        helpers = {name for name in self._changed if not Path(name).name.startswith("test_")}
        folder = test.parent.relative_to(TESTS).as_posix()
        room = folder.split("/")[0]
        folders = [folder, "spark"] if room in RUN_PIPELINES else [folder]
        if any(f"tests/{each}/".startswith(f"{Path(name).parent.as_posix()}/") for name in helpers for each in folders):
            return True
        abouts = [STANDS_FOR.get(room, f"src/roster/{each}") for each in folders]
        return any(source == about or source.startswith(f"{about}/") for source in self._sources for about in abouts)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
        return True if is_test and not self.runs(collection_path) else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        has_spark = any(source.startswith("src/roster/spark/") for source in self._sources)
        left_out = {"real"} if has_spark else {"real", "spark"}
        kept = [item for item in items if self._is_changed(item) or not any(map(item.get_closest_marker, left_out))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept

    def _is_changed(self, item: pytest.Item) -> bool:
        return item.path.relative_to(ROOT).as_posix() in self._changed

    def pytest_report_header(self) -> str:
        return f"since {self.revision}: {len(self._changed)} changed files"
