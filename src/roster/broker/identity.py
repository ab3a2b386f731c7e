"""What a data directory says about its broker: format, cluster id, and which producer ids were given out."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from typing import TYPE_CHECKING

from roster.broker.config import BrokerError
from roster.broker.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
PRODUCER_ID_BLOCK = 1_000


class Identity:
    """The file `broker.json`."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "broker.json"
        self._next_id = 0
        self._reserved = 0
        self._reserving = asyncio.Lock()
        self.cluster_id = ""

    def load(self) -> None:
        """Read the file, or begin a new cluster where there is none; BrokerError if it cannot be understood."""
        try:
            what = json.loads(self._path.read_bytes())
            if what["format"] != FORMAT:
                raise BrokerError(
                    f"{self._path}: data format {what['format']} is not {FORMAT}, the one this version reads"
                )
            self.cluster_id = str(what["cluster_id"])
            self._next_id = self._reserved = int(what["next_producer_id"])
        except FileNotFoundError:
            self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            self._save(0)
        except (ValueError, KeyError, TypeError) as error:
            raise BrokerError(f"{self._path} does not describe a broker: {error}") from error

    def _save(self, next_producer_id: int) -> None:
        what = {"format": FORMAT, "cluster_id": self.cluster_id, "next_producer_id": next_producer_id}
        write_atomically(self._path, json.dumps(what, indent=1).encode() + b"\n")

    async def new_producer_id(self) -> int:
        """A producer id that was never given out; reserved in blocks, so that most cost no write."""
        async with self._reserving:
            if self._next_id >= self._reserved:
                await asyncio.to_thread(self._save, self._reserved + PRODUCER_ID_BLOCK)
                self._reserved += PRODUCER_ID_BLOCK
            self._next_id += 1
            return self._next_id - 1
