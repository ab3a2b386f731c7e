"""A request on its way through the gate, and the refusals that gates have in common."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar, cast

from roster.broker.call import Call
from roster.broker.request_limits import in_slices
from roster.broker.security.access import Access
from roster.broker.services import Services
from roster.model.acl import AclOperation
from roster.wire import ErrorCode, Message, Struct
from roster.wire.error_replies import error_response

Gate: TypeAlias = Callable[["GatedRequest[Any, Any]"], Coroutine[None, None, Message | None]]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound="Message | None")

_MESSAGES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


@dataclass(slots=True)
class GatedRequest(Generic[RequestT, ResponseT]):
    """A request, and how it is answered once what is not allowed was taken out."""

    services: Services
    call: Call[RequestT]
    handler: Callable[[Services, Call[Any]], Coroutine[None, None, Any]]

    @property
    def request(self) -> RequestT:
        """The message, which gates change."""
        return self.call.message

    @property
    def access(self) -> Access:
        """Rights of the client."""
        return self.call.access

    async def answer(self) -> ResponseT:
        """Have the handler answer what is left of the request."""
        response: ResponseT = await self.handler(self.services, self.call)
        return response

    def refuse(self, error: ErrorCode) -> ResponseT:
        """Return the response that refuses the whole request."""
        return cast("ResponseT", _refusal(self.request, self.call.version, error))

    async def take(self, field: str, is_allowed: Callable[[Any], bool]) -> list[Any]:
        """Remove the unauthorized items of an array, and return them."""
        allowed, refused = list[object](), list[object]()
        async for item in in_slices(getattr(self.request, field) or ()):
            (allowed if is_allowed(item) else refused).append(item)
        if refused:
            setattr(self.request, field, allowed)
        return refused

    def refused(self, field: str, items: list[Any], error: ErrorCode) -> ResponseT:
        """Return the response to a request with these items only, which refuses them."""
        return cast("ResponseT", _refusal(replace(self.request, **{field: items}), self.call.version, error))

    async def refuse_items(
        self, field: str, into: str, is_allowed: Callable[[Any], bool], error: ErrorCode, **values: object
    ) -> ResponseT:
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

    async def refuse_topics(self, operation: AclOperation, into: str = "topics", **values: object) -> ResponseT:
        """Refuse the topics of the request on which the client may not do this, as `refuse_items`."""
        access = self.access
        return await self.refuse_items(
            "topics",
            into,
            lambda topic: access.may_on_topic(operation, topic.name),
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            **values,
        )

    def sees(self, topic: str) -> bool:
        """Return True if the client may know that a topic exists."""
        return self.access.may_on_topic(AclOperation.DESCRIBE, topic)


def requires(is_allowed: Callable[[Access, Any], bool], error: ErrorCode, then: Gate = GatedRequest.answer) -> Gate:
    """Return the gate that refuses a request with `error` unless it is allowed, and leads it through `then`."""

    async def gate(gated: GatedRequest[Message, Message]) -> Message | None:
        return await then(gated) if is_allowed(gated.access, gated.request) else gated.refuse(error)

    return gate


def _set(items: list[Struct], values: dict[str, object]) -> None:
    for item in items:
        for name in ("partitions", "partition_responses"):
            _set(getattr(item, name, None) or [], values)
        for name, value in values.items():
            if hasattr(item, name):
                setattr(item, name, value)


def _refusal(request: Message, version: int, error: ErrorCode) -> Message:
    response = error_response(request, version, error)
    _add_messages(response, error, version)
    return response


def _add_messages(response: Message | Struct, error: ErrorCode, version: int) -> None:
    """Put the text beside each error code that has room for one in this version."""
    for name, field in response.__table__.fields:
        if version not in field.versions:
            continue
        if name == "error_message" and getattr(response, "error_code", None):
            setattr(response, name, _MESSAGES.get(error))
        elif field.kind == "array" and field.item.kind == "struct":
            for item in getattr(response, name) or ():
                _add_messages(item, error, version)
