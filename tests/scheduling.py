"""How tests are dealt to the processes of pytest-xdist: file by file, and those of a kind to a process of that kind.

The first process takes the files with real parts, so that there is one Apache Kafka. The next two take those with
Spark, so that there are two sessions. The others take all others, and then what is left. Dear files come first, by the
CPU seconds of their tests when they ran last; large ones if none has.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.cpu_seconds import known_seconds
from tests.waiting import until

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

TESTS = Path(__file__).parent
ROOT = TESTS.parent
KINDS = ("real", "spark")
"""Marks, the first that a file has counts; all other files are `""`."""
ORDERS = {
    "gw0": ("real", "", "spark"),
    "gw1": ("spark", "", "real"),
    "gw2": ("spark", "", "real"),
    "gw4": ("", "spark", "real"),
}
"""The order in which a process takes kinds of files."""
OTHERS = ("", "real", "spark")


class ByKind(LoadScopeScheduling):
    """Deals the dearest file of the kind that a process has taken before, while there are any."""

    def __init__(self, config: pytest.Config, log: Any, kinds: Path) -> None:
        super().__init__(config, log)
        self._kinds, self._seconds = kinds, _seconds_of_files()

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        kinds = json.loads(self._kinds.read_text())
        order = ORDERS.get(node.gateway.id, OTHERS)

        def rank(file: str) -> tuple[int, float, int, str]:
            return order.index(kinds[file]), -self._seconds[file], -(ROOT / file).stat().st_size, file

        file = min(self.workqueue, key=rank)
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def _seconds_of_files() -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for name, cost in known_seconds().items():
        seconds[name.partition("::")[0]] += cost
    return seconds


class Scheduling:
    """The plugin. `--dist loadscope` is dealt by kind; every other way of pytest-xdist stays as it is."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="roster-tests-")
        self._kinds = Path(self._folder.name) / "kinds.json"

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByKind | None:
        return ByKind(config, log, self._kinds) if config.getvalue("dist") == "loadscope" else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput["kinds"] = str(self._kinds)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Let the first two processes compile the tests for all, where none has yet: each would take 10 seconds of CPU.

        The first one collects, the second one begins at the end, and both go on until they meet.
        """
        worker = getattr(session.config, "workerinput", {})
        if worker.get("workerid", "gw0") != "gw0" and not _are_compiled():
            if worker["workerid"] == "gw1" and session.config.args == session.config.getini("testpaths"):
                _compile_from_the_end()
            with contextlib.suppress(AssertionError):  # then it compiles as well
                until(Path(worker["kinds"]).exists, 120, "the first process has collected")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        worker = getattr(session.config, "workerinput", {})
        if worker.get("workerid") != "gw0":
            return
        kinds: dict[str, str] = {}
        for item in session.items:
            file = item.nodeid.partition("::")[0]
            kind = next((kind for kind in KINDS if item.get_closest_marker(kind)), "")
            kinds[file] = min(kind, kinds.get(file, kind), key=(*KINDS, "").index)
        Path(worker["kinds"]).write_text(json.dumps(kinds))


def _are_compiled() -> bool:
    """Return True if most files of tests have been compiled by pytest."""
    files = list(TESTS.rglob("test_*.py"))
    return 2 * sum(map(_is_compiled, files)) > len(files)


def _is_compiled(file: Path) -> bool:
    return any(file.parent.glob(f"__pycache__/{file.stem}.{sys.implementation.cache_tag}-pytest-*.pyc"))


def _compile_from_the_end() -> None:
    """Import the last files of tests, which pytest's import hook compiles, up to one that is compiled already."""
    for file in sorted(TESTS.rglob("test_*.py"), reverse=True):
        if _is_compiled(file):
            break
        importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
