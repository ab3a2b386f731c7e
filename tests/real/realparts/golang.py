"""The Go program that holds franz-go consumers, built once for each state of its sources."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.real.realparts import require_real

SOURCES = Path(__file__).resolve().parent.parent / "go"
CACHE = SOURCES.parent.parent.parent / ".cache" / "go"
BUILD_TIMEOUT = 280


@functools.cache
def _built() -> tuple[str | None, str]:
    """The program's path, or None and the reason."""
    go = shutil.which("go")
    if go is None:
        return None, "go is not on the PATH"
    state = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:16]
    program = CACHE / f"consumerhost-{state}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            partial = Path(directory) / "consumerhost"
            command = [go, "build", "-buildvcs=false", "-mod=readonly", "-o", str(partial), "."]
            try:
                done = subprocess.run(
                    command, cwd=SOURCES, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False
                )
            except subprocess.TimeoutExpired:
                return None, f"go did not build the franz-go program within {BUILD_TIMEOUT} s"
            if done.returncode != 0:
                return None, f"go could not build the franz-go program: {done.stderr.strip()[:500]}"
            partial.replace(program)
    return str(program), ""


def program() -> str:
    """The built program, or the test ends with `require_real`."""
    path, reason = _built()
    if path is None:
        require_real(reason)
    return path
