"""The stores of a stateful pipeline as its driver knows them: topics, how far each has to go, copies and timers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from typing_extensions import override

from roster.client import Admin, TaskMember, UnknownTopicError
from roster.client.live_group import members_of
from roster.member.task_options import TaskOptions
from roster.model import Address, TopicPartition, parse_address
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range, Restoring
from roster.pipeline.driver.members import member_settings
from roster.pipeline.driver.runner_protocol import BetweenBatches, Committed, Outcome, TaskCommit
from roster.pipeline.errors import PipelineError, SinkFencedError
from roster.pipeline.options import Options
from roster.pipeline.tasks.reader import ReaderConfig
from roster.records.native import HASH, compiled
from roster.sinks.kafka import KafkaSink
from roster.sinks.tasks.encoded_values import AS_JSON, RecordEncoding
from roster.stateful.changelogs import Changelog, Changelogs, Logs, check_whole, open_changelog
from roster.stateful.definition_check import DefinitionCheck
from roster.stateful.due_tasks import DueTasks, Idleness, TaskRun, Timers
from roster.stateful.input_backlog import SourceNames, input_backlogs
from roster.stateful.repartition import Purge, check_all_are_read, open_repartition_topic
from roster.stateful.restore_schedule import Copies
from roster.stateful.tasks.catch_up import StoreTarget
from roster.stateful.tasks.placement import placing_keys
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.subtopology import SubtopologyPlan, behind_topic, labelled
from roster.stateful.tasks.table_join import table_place
from roster.stateful.tasks.task import StoreKind, TopologyPlan

_OF_OTHERS = 90.0
"""Seconds to wait for transactions of others: longer than a producer's usual timeout."""
_PAUSE, _MOST_PAUSE = 0.005, 0.1  # seconds between two looks at them


class GrownTopics(Protocol):
    """Looks at the keys of input topics, for which it may ask Spark."""

    def check_new(
        self,
        admin: Admin,
        sources: Sequence[str],
        keys: Iterable[str],
        start: str | int | Mapping[TopicPartition, int],
        repartitioned: str,
    ) -> None:
        """Raise PipelineError if the group is new, and keys of an input topic are not all placed in one way."""

    def ends(self, admin: Admin, changelogs: Iterable[Changelog]) -> Mapping[TopicPartition, int]:
        """Return how far the topics that have grown are read. Raises PipelineError if that cannot be said."""


class Stores(BetweenBatches):
    """The stores of one application; call `ran` for each batch that its tasks have done.

    `refusal` is what a run ends with that reads grown input topics only `until` some offsets; None for any other run.
    """

    def __init__(
        self,
        options: Options,
        plans: tuple[SubtopologyPlan, ...],
        changelogs: Changelogs,
        tables: Sequence[Changelog] = (),
        output: str | None = None,
        encoding: RecordEncoding = AS_JSON,
        until: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """`plans` are in order from source to sink; the topics of `changelogs` and `tables` exist.

        output: topic of the results, None if they are rows. encoding: of results in that topic.
        """
        super().__init__()
        self.options, self.plans, self.changelogs, self.until = options, plans, changelogs, until
        self.refusal = next((changelog.refusal for changelog in changelogs if changelog.refusal is not None), None)
        self._output = output
        self.admin = admin_of(options)  # connects with the first batch
        self._check: DefinitionCheck | None = None
        places = {t.topic: table_place(options.state.dir, options.group, t.topic, t.topic_id) for t in tables}
        kinds = self._kinds()
        is_hashed = bool(places) or not all(kind.place.is_ordered for kind in kinds.values())
        loops = compiled(HASH) if is_hashed else None
        self.topology = TopologyPlan(self.plans, kinds, output, encoding, places, loops)
        self.targets = StoreTargets(self.admin, changelogs, _OF_OTHERS, self.done)
        self.copies = Copies(self.admin, changelogs, options.tuning.acceptable_lag, tables=tables)
        self.idleness = None
        """Gives stores of idle inputs a stream time; None without `idle_after`."""
        if options.idle_seconds and self._joined:
            self.idleness = Idleness(changelogs, self._joined, options.idle_seconds, self._behind)
        self._repartition = [plan.repartition_source for plan in plans if plan.repartition_source is not None]
        self.purge = Purge([repartition.topic for repartition in self._repartition], self.admin.delete_records)
        """Deletes processed records of repartition topics."""
        self.input_backlogs = input_backlogs(self.plans, self.admin, options.group)
        """What is left to read where rows get labels of their sources."""
        self.features: list[DueTasks] = [Timers(changelogs, self._timed)] if self._timed else []
        self.features += [] if self.idleness is None else [self.idleness]
        self.features += [*self.input_backlogs.values(), *([self.purge] if self._repartition else [])]
        """Objects that follow the batches, each only in a pipeline that needs it."""
        self.source_names = SourceNames(self.admin, [topic for plan in plans for topic in plan.subtopology.sources])

    @classmethod
    def open(
        cls,
        options: Options,
        plans: Sequence[SubtopologyPlan],
        grown_input: GrownTopics,
        sink: KafkaSink | None = None,
        output: str | None = None,
        encoding: RecordEncoding = AS_JSON,
    ) -> Stores:
        """Make or check the topics of the stores, have `sink`, which is open, write their records; return the stores.

        sink: None without records to write. grown_input: says how far topics that have grown are read.

        Raises PipelineError and ClientError.
        """
        group, plans = options.group, labelled(plans)
        passed, late, changelogs = list[TopicPartition](), list[TopicPartition](), list[Changelog]()
        with admin_of(options) as admin:
            check_whole(admin, group)
            for plan in plans:
                if plan.nodes:
                    keys = placing_keys(next(iter(plan.definitions.values()))).names
                    arriving = "" if plan.repartition_source is None else plan.repartition_source.topic
                    grown_input.check_new(admin, plan.subtopology.sources, keys, options.start, arriving)
            check_all_are_read(admin, group, [source for plan in plans for source in plan.subtopology.sources])
            for plan in plans:
                if plan.repartition_source is not None:
                    beside = [topic for topic in plan.subtopology.sources if topic != plan.repartition_source.topic]
                    beside += [table.topic for table in plan.tables]
                    passed += open_repartition_topic(admin, group, plan.repartition_source, beside)
                for node in plan.nodes:
                    named = plan.subtopology, node.store
                    changelogs.append(open_changelog(admin, group, *named, is_optional=plan.is_relay))
                    late += [] if node.late is None else _existing_partitions(admin, node.late.topic, "late_topic")
            if (letters := options.dead_letter_topic) is not None:
                late += _existing_partitions(admin, letters, "dead_letter_topic")
            tables = _tables(admin, plans)
            is_grown = any(changelog.refusal is not None for changelog in changelogs)
            until = grown_input.ends(admin, changelogs) if is_grown else {}
        if sink is not None:
            carried = [changelog[task] for changelog in changelogs for task in changelog.tasks]
            sink.carry([*carried, *dict.fromkeys(late), *passed], keep_timestamps=bool(passed or letters))
        counts = Counter(partition.topic for partition in passed)
        plans = tuple(plan.into(counts) for plan in plans)
        return cls(options, plans, Changelogs(changelogs), tables, output, encoding, until)

    def _kinds(self) -> dict[str, StoreKind]:
        definitions = [item for plan in self.plans for item in plan.definitions.items()]
        return {
            name: StoreKind(
                Place(self.options.state.dir, changelog.topic, changelog.topic_id, definition.is_ordered), definition
            )
            for (name, definition), changelog in zip(definitions, self.changelogs, strict=True)
        }

    @property
    def _timed(self) -> list[int]:
        """Sub-topologies whose tasks may run without records; their results as rows would have no position."""
        timed = [plan.subtopology.number for plan in self.plans if any(node.has_timers for node in plan.nodes)]
        last = self.plans[-1].subtopology.number
        return [number for number in timed if self._output is not None or number != last]

    @property
    def _joined(self) -> dict[int, list[str | None]]:
        """The topic that each store joins, of each sub-topology that goes by stream time."""
        return {
            plan.subtopology.number: [None if node.other is None else node.other.topic for node in plan.nodes]
            for plan in self.plans
            if plan.closes
        }

    def definition_check(self, config: ReaderConfig) -> DefinitionCheck:
        """Check the definition of the group's state, and return the check. Raises PipelineError, ClientError,
        ReadError.
        """
        self._check = DefinitionCheck(config, self.admin, self.plans, self.changelogs)
        self._check.check()
        return self._check

    @override
    def old_members(self) -> int:
        # All members are an earlier release's while all state is, and is to be changed.
        if self._check is None or not self._check.is_first:
            return 0
        members = len(members_of(self.admin, self.options.group))
        if members:
            self._check.check()
        return members if self._check.is_first else 0

    @property
    def application_server(self) -> Address | None:
        """Address at which the application answers queries, None if it does not."""
        address = self.options.state.application_server
        return None if address is None else parse_address(address)

    def member(self, options: Options) -> TaskMember:
        """Make the group member of the pipeline."""
        committed_only = [repartition.topic for repartition in self._repartition]
        tables = self.topology.tables
        subtopologies = []
        for plan in self.plans:
            copies = [f"{table.topic}-table" for table in plan.tables if table.topic in tables]
            subtopologies.append(replace(plan.subtopology, stores=[*plan.subtopology.stores, *copies]))
        return task_member(options, subtopologies, self.copies, committed_only=committed_only)

    @override
    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.admin.end_offsets(partitions)

    @override
    def held(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return self.copies.held(partitions)

    @override
    def restoring(self) -> Mapping[str, Restoring]:
        return self.copies.restoring()

    @override
    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Record newly assigned partitions, after transactions of their earlier owners have ended.

        Raises PipelineError if the state has been given other partitions since `open`, while the group had no member,
        and ClientError.
        """
        check_whole(self.admin, self.options.group)
        self.changelogs.check_same(self.admin)
        self.targets.forget(partitions)
        self.copies.assigned(partitions)
        for feature in self.features:
            feature.assigned(partitions)

    @override
    def held_and_due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        return self.held(partitions) if self.copies.cold else frozenset(), self.due(partitions, behind, once=once)

    @override
    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> frozenset[TopicPartition]:
        return frozenset().union(*(feature.due(partitions, behind, once=once) for feature in self.features))

    def _behind(self, subtopologies: Collection[int]) -> set[int]:
        """Return those in front of whose repartition anything is left to read. Raises ClientError."""
        behind = set[int]()
        for (_, topic), backlog in self.input_backlogs.items():
            through = {plan.subtopology.number for plan in behind_topic(topic, self.plans)} & {*subtopologies}
            if not through <= behind and backlog.has_more():
                behind |= through
        return behind

    def ran(
        self, batch: Batch, tasks: Mapping[TaskId, TaskRun], sent: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Record what a batch's tasks did. sent: {source: largest time of its rows}, where rows have labels."""
        for feature in self.features:
            feature.ran(batch, tasks)
        for backlog in self.input_backlogs.values():
            backlog.sent(sent)

    @override
    def committed(self, batch: Batch, outcome: Outcome, log_ends: Mapping[TopicPartition, int]) -> None:
        # If two attempts finished, only the changelog tells which changes were committed.
        if unknown := self.targets.committed(outcome.tokens, batch, log_ends):
            self.copies.mark_unknown(unknown)
        for feature in self.features:
            feature.committed(batch)

    @override
    def aborted(self, batch: Batch) -> None:
        self.targets.forget(batch.ranges)
        for feature in self.features:
            feature.aborted(batch)
        self.copies.mark_unknown(self.changelogs.tasks_of(batch.ranges))

    def close(self) -> None:
        """Close the connections."""
        self.admin.close()


class PartlyStableMember(TaskMember):
    """`TaskMember` that reads some topics, or all, as `read_committed`."""

    committed_only: frozenset[str] = frozenset()

    @override
    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        stable = [partition for partition in partitions if partition.topic in self.committed_only]
        others = [partition for partition in partitions if partition.topic not in self.committed_only]
        ends = self.stable_offsets(stable) if stable else {}
        return ends | (super().end_offsets(others) if others else {})


def task_member(
    options: Options, subtopologies: Sequence[Subtopology], copies: Copies, *, committed_only: Collection[str] = ()
) -> TaskMember:
    """Make the member for a pipeline's options, and attach the copies to it; it computes their gaps when it starts.

    committed_only: topics read as `read_committed` whatever the isolation level.
    Raises OptionError for a value that cannot work.
    """
    if options.isolation_level == "read_committed":
        committed_only = [topic for subtopology in subtopologies for topic in subtopology.sources]
    member = (PartlyStableMember if committed_only else TaskMember)(
        options.bootstrap,
        options.group,
        TaskOptions(
            subtopologies=subtopologies,
            standbys=options.state.standbys,
            acceptable_lag=options.tuning.acceptable_lag,
            max_warmups=options.tuning.max_warmups,
            host=options.state.application_server,
        ),
        gaps=copies.gaps,
        process_id=copies.process_id,
        **member_settings(options),
    )
    if isinstance(member, PartlyStableMember):
        member.committed_only = frozenset(committed_only)
    copies.join(member)
    return member


def admin_of(options: Options) -> Admin:
    """Return a client of the cluster that a pipeline reads from; it connects when it is first used."""
    timeout_ms = options.settings.request_timeout_ms
    return Admin(options.bootstrap, request_timeout_ms=timeout_ms, security=options.security)


def _tables(admin: Admin, plans: Iterable[SubtopologyPlan]) -> list[Changelog]:
    """Return the tables that are joined and there, each in one sub-topology; they are state of its tasks."""
    tables: list[Changelog] = []
    for plan in plans:
        for topic in (table.topic for table in plan.tables):
            with contextlib.suppress(UnknownTopicError):  # reported by the table join
                table = admin.describe_topic(topic)
                topic_id = (table.topic_id or b"\0").hex()
                tables.append(Changelog(topic, topic_id, len(table.partitions), plan.subtopology))
    return tables


def _existing_partitions(admin: Admin, topic: str, field: str) -> list[TopicPartition]:
    """Return the partitions of a topic for late rows or dead letters. Raises PipelineError if it does not exist."""
    try:
        return [TopicPartition(topic, p.partition) for p in admin.describe_topic(topic).partitions]
    except UnknownTopicError:
        fix = f"Create it, for example with `roster topics create {topic}`"
        raise PipelineError(f"there is no topic {topic!r}", field=field, fix=fix) from None


class StoreTargets:
    """The targets of one application's tasks; call all methods but `cancel` on the pipeline's thread."""

    def __init__(self, logs: Logs, changelogs: Changelogs, patience: float, committed: Committed | None = None) -> None:
        """`patience` is how many seconds a batch waits for others' transactions to end."""
        self._logs, self._changelogs, self._patience = logs, changelogs, patience
        self._committed = committed or Committed()
        self._ends: dict[TopicPartition, int] = {}
        """Changelog offsets at which the batch prepared last begins."""
        self._begins: dict[TopicPartition, int] = {}
        self._cancelled = threading.Event()

    def prepare(self, batch: Batch) -> dict[TaskId, tuple[StoreTarget, ...]]:
        """Return the target of each store of the tasks of a batch.

        Raises SinkFencedError if a transaction holds up a changelog for too long or the batch is cancelled,
        PipelineError for a partition that the changelog lacks, and ClientError.
        """
        self._cancelled.clear()
        inputs: dict[TaskId, dict[str, int]] = {}
        for source, span in batch.ranges.items():
            if (reader := self._changelogs.readers.get(source)) is None:
                self._changelogs.check_grown([source])
            else:
                inputs.setdefault(reader, {})[source.topic] = span.start
        logs_of = {task: self._changelogs.logs[task] for task in inputs}
        logs = [log for of_task in logs_of.values() for log in of_task]
        if unknown := [log for log in logs if log not in self._begins]:
            self._begins |= self._logs.beginning_offsets(unknown)
        last = {task: commit for task in logs_of if (commit := self._committed.tasks.get(task)) is not None}
        ends = self._ends = {log: end for commit in last.values() for log, end in commit.ends.items()}
        if unknown := [log for log in logs if log not in ends]:
            ends |= self._stable_ends(unknown)
        tokens = {task: commit.token for task, commit in last.items()}
        return {
            task: tuple(
                StoreTarget(log, self._begins[log], ends[log], inputs[task], tokens.get(task)) for log in of_task
            )
            for task, of_task in logs_of.items()
        }

    def last(self, tasks: Collection[TaskId]) -> dict[TaskId, tuple[StoreTarget, ...]]:
        """Return targets without records that apply pending committed attempts of these tasks; raises as `prepare`."""
        last = self._committed.tasks
        for task, commit in last.items():
            last[task] = commit._replace(ends={})  # markers may be on their way
        inputs = [item for task in last.keys() & set(tasks) for item in last[task].inputs.items()]
        ranges = {source: Range(offset, offset) for source, offset in inputs}
        return self.prepare(Batch(0, Owner("", -1, ""), ranges)) if ranges else {}

    def _stable_ends(self, logs: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log ends once every transaction before them is decided and its marker written."""
        ends = self._logs.end_offsets(logs)
        pause, until = _PAUSE, time.monotonic() + self._patience
        while True:
            stable = self._logs.stable_offsets(logs)
            if held := [p for p in logs if stable[p] < ends[p]]:
                if time.monotonic() >= until:
                    raise SinkFencedError(f"{held[0]}: a transaction is open from offset {stable[held[0]]} on")
                if self._cancelled.wait(pause):
                    raise SinkFencedError("the batch was cancelled while it waited for transactions to end")
                pause = min(2 * pause, _MOST_PAUSE)
                continue
            return ends

    def cancel(self) -> None:
        """End the waiting of `prepare`; from any thread."""
        self._cancelled.set()

    def committed(
        self, tokens: Mapping[TaskId, str], batch: Batch, ends: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> list[TaskId]:
        """Record the commit of each task; forget it for tasks of the batch without a token, and return them.

        ends: of the logs that the batch has written to, where they are known: while the application owns the task
        no other client's records count there, so that the next batch need not ask.
        """
        inputs: dict[TaskId, dict[TopicPartition, int]] = {}
        for source, span in batch.ranges.items():
            if (reader := self._changelogs.readers.get(source)) is not None:
                inputs.setdefault(reader, {})[source] = span.end
        commits, unknown = self._committed.tasks, list[TaskId]()
        for task, of_task in inputs.items():
            if task not in tokens:
                commits.pop(task, None)
                unknown.append(task)
                continue
            logs = self._changelogs.logs[task]
            begins = {log: self._ends.get(log, 0) for log in logs}
            earlier = commits[task].inputs if task in commits else {}
            known_ends = {log: ends[log] for log in logs if log in ends}
            commits[task] = TaskCommit(tokens[task], begins, known_ends, {**earlier, **of_task})
        return unknown

    def last_commit(self, task: TaskId) -> TaskCommit | None:
        """Return the last commit of a task, None if unknown; from any thread."""
        return self._committed.tasks.get(task)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Trust stores of these tasks only up to their changelog position: other owners may have changed the state."""
        for task in self._changelogs.tasks_of(partitions):
            self._committed.tasks.pop(task, None)
            for log in self._changelogs.logs[task]:
                self._begins.pop(log, None)
