"""What must hold of transactions: judged from the synced part of the logs, and from what producers were answered.

Each output record says which records of the input it stands for, and in which attempt it was made. The committed
outputs of an input partition have to be exactly what its committed offset says: offsets and outputs together or not at
all, nothing twice, nothing lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from roster.model import TopicPartition
from roster.transactions.states import TransactionState
from roster.wire.transactions_topic import decode_key, decode_value
from tests.simulation.errors import broken

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Set

    from tests.simulation.disk import Batch, Durable, Reader

TRANSACTIONS = "__transaction_state"
"""Name of the log with the decisions."""
OUTPUT_TOPIC = "out"
OUTPUT_PARTITIONS = 2
COMPLETED = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
"""What alone may follow a decision."""


class Output(NamedTuple):
    """A record of an output: the positions of the input it stands for, and the number of its transaction."""

    source: TopicPartition
    start: int
    end: int
    number: int

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value of the record."""
        return (
            f"{self.source.topic}/{self.source.partition}".encode(),
            f"{self.start}:{self.end}:{self.number}".encode(),
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes | None) -> Output:
        """Read a record."""
        topic, partition = key.decode().split("/")
        start, end, number = (int(each) for each in (value or b"").split(b":"))
        return cls(TopicPartition(topic, int(partition)), start, end, number)


class Decisions:
    """The synced part of `__transaction_state`."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[TransactionState, int, int]] = {}
        """State, producer id and epoch by transactional id."""
        self.decided: dict[int, bool] = {}
        """By producer id, whether its last transaction was committed."""

    def apply(self, batch: Batch) -> None:
        """Take in records that became durable: a decision is final, and epochs only rise."""
        for key, value in batch.records:
            name = decode_key(key)
            if name is None or value is None:
                continue
            content = decode_value(value)
            state, producer = TransactionState(content.transaction_status), content.producer_id
            before = self.states.get(name)
            if before is not None:
                if before[0] in COMPLETED and state is not COMPLETED[before[0]]:
                    broken("a decision is final", f"{name} is {state.label} after {before[0].label}")
                if before[1] == producer and content.producer_epoch < before[2]:
                    broken("a producer's epoch only rises", f"{name}: {content.producer_epoch} after {before[2]}")
            if state.is_prepared:
                self.decided[producer] = state is TransactionState.PREPARE_COMMIT
            self.states[name] = (state, producer, content.producer_epoch)


class Outputs:
    """The synced part of a partition of the output, as a consumer that reads committed records sees it."""

    def __init__(self, judge: ExactlyOnce) -> None:
        self._judge = judge
        self.open: dict[int, list[Output]] = {}
        """Records of transactions that are not decided here, by producer id."""

    def apply(self, batch: Batch) -> None:
        """Take in a batch that became durable."""
        if batch.end is not None:
            records = self.open.pop(batch.end.producer_id, [])
            if batch.end.committed:
                self._judge.committed(records)
        elif batch.producer is not None:
            self.open.setdefault(batch.producer[0], []).extend(
                Output.decode(key, value) for key, value in batch.records
            )


class ExactlyOnce:
    """Everything known of the transactions of one run."""

    def __init__(self, counts: Counter[str], durable: Durable, unsteady_topics: Set[str]) -> None:
        self._counts = counts
        self._durable = durable
        self._unsteady_topics = unsteady_topics
        self.decisions = Decisions()
        self.partitions = [Outputs(self) for _ in range(OUTPUT_PARTITIONS)]
        self.readers: dict[str, Reader] = {TRANSACTIONS: self.decisions}
        self.readers |= {f"{OUTPUT_TOPIC}-{number}": each for number, each in enumerate(self.partitions)}
        self.visible: dict[TopicPartition, list[Output]] = {}
        """Committed outputs by input partition."""
        self._numbers: set[int] = set()
        """Transactions with a committed output."""
        self._answered: dict[int, bool] = {}
        """Transactions whose producer was answered that they are committed, or aborted."""
        self._newest: dict[int, int] = {}
        """The newest epoch that an instance was given, by producer id."""

    # -- while it runs -------------------------------------------------------------------------------------------

    def committed(self, records: list[Output]) -> None:
        """Outputs became visible: none of them twice, none of an aborted transaction."""
        for record in records:
            seen = self.visible.setdefault(record.source, [])
            for other in seen if record.source.topic not in self._unsteady_topics else ():
                if record.start < other.end and other.start < record.end:
                    broken("no output is committed twice", f"{record} after {other}")
            if self._answered.get(record.number) is False:
                broken("no aborted transaction is visible", f"{record}")
            seen.append(record)
            self._numbers.add(record.number)

    def instance_begins(self, producer: int, epoch: int) -> None:
        """A producer was given its epoch: every one before is fenced."""
        if epoch <= self._newest.get(producer, -1) - 1:
            broken("a new instance fences the one before", f"producer {producer} got epoch {epoch} again")
        self._newest[producer] = epoch

    def written(self, producer: int, epoch: int) -> None:
        """A part of a transaction was accepted."""
        if epoch < self._newest.get(producer, -1):
            broken(
                "no write of a fenced producer is accepted",
                f"producer {producer} wrote in epoch {epoch} after an instance got {self._newest[producer]}",
            )

    def marker_written(self, producer: int, *, committed: bool) -> None:
        """A marker was accepted: the decision is durable by then."""
        if self.decisions.decided.get(producer) is not committed:
            broken("a marker follows a durable decision", f"producer {producer}, {'commit' if committed else 'abort'}")

    def end_answered(self, name: str, *, committed: bool) -> None:
        """EndTxn was answered without an error."""
        state = self.decisions.states.get(name, (None, 0, 0))[0]
        kept = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if committed and state not in kept:
            broken("an answered end is durable", f"{name} is {state.label if state is not None else 'unknown'}")

    def ended(self, number: int, *, committed: bool) -> None:
        """A producer knows the end of its transaction."""
        self._answered[number] = committed
        self._counts["transaction committed" if committed else "transaction aborted"] += 1
        if not committed and number in self._numbers:
            broken("no aborted transaction is visible", f"transaction {number}")

    # -- at rest -------------------------------------------------------------------------------------------------

    def unrest(self) -> str | None:
        """Describe a transaction that has not ended; None if there is none."""
        for name, (state, producer, _) in self.decisions.states.items():
            if state not in (TransactionState.EMPTY, *COMPLETED.values()):
                return f"{name} is {state.label} (producer {producer})"
        if any(each.open for each in self.partitions) or self._durable.has_pending:
            return "a partition has a transaction without a marker"
        return None

    def judge(self) -> None:
        """Compare outputs and offsets, once every transaction has ended."""
        for number, committed in self._answered.items():
            if committed and number not in self._numbers and not self._unsteady_topics:
                broken("no committed transaction is lost", f"transaction {number} has no outputs")
        for source in {*self.visible, *self._durable.offsets}:
            if source.topic in self._unsteady_topics:
                continue
            position = 0
            for record in sorted(self.visible.get(source, ()), key=lambda each: each.start):
                if record.start != position:
                    broken("offsets and outputs together or not at all", f"{source}: {record} follows {position}")
                position = record.end
            offset = self._durable.offsets.get(source, 0)
            if position != offset:
                broken("offsets and outputs together or not at all", f"{source}: outputs {position}, offset {offset}")
