"""Random histories of transactional clients and of a coordinator that dies between any two writes.

Clients of both versions of the protocol produce, commit, abort, repeat requests, crash and come back as a second
instance while the first goes on. In the end faults stop, and the books of the partitions and of the clients must agree.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.coordinator_common import IllegalTransitionError
from roster.transactions import TransactionConfig, coordinator, end_transaction, init_producer_id
from roster.transactions import metadata as change
from roster.transactions.metadata import CLIENT_V1
from roster.transactions.runtime import Runtime
from roster.transactions.states import TransactionState
from roster.wire import ErrorCode
from roster.wire.messages import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from tests.examples_tried import examples
from tests.transactions.transaction_world import Entry, Partition, Violation, World

CONFIG = TransactionConfig(partitions=1)
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
TIMEOUT_MS = 10_000
RETRY = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


@dataclass(eq=False)
class Client:
    """One instance of a producer; one request at a time."""

    number: int
    transactional_id: str
    version: int
    pid: int = -1
    epoch: int = -1
    label: str | None = None
    transactions: int = 0
    waiting: tuple[str, int, object] | None = None
    ending: bool | None = None
    """The decision it has asked for, until it knows that it was taken."""
    fenced: bool = False


@dataclass
class Books:
    """What clients were told: the decision for each transaction."""

    told: dict[str, bool] = field(default_factory=dict)


class History:
    """One run."""

    def __init__(self, chance: random.Random, steps: int) -> None:
        self.chance = chance
        self.world = World(CONFIG)
        self.books = Books()
        self.clients: list[Client] = []
        self.stable: dict[tuple[str, int], int] = {}
        for _ in range(2):
            self.new_client()
        for _ in range(steps):
            self.one_step()
        self.settle()
        self.check()

    def one_step(self) -> None:
        roll = self.chance.random()
        ready = self.world.ready()
        if roll < 0.45 and ready:
            self.world.run_task(self.chance.choice(ready))
        elif roll < 0.90:
            self.act(self.chance.choice(self.clients))
        elif roll < 0.93:
            self.world.advance(self.chance.choice([10, 1_000, TIMEOUT_MS]))
        elif roll < 0.96:
            self.world.crash()
            for client in self.clients:
                client.waiting = None
        else:
            self.new_client()

    def new_client(self) -> None:
        number = len(self.clients)
        self.clients.append(Client(number, self.chance.choice(["a", "b"]), self.chance.choice([1, 2])))

    # Clients

    def act(self, client: Client) -> None:
        if client.fenced:
            return
        if client.waiting is not None:
            self.take_reply(client)
        elif client.pid < 0:
            request = InitProducerIdRequest(transactional_id=client.transactional_id, transaction_timeout_ms=TIMEOUT_MS)
            client.waiting = ("init", self.world.send(request, 5), None)
        elif client.ending is not None:
            self.send_end(client)
        elif client.label is not None and self.chance.random() < 0.4:
            client.ending = self.chance.random() < 0.6
            self.send_end(client)
        else:
            self.produce(client)

    def send_end(self, client: Client) -> None:
        request = EndTxnRequest(
            transactional_id=client.transactional_id,
            producer_id=client.pid,
            producer_epoch=client.epoch,
            committed=client.ending,
        )
        client.waiting = ("end", self.world.send(request, 5 if client.version == 2 else 4), None)

    def produce(self, client: Client) -> None:
        if client.label is None:
            client.transactions += 1
            client.label = f"{client.number}.{client.transactions}"
        partition = self.chance.choice(PARTITIONS)
        own = (client.transactional_id, client.pid, client.epoch)
        if client.version == 2:
            client.waiting = ("implicit", self.world.add(*own, partition), partition)
            return
        topics = [AddPartitionsToTxnRequest.Topic(name=partition[0], partitions=[partition[1]])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=own[0],
            v3_and_below_producer_id=own[1],
            v3_and_below_producer_epoch=own[2],
            v3_and_below_topics=topics,
        )
        client.waiting = ("explicit", self.world.send(request, 3), partition)

    def take_reply(self, client: Client) -> None:
        what, token, about = client.waiting
        if token not in self.world.replies:
            return
        told = self.world.replies.pop(token)
        client.waiting = None
        match what:
            case "init" if not told.error_code:
                client.pid, client.epoch = told.producer_id, told.producer_epoch
            case "init":
                self.survive(client, told.error_code)
            case "end":
                self.ended(client, told)
            case "explicit":
                code = told.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
                if code:
                    self.survive(client, code)
                else:
                    own = (client.transactional_id, client.pid, client.epoch)
                    client.waiting = ("verified", self.world.add(*own, about, verify=True), about)
            case "implicit" | "verified":
                self.write(client, about, next(iter(told.values())))

    def write(self, client: Client, partition: tuple[str, int], code: ErrorCode) -> None:
        """Append the batch that the coordinator let pass."""
        if code:
            self.survive(client, code)
            return
        log = self.world.data.setdefault(partition, Partition())
        if not log.append(Entry(client.pid, client.epoch, client.label)):
            client.fenced = True

    def ended(self, client: Client, told) -> None:
        if told.error_code:
            self.survive(client, told.error_code)
            return
        if self.books.told.setdefault(client.label, client.ending) != client.ending:
            raise Violation(f"{client.label} was told both ends")
        client.label = client.ending = None
        if client.version == 2:
            client.pid, client.epoch = told.producer_id, told.producer_epoch

    def survive(self, client: Client, code: int) -> None:
        client.fenced = code not in RETRY

    # The end

    def settle(self) -> None:
        """No more faults and no more clients: every transaction ends by itself."""
        for _ in range(3):
            self.world.run()
            self.world.advance(2 * TIMEOUT_MS)
        for client in self.clients:
            if client.waiting is not None and client.waiting[0] == "end":
                self.take_reply(client)

    def check(self) -> None:
        outcomes: dict[str, set[bool]] = {}
        for partition, log in self.world.data.items():
            if log.first_open:
                raise Violation(f"a transaction stays open in {partition}")
            for label, committed in log.outcomes():
                outcomes.setdefault(label, set()).add(committed)
        for label, ends in outcomes.items():
            if len(ends) > 1:
                raise Violation(f"{label} is half visible")
            if label in self.books.told and ends != {self.books.told[label]}:
                raise Violation(f"the client of {label} was told {self.books.told[label]}, readers see {ends}")
        for transactional_id in ("a", "b"):
            transaction = self.world.coordinator.transaction(transactional_id)
            if transaction is not None and not transaction.current.state.may_expire:
                raise Violation(f"{transactional_id} stays {transaction.current.state.label}")


@settings(max_examples=examples(40))
@given(st.randoms(use_true_random=False), st.integers(20, 150))
def test_a_transaction_is_seen_wholly_or_not_at_all(chance, steps):
    History(chance, steps)


def run_histories(count):
    for seed in range(count):
        History(random.Random(seed), 200)


def test_many_long_histories():
    run_histories(examples(150))


# Planted bugs


def no_new_epoch(patch):
    """An end without a new epoch: late batches of the ended transaction are let in."""
    prepare = change.prepare

    def broken(before, *, client_version, **rest):
        following = prepare(before, client_version=client_version, **rest)
        return replace(following, producer_epoch=before.producer_epoch)

    patch.setattr(end_transaction.change, "prepare", broken)


def forgotten_preparation(patch):
    """A restart that does not go on with prepared transactions."""
    replay = coordinator.records.replay

    def broken(partition, log):
        transactions, unreadable = replay(partition, log)
        for transaction in transactions.values():
            if transaction.current.state.is_prepared:
                ended = change.complete(transaction.current, 0)
                transaction.current = ended
        return transactions, unreadable

    patch.setattr(coordinator.records, "replay", broken)


def early_answer(patch):
    """EndTxn answered before its decision is durable."""
    store = Runtime.store

    def broken(self, transaction, following, then):
        if following.state.is_prepared:
            then(ErrorCode.NONE)
            then = lambda _: None  # noqa: E731
        store(self, transaction, following, then)

    patch.setattr(Runtime, "store", broken)


def no_abort_of_the_first_instance(patch):
    """InitProducerId that leaves the open transaction of the first instance."""

    def broken(rt, transaction, then):
        following = replace(transaction.current, state=TransactionState.EMPTY, partitions=frozenset())
        rt.store(transaction, following, then)

    patch.setattr(init_producer_id, "fence", broken)


def timeouts_forgotten(patch):
    """A restart that does not time open transactions."""
    replay = coordinator.records.replay

    def broken(partition, log):
        transactions, unreadable = replay(partition, log)
        for transaction in transactions.values():
            if transaction.current.state is TransactionState.ONGOING:
                transaction.current = replace(transaction.current, state=TransactionState.COMPLETE_ABORT)
        return transactions, unreadable

    patch.setattr(coordinator.records, "replay", broken)


def a_marker_too_few(patch):
    """One partition gets no marker."""
    write_markers = Runtime.write_markers

    def broken(self, transaction):
        partitions = frozenset(sorted(transaction.current.partitions)[1:])
        whole, transaction.current = transaction.current, replace(transaction.current, partitions=partitions)
        write_markers(self, transaction)
        transaction.current = whole

    patch.setattr(Runtime, "write_markers", broken)


def wrong_decision_after_a_restart(patch):
    """A restart that completes every prepared transaction as committed."""
    replay = coordinator.records.replay

    def broken(partition, log):
        transactions, unreadable = replay(partition, log)
        for transaction in transactions.values():
            if transaction.current.state is TransactionState.PREPARE_ABORT:
                transaction.current = replace(transaction.current, state=TransactionState.PREPARE_COMMIT)
        return transactions, unreadable

    patch.setattr(coordinator.records, "replay", broken)


def completed_before_the_markers(patch):
    """CompleteCommit stored without waiting for the markers."""
    write_markers = Runtime.write_markers

    def broken(self, transaction):
        write_markers(self, transaction)
        self.complete(transaction)

    patch.setattr(Runtime, "write_markers", broken)


def version_1_for_all(patch):
    """Aborts by the coordinator that do not fence the producer."""

    def broken(rt, transaction, then):
        following = change.prepare(
            transaction.current, commit=False, client_version=CLIENT_V1, new_producer_id=None, wall_ms=rt.wall_ms
        )
        rt.store(transaction, following, then)

    patch.setattr(coordinator, "fence", broken)


MUTANTS = [
    no_new_epoch,
    forgotten_preparation,
    early_answer,
    no_abort_of_the_first_instance,
    timeouts_forgotten,
    a_marker_too_few,
    wrong_decision_after_a_restart,
    completed_before_the_markers,
    version_1_for_all,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_planted_bugs_are_found(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((Violation, IllegalTransitionError)):
        run_histories(600)
