"""Options of `GroupMember` and `TaskMember`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, TypeAlias
from uuid import UUID

from roster.client.types import MemberEvent
from roster.member.options import DEFAULT_ASSIGNORS, Assignors, MemberSettings
from roster.member.task_assignor import HeldTasks
from roster.member.task_options import TaskOptions
from roster.model.options import Option, option
from roster.model.tasks import TaskId
from roster.security import Security as _Security

Bootstrap: TypeAlias = Annotated[
    str | Sequence[str],
    Option(
        kind="str or list",
        help='brokers to ask first, `"host:port"`, several with commas or as a list; the default port is 9092',
        kafka="bootstrap.servers",
        spark="kafka.bootstrap.servers",
    ),
]
Group: TypeAlias = Annotated[str, Option(help="the consumer group's name", kafka="group.id", spark="kafka.group.id")]
Security: TypeAlias = Annotated[
    _Security | Mapping[str, object] | None,
    Option(
        kind="mapping or `Security`",
        help='TLS and SASL: [settings](security.md) by their names in Kafka\'s clients, as in `{"security.protocol": '
        '"SSL"}`, or what `roster.security.load_properties` read; None: PLAINTEXT',
    ),
]


@dataclass(frozen=True, kw_only=True)
class ClientSettings(MemberSettings):
    """Settings that every member on a cluster has."""

    client_id: str = option("roster", "name in the brokers' logs and in `roster groups describe`", kafka="client.id")
    security: Security = None
    on_event: Callable[[MemberEvent], None] | None = option(
        None, "called with a `MemberEvent` on the loop's thread; must not block", kind="callable"
    )
    seed: int | None = option(None, "of the jitter in retry pauses, for tests")


@dataclass(frozen=True)
class GroupMemberOptions(ClientSettings):
    """Options of `GroupMember`."""

    bootstrap: Bootstrap
    group: Group
    topics: Annotated[
        Sequence[str] | re.Pattern[str],
        Option(kind="names or `re.Pattern`", help="names, or a compiled pattern that must match whole names"),
    ]
    _: KW_ONLY
    assignors: Assignors = DEFAULT_ASSIGNORS


@dataclass(frozen=True)
class TaskMemberOptions(ClientSettings):
    """Options of `TaskMember`. `capacity` is the number of threads or cores to fill with tasks."""

    bootstrap: Bootstrap
    group: Group
    tasks: Annotated[
        TaskOptions,
        Option(
            help="the pipeline: its sub-topologies, how many standby copies, and where this process answers queries"
        ),
    ]
    _: KW_ONLY
    gaps: Annotated[
        Callable[[], Mapping[TaskId, int]],
        Option(
            kind="callable",
            help="returns, for every task with a store on this host, how many records the store is behind the end of "
            "its changelog; called by `start` before joining, and may take its time (`task_gaps` works them out)",
        ),
    ]
    process_id: UUID | None = option(
        None, "identifies the process across restarts, so the members of one process share its stores; None: a new one"
    )
    on_tasks: Callable[[HeldTasks], None] | None = option(
        None, "called with the `HeldTasks` after every change, on the loop's thread; must not block", kind="callable"
    )
