"""Responses that refuse a whole request with one error code."""

from roster.wire.api import ApiKey
from roster.wire.codec.table import Message, Struct
from roster.wire.errors import ErrorCode
from roster.wire.frames import response_class

_ITEMS_OF = {
    "topics": ("topic_names",),
    "responses": ("topics", "topic_data", "topic_names", "resources"),
    "partition_responses": ("partition_data",),
    "partitions": ("partition_indexes",),
    "coordinators": ("coordinator_keys",),
    "groups": ("group_ids",),
    "results": ("topics", "resources", "groups_names", "creations", "upsertions", "deletions"),
    "filter_results": ("filters",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "transaction_states": ("transactional_ids",),
}
"""{array of a response: arrays of the request whose items it answers}, if the names differ."""
_NAMED_BY = ("name", "key", "group_id", "transactional_id", "partition_index", "index")
"""Fields of an item that get the value itself if the request has a plain list of values."""
_RENAMED = {"partition_index": "partition", "user": "name"}
_ERROR = "error_code"
_ERRORS = (_ERROR, "partition_error_code")
_PER_ITEM = frozenset({ApiKey.FETCH, ApiKey.METADATA})
"""Responses whose top-level error code does not concern the items."""


def error_response(request: Message, version: int, error: ErrorCode) -> Message:
    """Return the response with this error for the whole request, or for each item of it as Kafka does."""
    key = request.__table__.key
    if key is None:
        raise TypeError(f"{type(request).__name__} is not a request")
    response = response_class(key)()
    whole = dict(response.__table__.fields).get(_ERROR)
    if whole is not None and version in whole.versions and key not in _PER_ITEM:
        setattr(response, _ERROR, int(error))
    else:
        _refuse_items(response, request, version, error)
    return response


def refuse_items(response: Message | Struct, error: ErrorCode) -> None:
    """Set the error code of every item of an existing response."""
    for name, field in response.__table__.fields:
        if name in _ERRORS:
            setattr(response, name, int(error))
        elif field.kind == "array" and field.item.kind == "struct":
            for item in getattr(response, name) or ():
                refuse_items(item, error)


def _refuse_items(response: Message | Struct, request: Message | Struct, version: int, error: ErrorCode) -> None:
    """Fill each array of structures in the response with one refused item for each item of the request."""
    for name, field in response.__table__.fields:
        if field.kind != "array" or field.item.struct is None or version not in field.versions:
            continue
        source = next((array for array in (name, *_ITEMS_OF.get(name, ())) if getattr(request, array, None)), None)
        if source is not None:
            setattr(
                response, name, [_item(field.item.struct, item, version, error) for item in getattr(request, source)]
            )


def _item(kind: type[Struct], requested: object, version: int, error: ErrorCode) -> Struct:
    item = kind()
    names = [name for name, field in kind.__table__.fields if field.kind not in ("array", "struct")]
    if isinstance(requested, Struct):
        for name in names:
            for source in (name, _RENAMED.get(name, name)):
                if hasattr(requested, source):
                    setattr(item, name, getattr(requested, source))
                    break
        _refuse_items(item, requested, version, error)
    else:
        setattr(item, next(name for name in _NAMED_BY if name in names), requested)
    for name in _ERRORS:
        if name in names:
            setattr(item, name, int(error))
    return item
