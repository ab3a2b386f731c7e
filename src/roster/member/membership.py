"""What the parts of a member share: who it is in its group, what it holds and what it has under way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from roster.member.commits import Commits
from roster.member.events import Channel, Publish, Report
from roster.member.holdings import Holdings
from roster.member.outbox import Outbox
from roster.member.transitions import TRANSITIONS, State
from roster.member.watch import TopicWatch
from roster.model import NO_GENERATION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roster.assignors import Assignor
    from roster.member.backoff import Chance
    from roster.member.config import MemberConfig
    from roster.member.events import Failure, Node, TimerName
    from roster.member.outbox import Identity, Sent
    from roster.member.transitions import Trigger
    from roster.model import TopicPartition
    from roster.wire import Message

HEARTBEAT: TimerName = ("heartbeat",)
REVOKE: TimerName = ("revoke",)
JOIN: TimerName = ("join",)
DISCOVER: TimerName = ("discover",)
METADATA: TimerName = ("metadata",)


class Membership:
    """One member's place in its group. The parts of a member act on it; it knows none of them."""

    def __init__(self, config: MemberConfig, chance: Chance) -> None:
        self.config = config
        self.out = Outbox(config, chance)
        self.commits = Commits(config, self.out)
        self.watch = TopicWatch(config.selection)
        self.holdings = Holdings()
        self.tries: Counter[TimerName] = Counter()
        """How often in a row an action was tried in vain, by the name of the timer that ends its pause."""
        self.failure: Failure | None = None
        """Why it gave up for good, if it did."""
        self._published = Publish(epoch=0)

        # Who it is.
        self.state = State.UNJOINED
        self.generation = NO_GENERATION
        self.member_id = ""
        self.coordinator: Node | None = None
        self.leader = False
        self.protocol: str | None = None

        # What it joins with.
        self.rejoin: str | None = None
        """Why to join again; None when there is no reason to."""
        self.joined_topics: frozenset[str] = frozenset()
        self.last_assignment: tuple[int, frozenset[TopicPartition]] = (NO_GENERATION, frozenset())
        self.settling = False
        """Whether the next join tells the group that partitions were given up for others to have."""

        # What it leads.
        self.group: dict[str, tuple[bytes, str | None]] = {}
        """From JoinGroup to SyncGroup: each member's subscription and instance id."""
        self.assigning: int | None = None
        """The number of the running `FetchOffsets` or `Assign`."""

    @property
    def identity(self) -> Identity:
        """Who requests come from."""
        return self.generation, self.member_id

    @property
    def policy(self) -> Assignor:
        """The assignor that the group chose, once it has."""
        return self.config.policies[self.protocol or ""]

    def sent_as_now(self, sent: Sent) -> bool:
        """Whether the request is of the present generation; an answer to an older one tells nothing of this one."""
        return sent.identity == self.identity

    def move(self, trigger: Trigger) -> None:
        """Change the state; KeyError when the trigger has no place in it."""
        self.state = TRANSITIONS[self.state, trigger]

    def request_rejoin(self, reason: str) -> None:
        """Join again as soon as the state allows."""
        if self.rejoin is None:
            self.report("rejoin", reason)
        self.rejoin = reason

    # Heartbeats are due in several states.

    def beating(self) -> bool:
        """Whether the coordinator expects heartbeats: in a generation, and no JoinGroup is on its way."""
        return self.generation != NO_GENERATION and self.state is not State.PREPARING_REBALANCE

    def set_heartbeat(self) -> None:
        """The next heartbeat is due one interval from now."""
        self.out.set(HEARTBEAT, self.out.now + self.config.heartbeat_interval_ms)

    # Partitions on their way out.

    def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Ask the application to give up owned `partitions` in time."""
        deadline = self.out.now + self.config.revocation_ms
        self.holdings.revoke(partitions, deadline)
        self.out.set(REVOKE, deadline)
        self.report("revoking", "to be finished, committed and released", partitions)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """The application gave these up."""
        self.holdings.release(partitions)
        self._end_revocation()

    def lose(self, partitions: frozenset[TopicPartition], reason: str) -> None:
        """These held partitions are gone, whatever the application is doing with them."""
        if partitions:
            self.report("lost", reason, partitions)
        self.holdings.lose(partitions)
        self._end_revocation()

    def _end_revocation(self) -> None:
        if not self.holdings.revoking:
            self.out.cancel(REVOKE)

    # Effects.

    def send(
        self,
        kind: str,
        message: Message,
        to: Node | None = None,
        *,
        timeout_ms: int | None = None,
        channel: Channel = Channel.PROMPT,
    ) -> None:
        """Send to the coordinator at `to`, or to any broker."""
        self.out.send(kind, message, self.identity, timeout_ms=timeout_ms, to=to, channel=channel)

    def pause(self, name: TimerName, reason: str) -> None:
        """The action `name` failed: hold it back for a while, the longer the more often it did in a row."""
        pause = self.out.pause(name, self.tries[name])
        self.tries[name] += 1
        self.report("retry", f"{name[0]}: again in {pause} ms, {reason}")

    def report(self, kind: str, text: str, partitions: frozenset[TopicPartition] = frozenset()) -> None:
        """Tell people."""
        self.out.emit(Report(kind, text, self.generation, self.member_id, partitions))

    def publish(self) -> None:
        """Tell the application of a change, if there is one; the epoch counts the changes told."""
        held = self.holdings
        news = Publish(
            held.epoch,
            self.generation,
            self.member_id,
            held.owned,
            held.revoking,
            held.lost,
            held.deadline,
            self.failure,
        )
        if news != self._published:
            held.epoch += 1
            self._published = replace(news, epoch=held.epoch)
            self.out.emit(self._published)
