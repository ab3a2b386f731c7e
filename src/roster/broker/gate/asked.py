"""A request on its way through the gate, and the refusals that gates have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from roster.broker.request_limits import in_slices
from roster.model.acl import AclOperation
from roster.wire import ErrorCode
from roster.wire.error_replies import error_response

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from roster.broker.call import Call
    from roster.broker.security.access import Access
    from roster.broker.services import Services

    Gate: TypeAlias = Callable[["Asked"], Coroutine[None, None, Any]]

_MESSAGES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


@dataclass(slots=True)
class Asked:
    """A request, and how it is answered once what is not allowed was taken out."""

    services: Services
    call: Call[Any]
    handler: Callable[[Services, Call[Any]], Coroutine[None, None, Any]]

    @property
    def request(self) -> Any:
        """The message, which gates change."""
        return self.call.message

    @property
    def access(self) -> Access:
        """What the client may do."""
        return self.call.access

    async def answer(self) -> Any:
        """Have the handler answer what is left of the request."""
        return await self.handler(self.services, self.call)

    def refuse(self, error: ErrorCode) -> Any:
        """Return the response that refuses the whole request."""
        version = self.call.version
        return _with_messages(error_response(self.request, version, error), error, version)

    async def take(self, field: str, is_allowed: Callable[[Any], bool]) -> list[Any]:
        """Remove the unauthorized items of an array, and return them."""
        allowed: list[Any] = []
        refused: list[Any] = []
        async for item in in_slices(getattr(self.request, field) or ()):
            (allowed if is_allowed(item) else refused).append(item)
        if refused:
            setattr(self.request, field, allowed)
        return refused

    def refused(self, field: str, items: list[Any], error: ErrorCode) -> Any:
        """Return the response to a request with these items only, which refuses them."""
        response = error_response(replace(self.request, **{field: items}), self.call.version, error)
        return _with_messages(response, error, self.call.version)

    async def each(
        self, field: str, into: str, is_allowed: Callable[[Any], bool], error: ErrorCode, **values: object
    ) -> Any:
        """Refuse items of the request one by one, and have the others answered.

        `into` is the array of the response for them; `values` are fields of the innermost items that are refused, as in
        `offset=-1`.
        """
        items = await self.take(field, is_allowed)
        response = await self.answer()
        if items:
            refused = getattr(self.refused(field, items, error), into)
            _set(refused, values)
            getattr(response, into).extend(refused)
        return response

    async def each_topic(
        self, operation: AclOperation, into: str = "topics", *, named: str = "name", **values: object
    ) -> Any:
        """Refuse the topics of the request on which the client may not do this, and have the others answered.

        `named` is the field with a topic's name; `into` and `values` are those of `each`.
        """
        access = self.access
        return await self.each(
            "topics",
            into,
            lambda topic: access.may_on_topic(operation, getattr(topic, named)),
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            **values,
        )

    def sees(self, topic: str) -> bool:
        """Return True if the client may know that a topic exists."""
        return self.access.may_on_topic(AclOperation.DESCRIBE, topic)


def _set(items: list[Any], values: dict[str, object]) -> None:
    for item in items:
        for name in ("partitions", "partition_responses"):
            _set(getattr(item, name, None) or [], values)
        for name, value in values.items():
            if hasattr(item, name):
                setattr(item, name, value)


def _with_messages(response: Any, error: ErrorCode, version: int) -> Any:
    """Put the text beside each error code that has room for one in this version."""
    for name, field in response.__table__.fields:
        if version not in field.versions:
            continue
        if name == "error_message" and getattr(response, "error_code", 0):
            response.error_message = _MESSAGES.get(error)
        elif field.kind == "array" and field.item.kind == "struct":
            for item in getattr(response, name) or ():
                _with_messages(item, error, version)
    return response
