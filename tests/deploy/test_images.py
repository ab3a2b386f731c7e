"""The images: built by buildah from the Dockerfile as it is, and run with what the manifests give them.

No registry is asked: in place of `python:3.11-slim` there is a base with this machine's Python, whose system and whose
installed packages lie on the machine and are mounted. So `apt-get` and `pip` find all but Roster installed already.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from roster.records.native import cache_folder
from tests.deploy.test_kubernetes import DEPLOY, container, of_kind, settings
from tests.real.realparts import require_real
from tests.real.realparts.jvm import bound_to_parent
from tests.waiting import until

ROOT = Path(__file__).parents[2]
OF_DEBIAN = ("buildah", "tini", "default-jre-headless")
SYSTEM = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/share")
OF_APT = ("var/lib/dpkg", "var/cache/apt/archives/partial")
SETTINGS = ("alternatives", "java-17-openjdk", "login.defs", "nsswitch.conf", "debian_version", "hosts")
LEFT_OUT = shutil.ignore_patterns("test", "idlelib", "tkinter", "site-packages", "config-*", "ensurepip", "lib2to3")
PYTHON = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
BASE_ENVIRONMENT = (
    "PATH=/usr/local/bin:/usr/sbin:/usr/bin",
    "LD_LIBRARY_PATH=/usr/local/lib",
    "PIP_NO_INDEX=1",
    "PIP_NO_BUILD_ISOLATION=0",
)
NO_ROOT = "10001"
TOTALS_OF_ROME = r"{\"shop\":\"Rome\",\"orders\":2,\"revenue\":40.5}"
PROPERTIES = "/opt/spark/conf/spark.properties"
OF_SPARK = r"""
spark.master=k8s\://https\://127.0.0.1\:1
spark.submit.deployMode=cluster
spark.app.name=totals
spark.driver.host=localhost
spark.driver.memory=1100m
spark.kubernetes.driver.pod.name=totals-driver
spark.kubernetes.submitInDriver=true
"""
"""What Spark gives the driver of a SparkApplication."""
ORDERS = "shop,price\nRome,12.5\nOslo,30\nRome,28\n"


def run(*command: str | Path, **how: Any) -> str:
    """What a program prints; AssertionError with all it said where it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False, **how)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


class Buildah:
    """Images and containers in a folder of the test, with the system of this machine in each."""

    def __init__(self, folder: Path) -> None:
        places = ("--root", folder / "images", "--runroot", folder / "run", "--storage-driver", "overlay")
        self.command = ("buildah", *map(str, places))
        self.system = [word for path in SYSTEM if Path(path).is_dir() for word in ("--volume", f"{path}:{path}:ro")]
        self.system += ["--volume", f"{sysconfig.get_path('purelib')}:/packages:ro"]

    def __call__(self, *words: str | Path) -> str:
        return run(*self.command, *words).strip()

    def make_base(self) -> str:
        """A stand-in for an image with Python on Debian; its name."""
        container = self("from", "scratch")
        root = Path(self("mount", container))
        for folder in ("etc", "home", "proc", "root", "run", "sys", "tmp", "dev", "packages", *OF_APT, *SYSTEM):
            (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (root / "tmp").chmod(0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        for name in SETTINGS:
            self._copy(Path("/etc", name), root / "etc" / name)
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        shutil.copy("/var/lib/dpkg/status", root / "var/lib/dpkg/status")
        self._install_python(root / "usr/local")
        for setting in BASE_ENVIRONMENT:
            self("config", "--env", setting, container)
        self("umount", container)
        self("commit", "--quiet", container, "localhost/python")
        self("rm", container)
        return "localhost/python"

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copy(source, target)

    def _install_python(self, local: Path) -> None:
        prefix = Path(sys.base_prefix)
        shutil.copytree(prefix / PYTHON, local / PYTHON, ignore=LEFT_OUT)
        for library in prefix.glob("lib/libpython3*"):
            shutil.copy(library, local / "lib", follow_symlinks=False)
        packages = local / PYTHON / "site-packages"
        packages.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(("roster", "_roster", "_editable", "__")) and entry.suffix != ".pth":
                (packages / entry.name).symlink_to(f"/packages/{entry.name}")
        if not (packages / "pip").is_symlink():
            shutil.copytree(prefix / PYTHON / "site-packages" / "pip", packages / "pip")
        programs = local / "bin"
        programs.mkdir()
        shutil.copy(prefix / "bin" / Path(PYTHON).name, programs / "python3")
        (programs / "python").symlink_to("python3")
        (programs / "pip").write_text('#!/bin/sh\nexec python -m pip "$@"\n')
        (programs / "pip").chmod(0o755)
        for program in (Path(sysconfig.get_path("purelib")) / "pyspark" / "bin").iterdir():
            (programs / program.name).symlink_to(f"/packages/pyspark/bin/{program.name}")

    def build(self, target: str, base: str) -> str:
        """Build a target of the Dockerfile; its name."""
        image = f"localhost/roster-{target}"
        words = ("--isolation", "chroot", "--format", "docker", "--layers", "--pull=never", *self.system)
        self("build", *words, "--build-arg", f"BASE={base}", "--target", target, "--tag", image, ROOT)
        return image


class Container:
    """A container of an image, in the network of a process."""

    def __init__(self, buildah: Buildah, image: str, network: int, *mounts: str) -> None:
        name = buildah("from", "--pull-never", image)
        self._config = json.loads(buildah("inspect", name))["Docker"]["config"]
        inside = ("nsenter", f"--net=/proc/{network}/ns/net", *buildah.command, "run", "--isolation", "chroot")
        # Loops that a run before has compiled for this machine.
        cache = cache_folder()
        assert cache is not None
        loops = cache.with_name("roster-images")
        loops.mkdir(parents=True, exist_ok=True)
        loops.chmod(0o777)
        volumes = ["--env", "XDG_CACHE_HOME=/cache", "--volume", f"{loops}:/cache/roster"]
        volumes += [word for mount in mounts for word in ("--volume", mount)]
        self._command = [*inside, "--hostname", "localhost", "--cap-drop", "all", *buildah.system, *volumes]
        self._name = name

    def start(self, log: Path, words: Sequence[str] = (), **environment: str) -> subprocess.Popen[bytes]:
        """Run the image's entrypoint with these words, or with its own."""
        given = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        words = [*self._config["Entrypoint"], *(words or self._config["Cmd"])]
        with log.open("wb") as stream:
            command = bound_to_parent([*self._command, *given, self._name, "--", *words])
            return subprocess.Popen(command, stdout=stream, stderr=stream)

    def run(self, *words: str) -> str:
        return run(*self._command, self._name, "--", *words)

    def is_healthy(self, page: str = "/health") -> bool:
        """Whether the image's own health check says so, of its page or another."""
        kind, *words = self._config["Healthcheck"]["Test"]
        assert kind == "CMD"
        command = [*self._command, self._name, "--", *(word.replace("/health", page) for word in words)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def process_of(runner: subprocess.Popen[bytes], name: str) -> dict[str, str]:
    """What the kernel says of the process of that name that a container has begun with."""
    waiting = [runner.pid]
    while waiting:
        pid = waiting.pop()
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        told = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if told["Name"] == name:
            return told
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            waiting += map(int, children.read_text().split())
    raise AssertionError(f"no process {name}")


def end(runner: subprocess.Popen[bytes], name: str) -> None:
    """Have the container's first process end as Kubernetes does, after a look at its rights."""
    told = process_of(runner, name)
    assert set(told["Uid"].split()) == {NO_ROOT}
    assert int(told["CapEff"], 16) == 0
    os.kill(int(told["Pid"]), signal.SIGTERM)
    assert runner.wait(60) == 0


@pytest.fixture
def network() -> Iterator[int]:
    """A process in a network of its own, with a loopback interface."""
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"]
    with subprocess.Popen(bound_to_parent(command), stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        yield holder.pid
        holder.kill()


@pytest.fixture
def buildah() -> Iterator[Buildah]:
    missing = [name for name in OF_DEBIAN if not Path("/var/lib/dpkg/info", f"{name}.list").exists()]
    if missing:
        require_real(f"not installed: {', '.join(missing)} (packages of Debian)")
    if os.getuid() != 0:
        pytest.skip("only root mounts a system in a container")
    with TemporaryDirectory(prefix="roster-images-") as folder:
        buildah = Buildah(Path(folder))
        yield buildah
        buildah("rm", "--all")
        subprocess.run(["umount", f"{folder}/images/overlay"], capture_output=True, check=False)


@pytest.mark.real
@pytest.mark.gate
@pytest.mark.timeout(900)
def test_the_images_run_as_nobody_and_are_healthy(tmp_path: Path, network: int, buildah: Buildah) -> None:
    """Broker and application talk to each other, with the settings of the images and of the StatefulSet.

    The application is started as Spark starts the driver of the SparkApplication, whose master is Kubernetes.
    """
    base = buildah.make_base()
    (tmp_path / "orders.csv").write_text(ORDERS)
    broker = Container(buildah, buildah.build("broker", base), network, f"{tmp_path}/orders.csv:/orders.csv:ro")
    (tmp_path / "client.properties").write_text("bootstrap.servers=127.0.0.1:9092\n")
    (tmp_path / "spark.properties").write_text(OF_SPARK)
    given = (
        f"{DEPLOY}/program:/application:ro",
        f"{tmp_path}/spark.properties:{PROPERTIES}:ro",
        f"{tmp_path}/client.properties:{settings()['KAFKA_CLIENT']}:ro",
    )
    application = Container(buildah, buildah.build("application", base), network, *given)
    logs = tmp_path / "broker.log", tmp_path / "application.log"

    def said(number: int, runner: subprocess.Popen[bytes], words: str) -> bool:
        assert runner.poll() is None, logs[number].read_text()
        return words in logs[number].read_text()

    serving = broker.start(logs[0])
    try:
        until(lambda: said(0, serving, "serves"), 60, logs[0].read_text)
        assert broker.is_healthy()
        broker.run("roster", "topics", "create", "totals-by-shop")
        broker.run("roster", "load", "/orders.csv", "--topic", "orders", "--key", "shop", "--partitions", "2")
        assert application.run("entrypoint.sh", "echo", *container()["args"]).split() == container()["args"]
        words = "driver", "--properties-file", PROPERTIES, "--class", "org.apache.spark.deploy.PythonRunner"
        program = of_kind("SparkApplication")["spec"]["mainApplicationFile"]
        counting = application.start(logs[1], [*words, program], **settings(), SPARK_DRIVER_BIND_ADDRESS="127.0.0.1")
        try:
            until(lambda: said(1, counting, "rows=3"), 300, logs[1].read_text)
            assert application.is_healthy()
            assert application.is_healthy("/ready")
            assert "-Xmx1100m" in Path("/proc", process_of(counting, "java")["Pid"], "cmdline").read_text().split("\0")
            assert TOTALS_OF_ROME in broker.run("roster", "topics", "read", "totals-by-shop", "--json")
            end(counting, "tini")
        finally:
            counting.kill()
        assert "reason=SIGTERM" in logs[1].read_text()
        assert "Traceback" not in logs[1].read_text()
        end(serving, "roster")
    finally:
        serving.kill()
