"""The topics a broker has. The directory tree is the catalogue: a topic exists when `topics/NAME/topic.json` does.

A topic appears and disappears by one rename, so a crash leaves it whole or not there at all.
"""

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roster._files import sync_path, write_atomically
from roster._json import JsonObject
from roster.broker.checked_json import encode_checked, read_checked
from roster.broker.config import MAX_PARTITIONS_PER_TOPIC, LogConfig
from roster.broker.errors import BrokerStartError, RefusedError
from roster.broker.log.batch_check import CorruptSegmentError
from roster.broker.log.files import names_in
from roster.broker.log.partition_log import PartitionLog
from roster.broker.topic_config import cleanup_policies, log_config
from roster.model.topics import NAME_RULE, is_legal_name
from roster.wire import ErrorCode

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = {OFFSETS_TOPIC: "the offsets of groups", TRANSACTIONS_TOPIC: "the state of transactions"}
"""Topics that only the broker writes, with their contents."""
_DESCRIPTION = "topic.json"
_LINKS_OF_A_LEAF = 2
_FIELDS = frozenset({"id", "partitions", "settings", "was_compacted"})

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Topic:
    """A topic and its partitions."""

    name: str
    id: bytes
    settings: dict[str, str]
    config: LogConfig
    logs: list[PartitionLog] = field(default_factory=list)
    was_compacted: bool = False
    """True if its logs may have gaps although they are not compacted now."""

    @property
    def is_internal(self) -> bool:
        """True if clients may read but not write it."""
        return self.name in INTERNAL_TOPICS

    def log(self, partition: int) -> PartitionLog | None:
        """The log of a partition, None if the partition does not exist."""
        return self.logs[partition] if 0 <= partition < len(self.logs) else None

    @property
    def is_compacted(self) -> bool:
        """True if only the newest record of each key is kept."""
        return "compact" in cleanup_policies(self.settings)

    def describe(self, partitions: int) -> JsonObject:
        """Return the contents of `topic.json`."""
        what: JsonObject = {"id": str(uuid.UUID(bytes=self.id)), "partitions": partitions, "settings": self.settings}
        return {**what, "was_compacted": True} if self.was_compacted or self.is_compacted else what


def check_name(name: str) -> None:
    """Raise RefusedError unless Kafka would accept the name too."""
    if not is_legal_name(name):
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name[:260]!r} is not {NAME_RULE}")


def check_partitions(count: int) -> None:
    """Raise RefusedError unless a topic may have this many partitions."""
    if not 1 <= count <= MAX_PARTITIONS_PER_TOPIC:
        raise RefusedError(ErrorCode.INVALID_PARTITIONS, f"{count} partitions: must be 1 to {MAX_PARTITIONS_PER_TOPIC}")


class TopicCatalogue:
    """All topics by name and by id. Changes go one at a time and are durable when they return."""

    def __init__(self, data_dir: Path, config: LogConfig) -> None:
        self._root = data_dir / "topics"
        self._scratch = data_dir / "scratch"
        self._config = config
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._by_metric: dict[str, str] = {}
        """Names by the names of their metrics in Kafka, which have `_` for `.`: no two topics may share one."""
        self._changing = asyncio.Lock()

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def get(self, name: str | None) -> Topic | None:
        """The topic of this name."""
        return self._by_name.get(name) if name is not None else None

    def log(self, name: str, partition: int) -> PartitionLog | None:
        """The log of a partition of a topic of this name."""
        topic = self._by_name.get(name)
        return None if topic is None else topic.log(partition)

    def by_id(self, topic_id: bytes) -> Topic | None:
        """The topic with this id."""
        return self._by_id.get(topic_id)

    def load(self, now_ms: int) -> None:
        """Read all topics and recover their logs; for a thread of its own. BrokerStartError if that cannot be done."""
        self._root.mkdir(parents=True, exist_ok=True)
        if self._scratch.exists():
            shutil.rmtree(self._scratch)
        self._scratch.mkdir()
        for name in names_in(self._root):
            try:
                what = read_checked(self._root / name / _DESCRIPTION, _FIELDS)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                self._pass_over(self._root / name)
            else:
                self._load_topic(self._root / name, what, now_ms)

    def holds_topics(self) -> bool:
        """Return True if any topic is on the disk, loaded or not."""
        return any(self._root.glob(f"*/{_DESCRIPTION}"))

    @property
    def highest_producer_id(self) -> int:
        """The highest producer id in any log that a broker issued, or -1."""
        return max((log.highest_producer_id for topic in self for log in topic.logs), default=-1)

    def _pass_over(self, directory: Path) -> None:
        """Skip an entry that is not a topic, with a warning; BrokerStartError if it was one."""
        try:
            partitions = [entry for entry in names_in(directory) if entry.isdigit()]
        except OSError:  # a file, or a directory only root may read
            partitions = []
        if partitions:
            raise BrokerStartError(
                f"{directory} holds partitions but no {_DESCRIPTION}: restore it from a backup, or move it all away"
            )
        logger.warning("%s is not a topic and is ignored; nothing else belongs in %s", directory, self._root)

    def _load_topic(self, directory: Path, what: JsonObject, now_ms: int) -> None:
        path = directory / _DESCRIPTION
        try:
            settings = {str(name): str(value) for name, value in what["settings"].items()}
            topic = self._topic(directory.name, uuid.UUID(what["id"]).bytes, settings)
            topic.was_compacted = bool(what.get("was_compacted", False))
            partitions = int(what["partitions"])
            check_partitions(partitions)
        except (ValueError, KeyError, TypeError, AttributeError, RefusedError) as error:
            raise BrokerStartError(f"{path} does not describe a topic: {error!r}") from error
        # Two links are a directory without directories in it, on the file systems that count them.
        entries = names_in(directory) if directory.stat().st_nlink != _LINKS_OF_A_LEAF else []
        highest = max((int(entry) for entry in entries if entry.isdigit()), default=-1)
        if highest >= partitions:
            raise BrokerStartError(
                f"{path} says {partitions} partitions, but there is {directory / str(highest)}: correct the number and "
                f"delete the line 'crc32c', or move the directory away"
            )
        self._add_logs(topic, partitions)
        try:
            for log in topic.logs:
                log.open(now_ms)
                if topic.is_internal:
                    log.verify()
        except CorruptSegmentError as error:
            raise BrokerStartError(_explain(error, topic, log)) from error
        self._register(topic)

    def _topic(self, name: str, topic_id: bytes, settings: dict[str, str]) -> Topic:
        return Topic(name, topic_id, settings, log_config(self._config, settings))

    def _add_logs(self, topic: Topic, partitions: int) -> None:
        for partition in range(len(topic.logs), partitions):
            topic.logs.append(
                PartitionLog(
                    self._root / topic.name / str(partition),
                    topic.config,
                    compacted=topic.is_compacted,
                    was_compacted=topic.was_compacted,
                )
            )

    def _register(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self._by_metric[_metric(topic.name)] = topic.name

    def close(self) -> None:
        """Close all logs so that the next start is quick; for a thread of its own, once they are no longer used.

        Everything is durable without it: a log that cannot be sealed, on a full disk, is read again by the next start.
        """
        unsealed: list[OSError] = []
        for topic in self:
            for log in topic.logs:
                try:
                    log.close()
                except OSError as error:
                    unsealed.append(error)
        if unsealed:
            logger.warning(
                "logs that could not be sealed: %d; nothing is lost, the next start reads them again: %s",
                len(unsealed),
                unsealed[0],
            )

    async def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic; raise RefusedError if it cannot be."""
        check_partitions(partitions)
        async with self._changing:
            self.check_new(name)
            topic = self._topic(name, uuid.uuid4().bytes, dict(settings))
            await asyncio.to_thread(self._write_new, topic, partitions)
            self._add_logs(topic, partitions)
            self._register(topic)
            return topic

    def check_new(self, name: str) -> None:
        """Raise RefusedError unless a topic of this name can be made."""
        check_name(name)
        if name in self._by_name:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        if (other := self._by_metric.get(_metric(name))) is not None:
            problem = f"topic {name!r} collides with {other!r}: their metrics would have one name, as '.' is '_' in it"
            raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)

    def _write_new(self, topic: Topic, partitions: int) -> None:
        """Make the topic's directory; an OSError leaves nothing behind."""
        scratch, directory = self._scratch / topic.id.hex(), self._root / topic.name
        try:
            scratch.mkdir()
            write_atomically(scratch / _DESCRIPTION, encode_checked(topic.describe(partitions)))
            scratch.rename(directory)
            try:
                sync_path(self._root)
            except OSError:
                directory.rename(scratch)
                raise
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    async def delete(self, topic: Topic) -> None:
        """Delete a topic and its records; deleting one that is gone already does nothing."""
        async with self._changing:
            if self._by_id.pop(topic.id, None) is None:
                return
            del self._by_name[topic.name]
            self._by_metric.pop(_metric(topic.name), None)
            self._set_removed(topic, True)
            try:
                await asyncio.to_thread(self._remove, topic)
            except OSError:
                self._set_removed(topic, False)
                self._register(topic)
                raise
            for log in topic.logs:
                log.retire()

    def _set_removed(self, topic: Topic, removed: bool) -> None:
        for log in topic.logs:
            log.removed = removed

    def _remove(self, topic: Topic) -> None:
        """Remove the topic's directory; an OSError leaves it as it was."""
        scratch, directory = self._scratch / topic.id.hex(), self._root / topic.name
        directory.rename(scratch)
        try:
            sync_path(self._root)
        except OSError:
            scratch.rename(directory)
            raise
        shutil.rmtree(scratch, ignore_errors=True)  # what is left goes at the next start

    async def grow(self, topic: Topic, partitions: int) -> None:
        """Add partitions to a topic; raise RefusedError unless the number is larger than before."""
        check_partitions(partitions)
        async with self._changing:
            if partitions <= len(topic.logs):
                raise RefusedError(
                    ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r} has {len(topic.logs)} partitions already"
                )
            await self._describe_anew(topic, partitions)
            self._add_logs(topic, partitions)

    async def reconfigure(self, topic: Topic, settings: Mapping[str, str]) -> None:
        """Replace the topic's own settings."""
        async with self._changing:
            before = topic.settings, topic.was_compacted
            topic.was_compacted |= topic.is_compacted
            topic.settings = dict(settings)
            try:
                await self._describe_anew(topic, len(topic.logs))
            except (OSError, RefusedError):
                topic.settings, topic.was_compacted = before
                raise
            topic.config = log_config(self._config, settings)
            for log in topic.logs:
                log.configure(topic.config, compacted=topic.is_compacted)

    async def _describe_anew(self, topic: Topic, partitions: int) -> None:
        if self._by_id.get(topic.id) is not topic:
            raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name!r} was deleted")
        path = self._root / topic.name / _DESCRIPTION
        await asyncio.to_thread(_replace, path, encode_checked(topic.describe(partitions)))


def _metric(name: str) -> str:
    return name.replace(".", "_")


def _explain(error: CorruptSegmentError, topic: Topic, log: PartitionLog) -> str:
    if not topic.is_internal:
        return f"data is damaged: {error}"
    lost = "what the groups in it had committed" if topic.name == OFFSETS_TOPIC else "the transactions in it"
    return (
        f"{INTERNAL_TOPICS[topic.name]} cannot be read: {error}; restore {log.directory} from a backup, or move it "
        f"away to start without {lost}"
    )


def _replace(path: Path, data: bytes) -> None:
    """Replace a file durably; after an OSError it holds what it held before."""
    before = path.read_bytes()
    try:
        write_atomically(path, data)
    except OSError:
        with contextlib.suppress(OSError):
            write_atomically(path, before)
        raise
