"""Runs pytest for several marks side by side: progress line by line as it comes, all other output of a part at its end.

    side_by_side.py MARK [MARK ...] -- [ARGUMENTS OF PYTEST ...]

The exit code is 1 if a part failed; one for which no test was chosen fails only if that is so for all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

_PROGRESS = re.compile(r"^(tests/\S+ )?[.sFERxX]+ +\[ *\d+%\]$")
_NO_TESTS = 5
_printing = threading.Lock()


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


def main(marks: list[str], arguments: list[str]) -> int:
    """Run pytest for each mark; return the exit code."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "-m", mark, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        for mark in marks
    ]
    threads = [threading.Thread(target=follow, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            print("waiting for the tests to end", flush=True)  # the terminal has interrupted them too
    codes = [process.wait() for process in processes]
    return int(any(code not in (0, _NO_TESTS) for code in codes) or all(code == _NO_TESTS for code in codes))


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(main(sys.argv[1:split], sys.argv[split + 1 :]))
