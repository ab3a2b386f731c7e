"""Scripted faults: selected requests are refused, answered late or never, or their connection is closed.

A fault replaces the handler of the requests that it matches (`roster.broker.hooks`); the broker knows nothing of
faults.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias, cast

from roster.broker.call import Call
from roster.broker.dispatch import HANDLERS, Handler
from roster.broker.errors import CloseConnection
from roster.broker.services import Services
from roster.testing.errors import KitArgumentError, unknown
from roster.wire import ApiKey, ErrorCode, Message, request_class, response_class
from roster.wire.error_replies import error_response, refuse_items

Phase: TypeAlias = Literal["request", "reply"]
Reply: TypeAlias = Message | Callable[[Any], Message]

_APIS = {key.label: key for key in ApiKey if key in HANDLERS}
"""The name of each API in the protocol guide."""
_PHASES = ("request", "reply")


@dataclass(slots=True, eq=False)
class Fault:
    """A scripted fault; `hits` is the number of requests that it has affected. Raises KitArgumentError."""

    api: ApiKey
    group: str | None
    topic: str | None
    member: str | None
    client_id: str | None
    left: int | None
    skip: int
    delay: float
    error: ErrorCode | None
    reply: Reply | None
    silent: Phase | None
    disconnect: Phase | None
    faults: "Faults" = field(repr=False)
    hits: int = 0

    def __post_init__(self) -> None:
        if self.left is not None and self.left < 1:
            raise KitArgumentError(f"times={self.left}: must be at least 1, or None for every request")
        if self.skip < 0 or self.delay < 0:
            raise KitArgumentError(f"after={self.skip}, delay={self.delay}: must not be negative")
        answers = self.reply is not None or self.error is not None
        given = {"reply": answers, "drop": self.silent is not None, "disconnect": self.disconnect is not None}
        effects = [name for name, is_given in given.items() if is_given]
        if len(effects) > 1:
            raise KitArgumentError(f"{' and '.join(effects)} exclude each other")
        if not effects and not self.delay:
            raise KitArgumentError("a fault needs reply=, drop=, disconnect= or delay=")
        for name, reader in (("group", _groups), ("topic", _topics), ("member", _members)):
            if getattr(self, name) is not None and not reader.applies(self.api):
                raise KitArgumentError(f"{name}={getattr(self, name)!r}: {self.api.label} has no {name}")

    def remove(self) -> None:
        """Remove the fault; requests that it already affected stay affected. Removing twice is no error."""
        self.faults.remove(self)

    def wait_hit(self, times: int = 1, timeout: float = 60.0) -> None:
        """Wait until the fault has affected `times` requests. Raises KitTimeoutError after `timeout` seconds."""
        self.faults.wait(lambda: self.hits >= times, timeout, lambda: f"{self} was met {self.hits} times, not {times}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def matches(self, call: Call[Any]) -> bool:
        """Return True if the request matches, regardless of `times` and `after`."""
        message = call.message
        return (
            call.header.api_key == self.api
            and (self.client_id is None or call.header.client_id == self.client_id)
            and (self.group is None or self.group in _groups(message))
            and (self.topic is None or self.topic in _topics(message) | self.faults.topics_by_id(message))
            and (self.member is None or self.member in _members(message))
        )

    async def handle(self, services: Services, call: Call[Any]) -> Message | None:
        """Handle a request instead of its handler."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.disconnect == "request":
            raise CloseConnection(f"a scripted fault: {self.api.name}")
        if self.silent == "request":
            await _for_ever()
        if self.reply is not None:
            return self.reply if isinstance(self.reply, Message) else self.reply(call.message)
        if self.error is not None and self.api is not ApiKey.METADATA:
            return error_response(call.message, call.version, self.error)
        response = await asyncio.shield(HANDLERS[self.api](services, call))
        if self.disconnect == "reply":
            raise CloseConnection(f"a scripted fault: the reply to {self.api.name}")
        if self.silent == "reply":
            await _for_ever()
        if self.error is not None and response is not None:  # a client needs brokers in it to retry
            refuse_items(response, self.error)
        return response


class Faults:
    """The faults of one broker, in the order of scripting; the first one that matches a request affects it."""

    def __init__(
        self, changed: Callable[[], None], wait: Callable[..., None], name_of: Callable[[bytes], str | None]
    ) -> None:
        self._changed = changed
        self.wait = wait
        self._name_of = name_of
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def __iter__(self) -> Iterator[Fault]:
        return iter(list(self._faults))

    def add(self, fault: Fault) -> None:
        """Add a fault after the others."""
        with self._lock:
            self._faults.append(fault)

    def remove(self, fault: Fault) -> None:
        """Remove a fault."""
        with self._lock:
            if fault in self._faults:
                self._faults.remove(fault)

    def topics_by_id(self, message: Any) -> set[str | None]:
        """Return the names of the topics that a request names by id."""
        items = [*(getattr(message, "topics", None) or ()), *(getattr(message, "topic_data", None) or ())]
        return {self._name_of(item.topic_id) for item in items if any(getattr(item, "topic_id", b""))}

    def intercept(self, call: Call[Any]) -> Handler | None:
        """Return the handler of the fault that affects a request, or None; called by the broker."""
        if not self._faults:
            return None
        with self._lock:
            fault = next((candidate for candidate in self._faults if candidate.matches(call)), None)
            if fault is None:
                return None
            if fault.skip:
                fault.skip -= 1
                return None
            fault.hits += 1
            if fault.left is not None:
                fault.left -= 1
                if fault.left == 0:
                    self._faults.remove(fault)
        self._changed()
        return fault.handle


def api_of(api: str | int) -> ApiKey:
    """Return the API with a key, or with a name of the protocol guide. Raises KitArgumentError."""
    if isinstance(api, int):
        if api not in HANDLERS:
            raise KitArgumentError(f"api={api}: the broker has no API with this key")
        return ApiKey(api)
    wanted = str(api).lower().replace("_", "").removesuffix("request")
    for name, key in _APIS.items():
        if name.lower() == wanted:
            return key
    raise unknown("API", api, _APIS)


def phase_of(name: str, value: bool | str) -> Phase | None:
    """Return when `drop` or `disconnect` happens. Raises KitArgumentError."""
    if isinstance(value, bool):
        return "request" if value else None
    if value not in _PHASES:
        raise KitArgumentError(f"{name}={value!r}: must be True, 'request' or 'reply'")
    return cast("Phase", value)


def reply_of(key: ApiKey, reply: str | int | Reply | None) -> tuple[ErrorCode | None, Reply | None]:
    """Return the error code or the response with which a fault answers."""
    if reply is None:
        return None, None
    if isinstance(reply, Message):
        if not isinstance(reply, response_class(key)):
            raise KitArgumentError(f"reply={type(reply).__name__}: not the response to {key.name}")
        return None, reply
    if callable(reply):
        return None, reply
    if isinstance(reply, str):
        if reply.upper() not in ErrorCode.__members__:
            raise unknown("error code", reply, ErrorCode.__members__)
        return ErrorCode[reply.upper()], None
    try:
        return ErrorCode(reply), None
    except ValueError:
        raise KitArgumentError(f"reply={reply!r}: no error code of Kafka's") from None


async def _for_ever() -> None:
    """Wait until the client gives up or the broker stops."""
    await asyncio.Event().wait()


class _Names:
    """Finds names in requests, in whatever field they are."""

    def __init__(self, plain: tuple[str, ...], lists: dict[str, tuple[str, ...]]) -> None:
        self._plain = plain
        self._lists = lists

    def applies(self, key: ApiKey) -> bool:
        """Return True if requests of this API have such a name."""
        fields = dict(request_class(key).__table__.fields)
        return any(name in fields for name in (*self._plain, *self._lists))

    def __call__(self, message: Any) -> set[str]:
        names = {getattr(message, name) for name in self._plain if hasattr(message, name)}
        for name, fields in self._lists.items():
            for item in getattr(message, name, None) or ():
                if isinstance(item, str):
                    names.add(item)
                else:
                    names |= {getattr(item, field) for field in fields if hasattr(item, field)}
        return {name for name in names if name}


_groups = _Names(
    ("group_id", "key"), {"coordinator_keys": (), "groups": ("group_id",), "groups_names": (), "group_ids": ()}
)
_topics = _Names((), {"topics": ("name", "topic"), "topic_data": ("name",), "topic_names": ()})
_members = _Names(("member_id", "group_instance_id"), {"members": ("member_id", "group_instance_id")})
