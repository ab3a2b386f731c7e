"""What a recorder asks a cluster for each minute: the ends of the logs."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa

from roster._clock import wall_ms
from roster.client import Admin, ClientError
from roster.history.derived import ENDS
from roster.history.folder import ENDS_SCHEMA, HistoryFolder
from roster.model import TopicPartition

log = logging.getLogger("roster.history")

MINUTE_MS = 60_000


def record_ends(admin: Admin, folder: HistoryFolder) -> None:
    """Write the ends of all topics at the start of this minute, unless another recorder has."""
    now = wall_ms()
    counts, ids = admin.list_topics(), admin.topic_ids()
    partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
    rows = [
        {**tp._asdict(), "begin": begins[tp], "end": ends[tp], "at": now * 1000, "topic_id": ids.get(tp.topic)}
        for tp in partitions
    ]
    folder.put(ENDS, now - now % MINUTE_MS, pa.Table.from_pylist(rows, ENDS_SCHEMA))


@contextlib.contextmanager
def regularly(function: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Call a function at once and then every so many seconds, in a thread, until the end of the block.

    A ClientError or OSError is a warning, and the next call comes as usual.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                function()
            except (ClientError, OSError) as error:
                log.warning("%s: %s", name, error)
            stop.wait(seconds)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
