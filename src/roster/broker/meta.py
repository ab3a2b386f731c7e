"""Meta file of a data directory: format, cluster id, and the producer ids issued."""

import asyncio
import base64
import uuid
from pathlib import Path

from roster.broker.checked_json import read_checked, write_checked
from roster.broker.errors import BrokerStartError

FORMAT = 1
PRODUCER_ID_BLOCK = 1_000
_FIELDS = frozenset({"format", "cluster_id", "next_producer_id"})


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


class MetaFile:
    """The file `broker.json`."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "broker.json"
        self._next_id = 0
        self._reserved = 0
        self._reserving = asyncio.Lock()
        self.cluster_id = ""

    def load(self, *, has_topics: bool) -> None:
        """Read the file, or begin a new cluster if it is missing; BrokerStartError for a malformed one.

        The same for topics without a file: a new cluster would give out producer ids that the logs know.
        """
        try:
            what = read_checked(self._path, _FIELDS)
        except FileNotFoundError:
            if has_topics:
                raise BrokerStartError(
                    f"{self._path} is missing but {self._path.parent / 'topics'} holds topics: restore the file from a "
                    f'backup, or begin a new cluster with these topics by writing {{"format": {FORMAT}, "cluster_id": '
                    f'"{_new_cluster_id()}", "next_producer_id": 0}} into it'
                ) from None
            self.cluster_id = _new_cluster_id()
            self._save(0)
            return
        try:
            if what["format"] != FORMAT:
                raise BrokerStartError(
                    f"{self._path}: data format {what['format']} is not {FORMAT}, the one this version reads"
                )
            self.cluster_id = str(what["cluster_id"])
            self._next_id = self._reserved = int(what["next_producer_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise BrokerStartError(f"{self._path} does not describe a broker: {error!r}") from error

    def skip_producer_ids(self, highest: int) -> None:
        """Skip this producer id and all below it, since a log holds batches with it."""
        if highest >= self._next_id:
            self._next_id = self._reserved = highest + 1

    def _save(self, next_producer_id: int) -> None:
        what = {"format": FORMAT, "cluster_id": self.cluster_id, "next_producer_id": next_producer_id}
        write_checked(self._path, what)

    async def new_producer_id(self) -> int:
        """Return a fresh producer id; ids are reserved in blocks, so that most cost no write."""
        async with self._reserving:
            if self._next_id >= self._reserved:
                await asyncio.to_thread(self._save, self._reserved + PRODUCER_ID_BLOCK)
                self._reserved += PRODUCER_ID_BLOCK
            self._next_id += 1
            return self._next_id - 1
