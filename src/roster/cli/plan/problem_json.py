"""One line of JSON as a problem for an assignor; an InputError names the field."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from roster._json import JsonObject
from roster.assignors import ClaimSource
from roster.assignors.lag import with_offsets
from roster.assignors.tasks import Client, TaskProblem
from roster.cli.strict_json import InputError
from roster.model import NO_GENERATION, MemberInfo, Problem
from roster.model.offsets import AUTO_OFFSET_RESETS, AutoOffsetReset, is_auto_offset_reset
from roster.model.options import INT32_MAX, INT64_MAX
from roster.model.problem import MAX_CAPACITY, MAX_PARTITIONS
from roster.model.tasks import TaskId
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import decode_cooperative_user_data, decode_sticky_user_data, split_lag_user_data

T = TypeVar("T")


def read_object(
    value: object, path: str, known: Collection[str] | None = None, needed: Sequence[str] = ()
) -> JsonObject:
    """Read an object; `known` are the fields it may have, `needed` those it must."""
    if not isinstance(value, dict):
        raise InputError(path, f"must be an object, not {shown(value)}")
    for name in needed:
        if name not in value:
            raise InputError(path_to(path, name), "is missing")
    if known is not None:
        for name in value:
            if name not in known:
                raise InputError(path_to(path, name), f"unknown field; known are {', '.join(sorted(known))}")
    return value


def read_list(value: object, path: str, read: Callable[[object, str], T]) -> list[T]:
    """Read a list, each item by `read`."""
    if not isinstance(value, list):
        raise InputError(path, f"must be a list, not {shown(value)}")
    return [read(item, f"{path}[{i}]") for i, item in enumerate(value)]


def read_whole(value: object, path: str) -> int:
    """Read a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(path, f"must be a whole number, not {shown(value)}")
    return value


def read_number(value: object, path: str, least: int, most: int) -> int:
    """Read a whole number within bounds, both included."""
    number = read_whole(value, path)
    if not least <= number <= most:
        raise InputError(path, f"must be from {least} to {most}, not {number}")
    return number


def read_name(value: object, path: str) -> str:
    """Read a string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise InputError(path, f"must be a string, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(path, f"{value!a} is half a character: a lone surrogate") from error
    return value


def read_names(value: object, path: str) -> list[str]:
    """Read a list of strings."""
    return read_list(value, path, read_name)


def read_optional_name(value: object, path: str) -> str | None:
    """Read a string, or null."""
    return None if value is None else read_name(value, path)


def read_hex(value: object, path: str) -> bytes | None:
    """Read bytes in hex digits, or null."""
    if value is None:
        return None
    try:
        return bytes.fromhex(read_name(value, path))
    except ValueError as error:
        raise InputError(path, f"must be bytes in hex, not {shown(value)}") from error


def path_to(path: str, name: str) -> str:
    """Return the path of a field of the object at `path`."""
    return f"{path}.{name}" if path else name


def shown(value: object) -> str:
    """Return a value as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def read_problem(document: object, source: ClaimSource) -> Problem:
    """Read a problem as an assignor with this source of claims sees it; InputError if it is wrong.

    Without `user_data`, `owned` and `generation` are a member's claims, whichever the assignor.
    """
    known = {"topics", "members", "generation", "offsets", "auto_offset_reset"}
    fields = read_object(document, "", known, ("topics", "members"))
    topics, racks = _topics(read_object(fields["topics"], "topics"))
    members = {
        read_name(member, "members"): _Member.read(value, path_to("members", member))
        for member, value in read_object(fields["members"], "members").items()
    }
    user_data = {member: parsed.user_data for member, parsed in members.items()}
    own = source in (ClaimSource.NONE, ClaimSource.FIELDS)
    settling = not own and _take_lag_header(members.values())
    if source is ClaimSource.STICKY_USER_DATA:
        _believe_sticky_user_data(members.values(), topics)
    elif source is ClaimSource.FIELDS_AND_USER_DATA:
        for parsed in members.values():
            if parsed.user_data is not None and parsed.generation == NO_GENERATION:
                parsed.generation = int(decode_cooperative_user_data([parsed.user_data])[0])
    problem = Problem.build(
        {member: replace(parsed.info(), user_data=user_data[member]) for member, parsed in members.items()},
        topics,
        replica_racks=racks or None,
        group_generation=read_number(fields.get("generation", NO_GENERATION), "generation", NO_GENERATION, INT32_MAX),
    )
    problem = replace(problem, settling=settling)
    reset = fields.get("auto_offset_reset", AutoOffsetReset.LATEST)
    if not is_auto_offset_reset(reset):
        raise InputError("auto_offset_reset", f"must be {AUTO_OFFSET_RESETS}, not {shown(reset)}")
    if "offsets" not in fields:
        return problem
    return with_offsets(problem, _offsets(read_object(fields["offsets"], "offsets"), topics), reset)


def read_tasks(document: object) -> TaskProblem:
    """Read a problem for the assignor `tasks`; InputError if it is wrong."""
    known = {"tasks", "clients", "standbys", "acceptable_lag", "max_warmups"}
    fields = read_object(document, "", known, ("tasks", "clients"))
    by_kind: dict[bool, list[TaskId]] = {True: [], False: []}
    for name, value in read_object(fields["tasks"], "tasks").items():
        path = path_to("tasks", name)
        stateful = read_object(value, path, {"stateful"}, ("stateful",))["stateful"]
        if not isinstance(stateful, bool):
            raise InputError(f"{path}.stateful", f"must be true or false, not {shown(stateful)}")
        by_kind[stateful].append(_task(name, path))
    clients = {
        read_name(name, "clients"): _client(value, path_to("clients", name))
        for name, value in read_object(fields["clients"], "clients").items()
    }
    options = {
        option: read_number(fields[option], option, 0, INT64_MAX)
        for option in ("standbys", "acceptable_lag", "max_warmups")
        if option in fields
    }
    return TaskProblem(by_kind[True], by_kind[False], clients, **options)


@dataclass(slots=True)
class _Member:
    """A member as the line has it."""

    topics: list[str]
    owned: dict[str, list[int]]
    generation: int
    instance: str | None
    rack: str | None
    capacity: int
    user_data: bytes | None

    @classmethod
    def read(cls, value: object, path: str) -> "_Member":
        known = {"topics", "owned", "generation", "instance", "rack", "capacity", "user_data"}
        fields = read_object(value, path, known, ("topics",))
        return cls(
            topics=read_names(fields["topics"], f"{path}.topics"),
            owned={
                topic: read_list(listed, path_to(f"{path}.owned", topic), read_whole)
                for topic, listed in read_object(fields.get("owned", {}), f"{path}.owned").items()
            },
            generation=max(
                NO_GENERATION, read_number(fields.get("generation", -1), f"{path}.generation", ~INT32_MAX, INT32_MAX)
            ),
            instance=read_optional_name(fields.get("instance"), f"{path}.instance"),
            rack=read_optional_name(fields.get("rack"), f"{path}.rack"),
            capacity=read_number(fields.get("capacity", 1), f"{path}.capacity", 1, MAX_CAPACITY),
            user_data=read_hex(fields.get("user_data"), f"{path}.user_data"),
        )

    def info(self) -> MemberInfo:
        return MemberInfo(self.topics, self.owned, self.generation, self.instance, self.rack, self.capacity)


def _take_lag_header(members: Iterable[_Member]) -> bool:
    """Read what the user data of lag-aware members has in front; whether one of them is settling."""
    every = list(members)
    rests, capacities, settling = split_lag_user_data([member.user_data for member in every])
    for member, rest, capacity in zip(every, rests, capacities.tolist(), strict=True):
        if rest != member.user_data:
            member.user_data, member.capacity = rest, capacity
    return settling


def _believe_sticky_user_data(members: Iterable[_Member], topics: Mapping[str, int]) -> None:
    """Replace claims by those in user data, if any, as the sticky assignor does."""
    names = list(topics)
    telling = [member for member in members if member.user_data is not None]
    claims, generation = decode_sticky_user_data([member.user_data for member in telling], TopicIndex(names))
    for member, newest in zip(telling, generation.tolist(), strict=True):
        member.owned, member.generation = {}, newest
    rows = zip(claims.member.tolist(), claims.topic.tolist(), claims.number.tolist(), strict=True)
    for m, topic, number in rows:
        if topic >= 0:
            telling[m].owned.setdefault(names[topic], []).append(number)


def _topics(topics: Mapping[str, object]) -> tuple[dict[str, int], dict[str, Sequence[Collection[str]]]]:
    """({topic: partitions}, {topic: racks of each partition's replicas} where given)."""
    counts: dict[str, int] = {}
    racks: dict[str, Sequence[Collection[str]]] = {}
    room = MAX_PARTITIONS
    for topic, value in topics.items():
        path = path_to("topics", read_name(topic, "topics"))
        if isinstance(value, dict):
            fields = read_object(value, path, {"partitions", "racks"}, ("partitions",))
            counts[topic] = read_number(fields["partitions"], f"{path}.partitions", 0, room)
            listed = read_list(fields.get("racks", []), f"{path}.racks", read_names)
            if "racks" in fields and len(listed) != counts[topic]:
                raise InputError(f"{path}.racks", f"has {len(listed)} entries for {counts[topic]} partitions")
            racks[topic] = listed
        else:
            counts[topic] = read_number(value, path, 0, room)
        room -= counts[topic]
    return counts, {topic: listed for topic, listed in racks.items() if listed}


def _offsets(
    offsets: Mapping[str, object], topics: Mapping[str, int]
) -> dict[str, dict[int, tuple[int, int, int | None]]]:
    by_topic: dict[str, dict[int, tuple[int, int, int | None]]] = {}
    for topic, partitions in offsets.items():
        path = path_to("offsets", topic)
        if topic not in topics:
            raise InputError(path, "no such topic in topics")
        for number, value in read_object(partitions, path).items():
            row = path_to(path, number)
            if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) < topics[topic]):
                count = topics[topic]
                there = f"the partitions 0 to {count - 1}" if count else "no partitions"
                raise InputError(row, f"{topic} has {there}")
            fields = read_object(value, row, {"begin", "end", "committed"}, ("end",))
            end = read_number(fields["end"], f"{row}.end", 0, INT64_MAX)
            begin = read_number(fields.get("begin", 0), f"{row}.begin", 0, end)
            committed = fields.get("committed")
            if committed is not None:
                committed = read_number(committed, f"{row}.committed", -1, INT64_MAX)
            by_topic.setdefault(topic, {})[int(number)] = (begin, end, committed)
    return by_topic


def _client(value: object, path: str) -> Client:
    fields = read_object(value, path, {"threads", "tasks", "rack"})
    lags = {}
    for name, lags_told in read_object(fields.get("tasks", {}), f"{path}.tasks").items():
        row = path_to(f"{path}.tasks", name)
        lag = read_object(lags_told, row, {"lag"}, ("lag",))["lag"]
        lags[_task(name, row)] = read_number(lag, f"{row}.lag", -INT64_MAX, INT64_MAX)
    threads = read_number(fields.get("threads", 1), f"{path}.threads", 1, MAX_CAPACITY)
    return Client(threads, lags, read_optional_name(fields.get("rack"), f"{path}.rack"))


def _task(name: str, path: str) -> TaskId:
    try:
        return TaskId.parse(name)
    except ValueError as error:
        raise InputError(path, str(error)) from error
