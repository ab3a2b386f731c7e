"""A command that answers over HTTP, run on two groups of which it is to show one."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from roster.client import Admin, OffsetAndMetadata
from roster.model import TopicPartition
from tests.real.realparts.cluster import Cluster, unique

TOKEN = "0123456789abcdef"


class Served(NamedTuple):
    """Where a command says that it answers, and the group that it shows: two records behind in its one partition."""

    place: str
    group: str
    topic: str

    def get(self, path: str = "") -> bytes:
        """What it answers to whoever has the token, and to nobody else."""
        address = f"{self.place}{path}"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address, timeout=60)
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=60) as response:
            found: bytes = response.read()
        return found


@contextlib.contextmanager
def serving(name: str, told: str, cluster: Cluster, folder: Path) -> Iterator[Served]:
    """Run `roster NAME` until the block ends; told: what it says before the address."""
    group, topic = unique("shown"), cluster.create_topic(partitions=1, records=3)
    settings = folder / "http.properties"
    settings.write_text(f"token={TOKEN}\n")
    with Admin(cluster.bootstrap) as admin:
        for each in (group, f"not-{group}"):
            admin.commit_group_offsets(each, {TopicPartition(topic, 0): OffsetAndMetadata(1)})
    command = [sys.executable, "-m", "roster", name, "--bootstrap", cluster.bootstrap, "--groups", group]
    command += ["--listen", "127.0.0.1:0", "--interval", "0.1", "--http-config", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.fullmatch(rf"{told}(http://127.0.0.1:\d+/\S*)\n", process.stderr.readline())
            assert found
            yield Served(found[1], group, topic)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
