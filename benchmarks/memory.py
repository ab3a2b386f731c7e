"""The most memory that this process and those below it have had so far, from Linux's /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path


def peaks() -> str:
    """Return the peaks in MB of the driver, its JVM and the largest Python worker."""
    parents, status = dict[int, int](), dict[int, dict[str, str]]()
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except OSError:
            continue  # it has ended
        parents[int(path.parent.name)], status[int(path.parent.name)] = int(lines["PPid"]), lines
    found = defaultdict[str, int](int)
    for process, lines in status.items():
        above = process
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        if above == os.getpid() and "VmHWM" in lines:
            what = "driver" if process == above else "JVM" if lines["Name"].strip() == "java" else "worker"
            found[what] = max(found[what], int(lines["VmHWM"].split()[0]) // 1024)
    return ", ".join(f"{what} {found[what]} MB" for what in ("driver", "JVM", "worker"))
