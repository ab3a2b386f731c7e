"""A member of a consumer group as a blocking facade over an event-loop thread."""

import logging
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import count
from random import Random
from typing import Self

from roster.assignors import as_tuple
from roster.client.arrivals import Arrivals
from roster.client.cluster import Cluster
from roster.client.coordinators import Coordinators
from roster.client.errors import (
    ClosedError,
    CommitFenced,
    CommitRetriable,
    OptionError,
    RequestTimeoutError,
    UnreachableError,
    failure_error,
)
from roster.client.loop import LoopThread, blocking
from roster.client.member_shell import MemberShell
from roster.client.member_statistics import MemberStatistics
from roster.client.offsets import LogOffsets, committed_offsets
from roster.client.options import GroupMemberOptions
from roster.client.retry import Retry
from roster.client.types import MemberEvent, Ownership
from roster.member.config import ConfigError, MemberConfig, check_selection
from roster.member.events import (
    Closed,
    CommitDone,
    CommitRequested,
    Publish,
    RebalanceRequested,
    Released,
    Report,
    SelectionChanged,
    Started,
    Stopped,
)
from roster.member.member import Member
from roster.member.options import MemberSettings
from roster.member.states import MemberState
from roster.member.types import ReportKind, Selection
from roster.model import NO_GENERATION, OffsetAndMetadata, TopicPartition
from roster.model.offsets import Arrival
from roster.model.options import taking, values

log = logging.getLogger("roster.member")

_SAY_UNREACHABLE = 3.0
"""Seconds without a first connection before a log line names the brokers being tried."""


class GroupMember(LogOffsets):
    """A member of a consumer group on its own event-loop thread; every method is thread-safe and blocking.

    With the default assignors a group of such members uses cooperative-sticky; while it has a member that knows only
    range (the default of librdkafka, kafka-python and aiokafka), the group uses that.
    """

    @taking(GroupMemberOptions)
    def __init__(self, options: GroupMemberOptions) -> None:
        """Check the options; `start` connects.

        Raises:
            OptionError: an option has an invalid value; `option` is its name.
        """
        try:
            self._config = MemberConfig(
                group=options.group,
                selection=_selection(options.topics),
                assignors=as_tuple(options.assignors),
                **values(MemberSettings, options),
            )
        except ConfigError as error:
            raise OptionError(error.option, str(error)) from None
        self._chance = Random(options.seed)  # jitter, no secret
        self._cluster = Cluster(
            options.bootstrap, options.client_id, options.request_timeout_ms / 1000, self._chance, options.security
        )
        self._coordinators = Coordinators(self._cluster)
        self._on_event = options.on_event
        self.statistics = MemberStatistics()
        """Counts of rebalances, failures and delays, made on the member's thread."""
        self.static_id = ""
        """A static member's newest id. Give it to an object that goes on for this one, before that starts: the group
        then refuses it if another member has taken its instance id meanwhile."""
        self._changed = threading.Condition()
        self._ownership = Ownership()
        self._commits: dict[int, Future[None]] = {}
        self._tokens = count(1)
        self._arrivals = Arrivals(self._cluster, self._changed)
        self._stopped = threading.Event()
        self._runner: MemberShell | None = None
        self._loop: LoopThread | None = None
        self._closed = False
        self._joined = False
        self._trouble = "nothing was heard of it"
        self._rejoin_reason: str | None = None

    # Joining and leaving.

    def start(self, timeout: float = 60.0) -> None:
        """Join the group: return with the first assignment, or after `timeout` seconds while joining continues.

        Raises UnreachableError when no broker answered within `timeout` (a starting broker is retried),
        UnknownTopicError, a GroupError when the group refuses this member, RequestTimeoutError when the group has no
        coordinator within `timeout`, and ClosedError when another thread closes the member meanwhile. After an error
        the member is closed.
        """
        with self._changed:  # `close` finds nothing to end before, and the loop with its first task behind
            if self._closed or self._loop is not None:
                raise ClosedError("a member is started once; make another one")
            self._loop = LoopThread(f"roster-member-{self._config.group}")
            begun = self._loop.start(self._begin(timeout))
        try:
            begun.result()
            with self._changed:
                self._changed.wait_for(self._has_answer, timeout)
            if self._closed:
                raise ClosedError("the member was closed")
            if self._ownership.error is not None:
                raise self._ownership.error
            runner = self._runner
            if not self._joined and runner is not None and runner.member.coordinator is None:
                raise RequestTimeoutError(
                    f"group {self._config.group!r} has had no coordinator for {timeout:g} s: {self._trouble}"
                )
        except BaseException as error:
            if self._closed and isinstance(error, (CancelledError, UnreachableError)):  # the loop was stopped under it
                raise ClosedError("the member was closed") from None
            self.close(timeout=1.0)
            raise

    def _has_answer(self) -> bool:
        return self._joined or self._closed or self._ownership.error is not None

    async def _begin(self, timeout: float) -> None:
        await self._connect(timeout)
        if not isinstance(self._config.selection, re.Pattern):
            await self._cluster.topics(self._config.selection)
        self._runner = MemberShell(self._cluster, self._config, self._chance, self._take, self._stepped, self._late)
        self._feed(Started(self.static_id))

    async def _connect(self, timeout: float) -> None:
        """Retry the first connection, as a broker may just be starting."""
        retry, warned = Retry(timeout), False
        while True:
            try:
                await self._cluster.metadata(())
            except UnreachableError as error:
                if self._closed or retry.expired:
                    raise
                if not warned and retry.elapsed >= _SAY_UNREACHABLE:
                    warned = True
                    log.warning("group %s: %s; trying for %g s", self._config.group, error, timeout)
                await retry.pause()
            else:
                return

    def close(self, leave: bool = True, timeout: float = 10.0) -> None:
        """Stop; may be repeated.

        Args:
            leave: send LeaveGroup, so that the other members take over at once; a static member never does.
            timeout: seconds to wait for that.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._loop is None:
            return
        if self._runner is not None:
            self._loop.post(self._feed, Closed(leave))
            self._stopped.wait(timeout)
        self._loop.call(self._shut())
        self._loop.stop()
        for waiting in list(self._commits.values()):
            if not waiting.done():
                waiting.set_exception(ClosedError("the member was closed"))
        with self._changed:
            self._changed.notify_all()

    async def _shut(self) -> None:
        if self._runner is not None:
            await self._runner.close()
        await self._cluster.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Ownership.

    def ownership(self) -> Ownership:
        """Return the partitions that this member owns now."""
        with self._changed:
            return self._ownership

    def wait(self, epoch: int, timeout: float) -> Ownership:
        """Wait until the snapshot's epoch differs from `epoch`, at most `timeout` seconds; returns the newest."""
        with self._changed:
            self._changed.wait_for(lambda: self._ownership.epoch != epoch or self._closed, timeout)
            return self._ownership

    def wait_for_records(
        self, positions: Mapping[TopicPartition, int], epoch: int, timeout: float, *, is_committed: bool = False
    ) -> Ownership:
        """Wait like `wait`, or until one of these partitions has a record at its position or behind."""

        def is_over() -> bool:
            return self._arrivals.has(positions) or self._ownership.epoch != epoch or self._closed

        with self._changed:
            if not is_over():
                self.watch(positions, timeout, is_committed=is_committed)
            self._changed.wait_for(is_over, timeout)
            return self._ownership

    def watch(
        self,
        positions: Mapping[TopicPartition, int],
        seconds: float,
        *,
        is_committed: bool = False,
        pause: float = 0.0,
    ) -> None:
        """Ask brokers, for so long, to send records at these positions or behind, until `arrivals` takes them.

        pause: seconds until they are asked.
        """
        watch = partial(self._arrivals.watch, positions, seconds, is_committed=is_committed, pause=pause)
        self._running().post(watch)

    def arrivals(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Sequence[Arrival]]:
        """Return what brokers have sent from these positions on, parts one behind the other, and forget the rest."""
        return self._arrivals.take(positions)

    def topics(self) -> frozenset[str]:
        """The topics followed now: those subscribed to, or those known to match the pattern."""
        return frozenset(self._runner.member.topics or ()) if self._runner is not None else frozenset()

    @property
    def assignor(self) -> str | None:
        """The assignor that the group chose last; None before the first join."""
        return self._runner.member.protocol_name if self._runner is not None else None

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Hand over `revoking` partitions whose work has stopped and is committed; a no-op once closed."""
        if not self._closed:
            self._post(Released(frozenset(partitions)))

    def subscribe(self, topics: Sequence[str] | re.Pattern[str]) -> None:
        """Follow other topics from now on; OptionError for what cannot be a topic."""
        try:
            selection = _selection(topics)
            check_selection(selection)
        except ConfigError as error:
            raise OptionError(error.option, str(error)) from None
        self._post(SelectionChanged(selection))

    # Offsets.

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], ownership: Ownership) -> None:
        """Commit for work done under `ownership`; returns when the offsets are durable.

        A partition that was kept without a break since `ownership` is committed in the group's present generation.
        Raises CommitFenced when one was not (then nothing is written), CommitRetriable when the commit did not go
        through within the request timeout, UnknownTopicError and other ClientErrors as they are.
        """
        if not offsets:
            return
        done: Future[None] = Future()
        token = next(self._tokens)
        self._commits[token] = done
        try:
            self._post(CommitRequested(token, dict(offsets), ownership.epoch))
            done.result()
        finally:
            self._commits.pop(token, None)

    @blocking
    async def confirm(self, partitions: Collection[TopicPartition], ownership: Ownership) -> tuple[int, str]:
        """Return the present generation and member id, for a commit of work on `partitions` done under `ownership`.

        Raises CommitFenced if a partition was not kept without a break since then, and CommitRetriable while the member
        is between two generations.
        """
        kept = frozenset(partitions)
        member = self._runner.member if self._runner is not None else None
        lost = kept if member is None else member.ownership.fenced(kept, ownership.epoch)
        if member is None or lost:
            raise CommitFenced(f"{len(lost)} partitions were lost, among them {min(lost)}", partitions=lost)
        if member.generation == NO_GENERATION:
            raise CommitRetriable("the member is between two generations", partitions=kept)
        return member.generation, member.member_id

    @blocking
    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of the group; None before the first commit."""
        wanted = list(partitions)
        offsets = await committed_offsets(self._coordinators, self._config.group, wanted) if wanted else {}
        return {partition: offsets.get(partition) for partition in wanted}

    @blocking
    async def partitions_for(self, topics: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of each topic; UnknownTopicError if one does not exist."""
        self._cluster.forget(topics)
        known = await self._cluster.topics(topics)
        return {topic: len(known[topic].leaders) for topic in topics}

    # Between the threads.

    def _running(self) -> LoopThread:
        if self._closed or self._loop is None:
            raise ClosedError("the member is closed" if self._closed else "the member is not started")
        return self._loop

    def _post(self, event: CommitRequested | Released | SelectionChanged) -> None:
        self._running().post(self._feed, event)

    def _feed(
        self, event: Started | Closed | CommitRequested | RebalanceRequested | Released | SelectionChanged
    ) -> None:
        runner = self._runner
        assert runner is not None  # posted only by a started member
        runner.feed(event)

    def _take(self, effect: Publish | CommitDone | Report | Stopped) -> None:
        """Handle an effect for the application; on the loop's thread."""
        match effect:
            case Publish():
                self._publish(effect)
            case CommitDone(token, failure):
                self.statistics.take(effect, time.monotonic())
                waiting = self._commits.get(token)
                if waiting is not None and not waiting.done():
                    if failure is None:
                        waiting.set_result(None)
                    else:
                        waiting.set_exception(failure_error(failure))
            case Report():
                self.statistics.take(effect, time.monotonic())
                self._tell(effect)
            case Stopped():
                self._stopped.set()

    def _late(self, seconds: float) -> None:
        self.statistics.heartbeat_lateness.add(seconds)

    def _stepped(self, member: Member) -> None:
        """Record the first assignment, which is not published if it is empty."""
        if not self._joined and member.state is MemberState.STABLE:
            with self._changed:
                self._joined = True
                self._changed.notify_all()

    def _publish(self, news: Publish) -> None:
        with self._changed:
            self._ownership = Ownership(
                generation=news.generation,
                member_id=news.member_id,
                partitions=news.partitions,
                revoking=news.revoking,
                lost=news.lost,
                revoke_deadline=None if news.revoke_deadline is None else news.revoke_deadline / 1000,
                epoch=news.epoch,
                error=None if news.failure is None else failure_error(news.failure),
            )
            if self._config.group_instance_id is not None:
                self.static_id = news.member_id or self.static_id
            self.statistics.owns(self._ownership, time.monotonic())
            self._changed.notify_all()

    def _tell(self, report: Report) -> None:
        if report.kind is ReportKind.RETRY:
            self._trouble = report.text
        self._log(report)
        if self._on_event is None:
            return
        event = MemberEvent(
            *(report.kind.value, report.text, report.generation, report.member_id, report.partitions, report.cause)
        )
        try:
            self._on_event(event)
        except Exception:
            log.exception("on_event raised")

    def _log(self, report: Report) -> None:
        """Write one line per report; a JoinGroup for the reason that a rejoin was just reported for is at debug."""
        serious = (ReportKind.LOST, ReportKind.FAILED, ReportKind.DIVIDED)
        level = logging.WARNING if report.kind in serious else logging.INFO
        if report.kind is ReportKind.JOINING and report.text == self._rejoin_reason:
            level = logging.DEBUG
        self._rejoin_reason = report.text if report.kind is ReportKind.REJOIN else None
        member = f" member {report.member_id}" if report.member_id else ""
        text = report.text.removesuffix(f": {report.member_id}") if report.member_id else report.text
        log.log(level, "group %s%s: %s: %s", self._config.group, member, report.kind.value, text)


def _selection(topics: Sequence[str] | re.Pattern[str]) -> Selection:
    if isinstance(topics, re.Pattern):
        return topics
    if isinstance(topics, str) or not isinstance(topics, Sequence | frozenset | set):
        raise ConfigError("topics", f"must be a sequence of names or a compiled pattern, not {topics!r}")
    if not all(isinstance(topic, str) for topic in topics):
        raise ConfigError("topics", f"every topic must be a text: {topics!r}")
    return frozenset(topics)
