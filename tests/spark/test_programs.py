"""Programs that tests start leave nothing running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.programs import ended, environment, start
from tests.waiting import until

pytestmark = pytest.mark.process

SLEEPS = "import time; time.sleep(600)"
STARTS = f"""
import sys, threading, time
from tests.spark.programs import start
begun = []
code = "print('runs', flush=True);" {SLEEPS!r}
thread = threading.Thread(target=lambda: begun.append(start([sys.executable, "-c", code])))
thread.start()
thread.join()
print(begun[0].pid, flush=True)
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_what_a_test_leaves_running_ends_with_all_that_it_has_started() -> None:
    code = (
        f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).pid, flush=True)\n{SLEEPS}"
    )
    with ended():
        left = start([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert left.stdout is not None
        below = int(left.stdout.readline())
        os.killpg(left.pid, signal.SIGSTOP)
    assert left.returncode == -signal.SIGKILL
    until(lambda: is_gone(below), 60)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it")
def test_a_program_ends_with_the_process_that_started_it_not_with_the_thread() -> None:
    command = [sys.executable, "-c", STARTS]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert parent.stdout is not None
    said = [parent.stdout.readline().strip() for _ in range(2)]  # it is bound to its parent before it runs
    (pid,) = (int(each) for each in said if each != "runs")
    assert not is_gone(pid)
    parent.kill()
    parent.communicate()
    until(lambda: is_gone(pid), 60)


SAYS = """
import json, os, sys
print(json.dumps([__name__, sys.argv[1:], sys.path[0], os.getcwd(), os.getenv("HERE"), os.getsid(0) == os.getpid()]))
sys.exit(3)
"""


@pytest.mark.gate
def test_a_program_that_is_a_fork_is_like_one_that_starts_anew(tmp_path: Path) -> None:
    files = {"says": SAYS, "sleeps": SLEEPS, "fails": "raise ValueError('no')"}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = {name: [sys.executable, str(tmp_path / f"{name}.py"), "a", "b"] for name in files}
    says = start(command["says"], stdout=subprocess.PIPE, env=environment() | {"HERE": "yes"})
    assert says.stdout is not None
    assert json.loads(says.stdout.read()) == ["__main__", ["a", "b"], str(tmp_path), str(Path.cwd()), "yes", True]
    assert says.wait(60) == says.poll() == 3
    with (tmp_path / "errors").open("w") as errors:
        assert start(command["fails"], stdout=errors, stderr=subprocess.STDOUT).wait(60) == 1
    assert (tmp_path / "errors").read_text().endswith("ValueError: no\n")
    sleeps = start(command["sleeps"])
    assert sleeps.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        sleeps.wait(0.01)
    os.killpg(sleeps.pid, signal.SIGKILL)
    assert sleeps.wait(60) == -signal.SIGKILL
