"""Where the tests' tables lie, Delta or Iceberg: a folder, or a bucket of an S3 server."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from roster.model import TopicPartition
from roster.spark import Batch, DeltaSink, IcebergSink, Owner, PostgresSink, Range
from tests.sinks.table_worker import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from roster.sinks.positions import PositionedSink

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Row = tuple[int, int, int]


class Server(NamedTuple):
    """An S3 server with a bucket `tables`."""

    endpoint: str
    key: str = "key"
    secret: str = "secret"
    region: str = "us-east-1"


class Place(Protocol):
    """A table, and the sink that writes it."""

    is_remote: bool

    def sink(self, **more: Any) -> PositionedSink: ...

    def arrow(self) -> pa.Table:
        """The newest snapshot."""

    def duckdb(self) -> Any:
        """The newest snapshot, as a relation of DuckDB's."""

    def polars(self) -> Any:
        """The newest snapshot, as a frame of polars'."""

    def live_files(self) -> set[str]:
        """Names of the newest snapshot's data files."""

    def files(self) -> set[str]:
        """Names of all data files in the folder."""


class DeltaPlace:
    def __init__(self, folder: str, server: Server | None = None) -> None:
        self.is_remote = server is not None
        self.root = f"s3://tables{folder}" if server else folder
        self.options = (
            {}
            if server is None
            else {
                "aws_endpoint_url": server.endpoint,
                "allow_http": "true",
                "aws_access_key_id": server.key,
                "aws_secret_access_key": server.secret,
                "aws_region": server.region,
            }
        )

    def sink(self, **more: Any) -> DeltaSink:
        return DeltaSink(f"{self.root}/table", storage_options=self.options, **more)

    def table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(f"{self.root}/table", storage_options=self.options)

    def arrow(self) -> pa.Table:
        return self.table().to_pyarrow_table()

    def duckdb(self) -> Any:
        import duckdb

        return duckdb.from_arrow(self.table().to_pyarrow_dataset())

    def polars(self) -> Any:
        import polars

        return polars.read_delta(f"{self.root}/table", storage_options=self.options)

    def live_files(self) -> set[str]:
        return {uri.rpartition("/")[2] for uri in self.table().file_uris()}

    def files(self) -> set[str]:
        return {path.name for path in Path(self.root).rglob("*.parquet")}


class IcebergPlace:
    """A catalog in SQLite beside the warehouse, or where that is on a server, in the folder alone."""

    def __init__(self, folder: str, server: Server | None = None) -> None:
        self.is_remote, self.folder = server is not None, folder
        warehouse = f"s3://tables{folder}/warehouse" if server else f"file://{folder}/warehouse"
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse}
        if server is not None:
            self.catalog |= {
                "s3.endpoint": server.endpoint,
                "s3.access-key-id": server.key,
                "s3.secret-access-key": server.secret,
                "s3.region": server.region,
            }

    def sink(self, **more: Any) -> IcebergSink:
        return IcebergSink("shop.orders", self.catalog, **more)

    def table(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.catalog).load_table("shop.orders")

    def arrow(self) -> pa.Table:
        return self.table().scan().to_arrow()

    def duckdb(self) -> Any:
        import duckdb

        return duckdb.from_arrow(self.table().scan().to_arrow_batch_reader())

    def polars(self) -> Any:
        import polars

        s3 = {name.removeprefix("s3."): value for name, value in self.catalog.items() if name.startswith("s3.")}
        names = {"endpoint": "aws_endpoint_url", "region": "aws_region"}
        options = {names.get(name, f"aws_{name.replace('-', '_')}"): value for name, value in s3.items()}
        options |= {"aws_allow_http": "true"} if s3 else {}
        return polars.scan_iceberg(self.table(), storage_options=options or None).collect()

    def live_files(self) -> set[str]:
        return {task.file.file_path.rpartition("/")[2] for task in self.table().scan().plan_files()}

    def files(self) -> set[str]:
        return {path.name for path in Path(self.folder).rglob("*.parquet")}


class PostgresPlace:
    """A database of its own on the server that the tests share; a file has its URL, for programs."""

    is_remote = False

    def __init__(self, folder: str) -> None:
        from tests.real.realparts.databases import Postgres, running

        known = Path(folder) / "url"
        if not known.exists():
            known.write_text(running(Postgres).create())
        self.url = known.read_text()

    def sink(self, **more: Any) -> PostgresSink:
        return PostgresSink(self.url, "results", **more)

    def arrow(self) -> pa.Table:
        import pyarrow as pa
        import sqlalchemy as sa

        from tests.real.realparts.databases import asking

        engine = asking(self.url)
        table = sa.Table("results", sa.MetaData(), autoload_with=engine)
        with engine.connect() as connection:
            return pa.Table.from_pylist([dict(row._mapping) for row in connection.execute(sa.select(table))])


FILES = {"delta": DeltaPlace, "iceberg": IcebergPlace}
PLACES = FILES | {"postgres": PostgresPlace}


def rows(place: Place) -> list[Row]:
    """All rows: partition, offset, shop."""
    return sorted((row["partition"], row["offset"], row["shop"]) for row in place.arrow().to_pylist())


def plain(ends: dict[int, int]) -> list[Row]:
    """The rows of `table_worker` up to each partition's end."""
    return [(partition, offset, offset % 3) for partition, end in sorted(ends.items()) for offset in range(end)]


def opened(sink: PositionedSink, *partitions: TopicPartition, member: str = "m") -> PositionedSink:
    sink.open(None, GROUP)  # type: ignore[arg-type]
    sink.claim(partitions, Owner(GROUP, 1, member), {})
    return sink


def batch(ranges: dict[TopicPartition, tuple[int, int]], member: str = "m") -> Batch:
    return Batch(0, Owner(GROUP, 1, member), {p: Range(*span) for p, span in ranges.items()})


SERVER = """
import sys, boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
secrets = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **secrets)
client.create_bucket(Bucket="tables")
print(port, flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server() -> Iterator[Server]:
    """A server in a process of its own: deltalake waits for it with the interpreter's lock held."""
    command = [sys.executable, "-c", SERVER]
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **quiet) as server:  # type: ignore[call-overload]
        while not (line := server.stdout.readline()).strip().isdecimal():
            assert line
        yield Server(f"http://127.0.0.1:{line.strip()}")
        server.kill()
