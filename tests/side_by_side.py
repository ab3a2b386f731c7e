"""Runs pytest for several marks side by side: progress line by line as it comes, all other output of a part at its end.

    side_by_side.py MARK[=PROCESSES] [MARK[=PROCESSES] ...] -- [ARGUMENTS OF PYTEST ...]

The exit code is 1 if a part failed; one for which no test was chosen fails only if that is so for all. With
ROSTER_TRY_AGAIN=1 up to AGAIN failed tests run once more when nothing else does: one that passes then depends on how
fast the machine is. It is named at the end, above it stands how it failed. The last line counts the second tries.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

AGAIN = 5
"""More failures than these in all parts are not tried again."""
_PROGRESS = re.compile(r"^(tests/\S+ )?[.sFERxX]+ +\[ *\d+%\]$")
_TESTS_FAILED, _NO_TESTS = 1, 5
_printing = threading.Lock()


@dataclass(frozen=True)
class Part:
    """The tests with one mark, in so many processes."""

    mark: str
    processes: str
    arguments: list[str]
    cache: Path
    """pytest's own, in which it keeps the failed tests."""

    def start(self, processes: str, *more: str) -> subprocess.Popen[str]:
        """Start pytest."""
        spread = ["--numprocesses", processes, "--dist", "worksteal"]
        own = ["-m", self.mark, "-o", f"cache_dir={self.cache}", *spread]
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *own, *self.arguments, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def failed(self) -> list[str]:
        """Return the ids of the tests that failed last."""
        found = self.cache / "v" / "cache" / "lastfailed"
        return list(json.loads(found.read_text())) if found.exists() else []

    def passes_again(self) -> bool:
        """Run the failed tests once more, one after the other."""
        process = self.start("0", "--last-failed", "--last-failed-no-failures=none")
        follow(process)
        return process.wait() == 0


def follow(process: subprocess.Popen[str]) -> None:
    """Print what a process prints; return at its end."""
    assert process.stdout is not None
    kept = []
    for line in process.stdout:
        if _PROGRESS.match(line.rstrip("\n")):
            with _printing:
                print(line, end="", flush=True)
        else:
            kept.append(line)
    with _printing:
        print("".join(kept), end="", flush=True)


def run(parts: list[Part]) -> list[int]:
    """Run all parts at the same time; return their exit codes."""
    processes = [part.start(part.processes) for part in parts]
    threads = [threading.Thread(target=follow, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            print("waiting for the tests to end", flush=True)  # the terminal has interrupted them too
    return [process.wait() for process in processes]


def failed_tests(parts: list[Part], codes: list[int]) -> dict[str, list[str]]:
    """Return the failed tests by mark if they may run once more, else nothing."""
    failed = {part.mark: part.failed() for part, code in zip(parts, codes, strict=True) if code == _TESTS_FAILED}
    few = 0 < sum(map(len, failed.values())) <= AGAIN and set(codes) <= {0, _TESTS_FAILED, _NO_TESTS}
    return failed if few and os.environ.get("ROSTER_TRY_AGAIN") == "1" else {}


def pass_again(parts: list[Part], failed: dict[str, list[str]]) -> bool:
    """Run once more what failed; return True if all of it passes."""
    names = [name for each in failed.values() for name in each]
    print(f"\nonce more, with nothing beside: {', '.join(names)}", flush=True)
    if not all(part.passes_again() for part in parts if part.mark in failed):
        return False
    print("FLAKY: these failed above and passed alone; each is a defect, of the test or of more:", flush=True)
    print("".join(f"    {name}\n" for name in names), end="", flush=True)
    return True


def main(marks: list[str], arguments: list[str]) -> int:
    """Run pytest for each mark; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="roster-tests-") as directory:
        parts = []
        for number, given in enumerate(marks):
            mark, _, processes = given.partition("=")
            parts.append(Part(mark, processes or "0", arguments, Path(directory) / str(number)))
        codes = run(parts)
        if all(code == _NO_TESTS for code in codes):
            return 1
        failed = failed_tests(parts, codes)
        passed = pass_again(parts, failed) if failed else set(codes) <= {0, _NO_TESTS}
        print(f"tests that needed a second try: {sum(map(len, failed.values()))}", flush=True)
        return 0 if passed else 1


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(main(sys.argv[1:split], sys.argv[split + 1 :]))
