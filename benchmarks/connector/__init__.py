"""Spark's Kafka connector (spark-sql-kafka-0-10), fetched by Maven into the repository's `.cache`."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark

from benchmarks.peers import CACHE, MissingError, made, tool

HERE = Path(__file__).resolve().parent


def connector_version() -> str:
    """The release the pom names, which is used where that of the installed PySpark is not published."""
    found = re.search(r"<connector\.version>(.+?)</connector\.version>", (HERE / "pom.xml").read_text())
    assert found is not None
    return found.group(1)


def jars() -> tuple[str, list[Path]]:
    """The version and the jars. Raises MissingError with the reason."""
    named, installed = connector_version(), pyspark.__version__
    if named != installed and not list(CACHE.glob(f"connector-{named}-*")):
        try:
            return installed, _jars(installed, installed)
        except MissingError:
            pass
    return named, _jars(named)


def _jars(connector: str, token: str | None = None) -> list[Path]:
    """The jars of one release; `token`: that of the module for delegation tokens, None: as the pom says."""
    maven = tool("mvn")
    versions = [f"-Dconnector.version={connector}"] + ([f"-Dtoken.version={token}"] if token else [])
    directory = made(
        f"connector-{connector}",
        [HERE / "pom.xml"],
        lambda target: [
            *(maven, "--batch-mode", "--quiet", "--file", "pom.xml", "dependency:copy-dependencies", *versions),
            *(f"-DoutputDirectory={target}", "-DincludeScope=runtime"),
        ],
        HERE,
    )
    return sorted(directory.glob("*.jar"))
