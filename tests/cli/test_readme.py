"""The blocks of the README and of some pages run here, in order, against a broker of their own.

The README's program is one of its own; others run in the tests' Spark session.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.spark.programs import run_in_session

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9092"
MAKE = 'make() { command make --dry-run --directory "$ROSTER_ROOT" "$@"; }'
"""The targets exist and their recipes are well formed; running them is what the gate does."""


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def wait_until_open(address: str, broker: subprocess.Popen) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert broker.poll() is None, "the broker ended"
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the broker does not listen")


def shell(script: str, directory: Path, address: str, timeout: float = 500) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "ROSTER_ROOT": str(ROOT), "PATH": path, "ROSTER_BOOTSTRAP": address}
    script = f"set -euo pipefail\n{MAKE}\n{script}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


def run_script(script: str, directory: Path, address: str, own: Callable[[str], str] | None) -> str:
    """Run a script in a shell, but programs in Python with `own`. The output."""
    if own is None:
        return shell(script, directory, address)
    command = re.compile(r"^python (\w+\.py)(?: +#.*)?\n", re.MULTILINE)
    here = list(command.finditer(script))
    assert here, "no program is left for the session"
    output, at = "", 0
    for each in here:
        output += shell(script[at : each.start()], directory, address) + own(each[1])
        at = each.end()
    return output + shell(script[at:], directory, address)


def run_blocks(text: str, directory: Path, first: str = "", own: Callable[[str], str] | None = None) -> str:
    """Do what a page says, with a broker of its own; the output. Python blocks without a file name are skipped.

    `own` runs programs in Python instead of the shell.
    """
    address = free_address()
    broker = None
    script = first
    try:
        for language, block in BLOCK.findall(text):
            body = block.replace(ADDRESS, address)
            name = re.match(r"# (\w+\.py)\n", body)
            if language == "python" and name:
                (directory / name[1]).write_text(body)
            elif language == "sh" and body.startswith("roster broker"):
                broker = start_broker(directory, address, body.split()[1:])
            elif language == "sh":
                script += body
        if broker is None:
            broker = start_broker(directory, address, ["broker", "--listen", address, "--data", "data"])
        output = run_script(script, directory, address, own)
    finally:
        if broker is not None:
            broker.send_signal(signal.SIGTERM)
            broker.wait(90)
    assert broker.returncode == 0
    return output


def start_broker(directory: Path, address: str, arguments: list[str]) -> subprocess.Popen:
    with (directory / "broker.log").open("wb") as log:
        command = [sys.executable, "-c", "from roster.cli import main; main()", *arguments]
        broker = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, start_new_session=True)
    wait_until_open(address, broker)
    return broker


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_every_block_of_the_readme_runs(tmp_path):
    text = (ROOT / "README.md").read_text()
    assert {language for language, _ in BLOCK.findall(text)} == {"sh", "python"}
    assert [body.split()[1] for language, body in BLOCK.findall(text) if language == "python"] == ["totals.py"]
    output = run_blocks(text, tmp_path)
    assert "orders: 4 records acknowledged" in output
    assert re.search(r"totals: Empty, 0 members.* lag 0", output)
    assert re.search(r'"shop":\s*"Rome",\s*"orders":\s*2,\s*"revenue":\s*40\.5', output.replace("\\", ""))


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_getting_started_runs(spark, tmp_path):
    text = (ROOT / "docs" / "getting-started.md").read_text()
    output = run_blocks(text, tmp_path, own=partial(run_in_session, spark, tmp_path))
    assert re.search(r"\|\s*Rome\|\s*2\|\s*40\.5\|", output)
    assert re.search(r"revenue: Empty, 0 members.* lag 0", output)


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_the_page_on_dataframe_code_runs(spark, tmp_path):
    load = "echo shop,price > orders.csv; echo Rome,12.5 >> orders.csv; echo Rome,28 >> orders.csv\n"
    load += "roster load orders.csv -b $ROSTER_BOOTSTRAP --topic orders --key shop --partitions 2\n"
    load += "roster topics create loud-orders -b $ROSTER_BOOTSTRAP\npython loud.py\n"
    page = (ROOT / "docs" / "how-to" / "dataframe-code.md").read_text() + "```sh\nroster topics read loud-orders\n```\n"
    output = run_blocks(page, tmp_path, load, partial(run_in_session, spark, tmp_path))
    assert "ROME" in output


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_the_landing_pages_program_runs(spark, tmp_path):
    load = "echo shop,price > orders.csv; echo Rome,12.5 >> orders.csv; echo Rome,28 >> orders.csv\n"
    load += "roster load orders.csv --topic orders --key shop --partitions 2; roster topics create totals-by-shop\n"
    load = load.replace("--topic", "-b $ROSTER_BOOTSTRAP --topic").replace("create", "create -b $ROSTER_BOOTSTRAP")
    own = partial(run_in_session, spark, tmp_path)
    output = run_blocks((ROOT / "docs" / "index.md").read_text(), tmp_path, load, own)
    assert re.search(r'"shop":\s*"Rome",\s*"orders":\s*2,\s*"revenue":\s*40\.5', output.replace("\\", ""))


def test_the_recording_is_a_small_picture_of_a_group_that_names_no_machine():
    svg = ROOT / "docs" / "groups-watch.svg"
    text = "".join(ElementTree.parse(svg).getroot().itertext())
    assert svg.stat().st_size < 150_000
    for words in ("roster groups watch", "app-1", "app-3", "rebalance, over between two looks: A 2, B 2, C 2", "left"):
        assert words in text
    assert not re.search(r"\d+\.\d+\.\d+\.\d+|localhost|/home|/tmp", text)


def test_the_readme_and_getting_started_can_be_done_one_after_the_other():
    """In one group the second program finds that the first has read everything."""
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/getting-started.md")]
    groups = [set(re.findall(r'queryName\("(\w+)"\)', page)) for page in pages]
    assert groups[0]
    assert groups[1]
    assert groups[0] & groups[1] == set()


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_the_page_on_assignors_runs(tmp_path):
    page = (ROOT / "docs" / "how-to" / "choose-an-assignor.md").read_text()
    output = run_blocks(page, tmp_path, "roster topics create orders --partitions 6\n")
    assert "orders-5" in output
    assert "cooperative-sticky" in output


def test_the_rooms_in_the_documentation_are_the_rooms_there_are():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    rooms = {path.parent.name for path in (ROOT / "src" / "roster").glob("*/__init__.py")}
    assert set(named) == rooms


def test_the_readme_names_the_demos_last_line():
    from roster.cli.demo.oracle import Figures, compare

    line = f"demo: {compare({('UA',): Figures(336776)}, {('UA',): Figures(336776)})}"
    assert f"    {line}\n" in (ROOT / "README.md").read_text()
