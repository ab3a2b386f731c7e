"""Times of the records at committed offsets: how old the next record is that a group has to read."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping

import pyarrow.compute as pc

from roster._clock import wall_ms
from roster.model import GroupPosition, TopicPartition, parse_addresses
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import FetchError, Settings
from roster.security import PLAINTEXT, Security

log = logging.getLogger(__name__)

_TIMEOUT = 5.0
"""Seconds without a record until a look is given up."""
_MOST_SEARCHES = 50
"""Partitions in one look whose next record is searched behind the committed offset, as in compacted topics."""

_MOST_KNOWN = 1_000_000


class RecordTimes:
    """Reads one record of each partition with lag, and remembers its time until the group has moved on."""

    def __init__(
        self, bootstrap: str, client_id: str, security: Security = PLAINTEXT, now: Callable[[], int] = wall_ms
    ) -> None:
        """`now` returns wall-clock milliseconds."""
        self._bootstrap, self._client_id, self._security = parse_addresses(bootstrap), client_id, security
        self._now = now
        self._known: dict[tuple[TopicPartition, int], int] = {}

    def ages(self, positions: Mapping[TopicPartition, GroupPosition]) -> dict[TopicPartition, float]:
        """Return the age of each position's next record in seconds; 0.0 without lag, and none where it is unknown."""
        starts = {
            tp: (max(position.committed, position.begin or 0), position.end or 0)
            for tp, position in positions.items()
            if position.committed is not None and position.lag
        }
        self._learn({tp: span for tp, span in starts.items() if (tp, span[0]) not in self._known})
        now, ages = self._now(), {tp: 0.0 for tp, position in positions.items() if position.lag == 0}
        for tp, (start, _) in starts.items():
            if (tp, start) in self._known:
                ages[tp] = max(0, now - self._known[tp, start]) / 1000
        return ages

    def _learn(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Look up the times of the first records of ranges."""
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        give_up = time.monotonic() + _TIMEOUT
        times = self._read({tp: (start, start + 1) for tp, (start, _) in spans.items()})
        missing = [tp for tp in spans if tp not in times]
        for tp in missing[:_MOST_SEARCHES]:
            if time.monotonic() >= give_up:
                break
            times |= self._read({tp: spans[tp]}, first_only=True)
        self._known |= {(tp, spans[tp][0]): timestamp for tp, timestamp in times.items()}

    def _read(
        self, spans: Mapping[TopicPartition, tuple[int, int]], *, first_only: bool = False
    ) -> dict[TopicPartition, int]:
        times: dict[TopicPartition, int] = {}
        settings = Settings(fail_on_data_loss=False, partition_bytes=1, response_bytes=1 << 20)
        ranges = [(*tp, *span) for tp, span in spans.items()]
        if not ranges:
            return times
        batches = read_ranges(
            self._bootstrap, self._client_id, ranges, settings, timeout=_TIMEOUT, security=self._security
        )
        try:
            with contextlib.closing(batches):  # type: ignore[type-var]
                for batch in batches:
                    columns = [batch.column(name).to_pylist() for name in ("topic", "partition")]
                    stamps = pc.cast(batch.column("timestamp"), "int64").fill_null(-1).to_pylist()
                    for topic, partition, stamp in zip(*columns, stamps, strict=True):
                        if stamp >= 0:
                            times.setdefault(TopicPartition(topic, partition), stamp // 1000)
                    if first_only:
                        break
        except FetchError as error:
            log.info("times of records are not known: %s", error)
        return times
