"""What a member has going: the effects of this step, requests without an answer, timers and pauses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from roster.member.backoff import Chance, backoff_ms
from roster.member.events import CancelTimer, Channel, Send, SetTimer

if TYPE_CHECKING:
    from roster.member.config import MemberConfig
    from roster.member.events import Effect, Node, TimerName
    from roster.wire import Message

Identity: TypeAlias = tuple[int, str]
"""Generation and member id."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What an answer must be matched with: the kind of request, who the member was then, and where it went."""

    kind: str
    identity: Identity
    to: Node | None


class Outbox:
    """Collects effects; knows which requests are in flight and which actions are paused."""

    def __init__(self, config: MemberConfig, chance: Chance) -> None:
        self.now = 0
        self._config = config
        self._chance = chance
        self._effects: list[Effect] = []
        self._next = 1
        self._sent: dict[int, Sent] = {}
        self._paused: set[TimerName] = set()

    def begin(self, now: int) -> None:
        """A step begins."""
        self.now = now
        self._effects = []

    def end(self) -> tuple[Effect, ...]:
        """The effects of the step, in order."""
        return tuple(self._effects)

    def emit(self, effect: Effect) -> None:
        """One more effect."""
        self._effects.append(effect)

    # Requests.

    def number(self) -> int:
        """A number never used before."""
        number = self._next
        self._next += 1
        return number

    def send(
        self,
        kind: str,
        message: Message,
        identity: Identity,
        *,
        timeout_ms: int | None = None,
        to: Node | None = None,
        channel: Channel = Channel.PROMPT,
    ) -> None:
        """Send to the coordinator at `to`, or to any broker."""
        number = self.number()
        self._sent[number] = Sent(kind, identity, to)
        timeout = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        self.emit(Send(number, message, timeout, to, Channel.ANY if to is None else channel))

    def take(self, number: int) -> Sent | None:
        """The request that is answered; None when it was forgotten or answered before."""
        return self._sent.pop(number, None)

    def in_flight(self, kind: str) -> bool:
        """Whether a request of this kind waits for its answer."""
        return any(sent.kind == kind for sent in self._sent.values())

    def forget(self, *kinds: str) -> None:
        """Answers to these requests do not count any more."""
        self._sent = {number: sent for number, sent in self._sent.items() if sent.kind not in kinds}

    def forget_node(self, node: Node) -> None:
        """Answers from this node do not count any more."""
        self._sent = {number: sent for number, sent in self._sent.items() if sent.to != node}

    # Timers.

    def set(self, name: TimerName, deadline: int) -> None:
        """Set a timer; an action paused by it is no longer."""
        self._paused.discard(name)
        self.emit(SetTimer(name, deadline))

    def cancel(self, *names: TimerName) -> None:
        """Cancel timers and the pauses they end."""
        for name in names:
            self._paused.discard(name)
            self.emit(CancelTimer(name))

    def pause(self, name: TimerName, attempts: int) -> int:
        """Hold back the action `name`, the longer the more `attempts` there were; returns the pause in ms."""
        config = self._config
        pause = backoff_ms(attempts, config.retry_backoff_ms, config.retry_backoff_max_ms, self._chance)
        self.set(name, self.now + pause)
        self._paused.add(name)
        return pause

    def resume(self, name: TimerName) -> None:
        """The pause is over, or not wanted any more."""
        self._paused.discard(name)

    def paused(self, name: TimerName) -> bool:
        """Whether the action `name` must wait."""
        return name in self._paused

    def clear(self) -> None:
        """Forget every request and pause."""
        self._sent.clear()
        self._paused.clear()
