"""Effects of the current step, in-flight requests, timers and back-offs."""

from dataclasses import dataclass
from typing import TypeAlias

from roster.member.config import MemberConfig
from roster.member.events import Effect, Send
from roster.member.timers import RandomSource, TimerName, backoff_ms
from roster.member.types import Channel, Node
from roster.model import CancelTimer, SetTimer
from roster.wire import ApiKey, Message

Identity: TypeAlias = tuple[int, str]
"""Generation and member id."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request without a response yet: its API, generation, member id and target."""

    api: ApiKey | None
    identity: Identity
    to: Node | None


class Outbox:
    """Collects effects; knows the requests in flight and the actions that are backing off."""

    def __init__(self, config: MemberConfig, random: RandomSource) -> None:
        self.now = 0
        self._config = config
        self._random = random
        self._effects: list[Effect] = []
        self._next_id = 1
        self._in_flight: dict[int, InFlight] = {}
        self._backing_off: set[TimerName] = set()

    def begin(self, now: int) -> None:
        """Begin a step at `now` (ms)."""
        self.now = now
        self._effects = []

    def end(self) -> tuple[Effect, ...]:
        """Return the effects of the step, in order."""
        return tuple(self._effects)

    def emit(self, effect: Effect) -> None:
        """Append an effect."""
        self._effects.append(effect)

    # Requests.

    def next_id(self) -> int:
        """Return an id never used before."""
        number = self._next_id
        self._next_id += 1
        return number

    def send(
        self,
        message: Message,
        identity: Identity,
        *,
        timeout_ms: int | None = None,
        to: Node | None = None,
        channel: Channel = Channel.PROMPT,
    ) -> None:
        """Send to the coordinator at `to`, or to any broker."""
        number = self.next_id()
        self._in_flight[number] = InFlight(message.__table__.key, identity, to)
        timeout = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        self.emit(Send(number, message, timeout, to, Channel.ANY if to is None else channel))

    def take(self, number: int) -> InFlight | None:
        """Remove and return the request `number`; None when it was dropped or answered before."""
        return self._in_flight.pop(number, None)

    def in_flight(self, api: ApiKey) -> bool:
        """Return True while a request of this API has no response."""
        return any(request.api is api for request in self._in_flight.values())

    def drop(self, *apis: ApiKey) -> None:
        """Ignore the responses to requests of these APIs."""
        self._in_flight = {number: request for number, request in self._in_flight.items() if request.api not in apis}

    def drop_node(self, node: Node) -> None:
        """Ignore the responses of this node."""
        self._in_flight = {number: request for number, request in self._in_flight.items() if request.to != node}

    # Timers and back-offs.

    def set(self, name: TimerName, deadline: int) -> None:
        """Set a timer; ends a back-off of the same name."""
        self._backing_off.discard(name)
        self.emit(SetTimer(name, deadline))

    def cancel(self, *names: TimerName) -> None:
        """Cancel timers and the back-offs of the same names."""
        for name in names:
            self._backing_off.discard(name)
            self.emit(CancelTimer(name))

    def back_off(self, name: TimerName, failures: int) -> int:
        """Start a back-off of the action `name`, longer after more `failures`; return the pause in ms."""
        config = self._config
        pause = backoff_ms(failures, config.retry_backoff_ms, config.retry_backoff_max_ms, self._random)
        self.set(name, self.now + pause)
        self._backing_off.add(name)
        return pause

    def end_backoff(self, name: TimerName) -> None:
        """Allow the action `name` again."""
        self._backing_off.discard(name)

    def backing_off(self, name: TimerName) -> bool:
        """Return True while the action `name` must wait."""
        return name in self._backing_off

    def clear(self) -> None:
        """Drop every request and back-off."""
        self._in_flight.clear()
        self._backing_off.clear()
