"""Failures with their messages: the cause and how to fix it."""

from collections.abc import Iterable, Mapping

from roster.member.config import MemberConfig
from roster.member.error_table import COMMIT_FAILURES, FATAL_KINDS
from roster.member.types import Failure, FailureKind
from roster.model import TopicPartition
from roster.wire import ErrorCode


def fatal_error(api: str, code: ErrorCode, config: MemberConfig) -> Failure:
    """Return the failure for an error code after which the member cannot go on."""
    group = f"group {config.group!r}"
    texts = {
        FailureKind.SESSION_TIMEOUT: (
            f"session_timeout_ms={config.session_timeout_ms} is outside the range the broker allows;"
            " choose one between its group.min.session.timeout.ms and group.max.session.timeout.ms"
            " (6000 to 1800000 by default)"
        ),
        FailureKind.PROTOCOL: (
            f"{group} uses none of this member's assignors ({', '.join(config.assignors_by_name)}),"
            " or it is not a consumer group; give all members one assignor in common, or use another group name"
        ),
        FailureKind.GROUP_FULL: f"{group} has as many members as the broker's group.max.size allows; stop one first",
        FailureKind.FENCED_INSTANCE: (
            f"another member took over group_instance_id={config.group_instance_id!r} in {group};"
            " give every running application an instance id of its own"
        ),
        FailureKind.AUTHORIZATION: f"the broker does not allow this client to use {group}; grant it READ on the group",
        FailureKind.GROUP_ID: f"the broker does not accept {config.group!r} as a group name; choose another",
        FailureKind.UNSUPPORTED: (
            f"the broker is too old for {api} as this member needs it"
            + (
                "; remove group_instance_id or use a newer broker"
                if config.group_instance_id
                else "; use a newer broker"
            )
        ),
    }
    kind = FATAL_KINDS.get(code, FailureKind.UNEXPECTED)
    text = texts.get(kind, f"{api} for {group} was answered with {code.name}, which no member can handle")
    return Failure(kind, text, code)


def commit_fenced(partitions: frozenset[TopicPartition]) -> Failure:
    """Return the failure of a commit for partitions that the member lost since the work began."""
    text = (
        f"{listed(partitions)} left this member after the work began: nothing of this commit was written, the work"
        " belongs to the new owner"
    )
    return Failure(FailureKind.FENCED, text, partitions=partitions)


def commit_refused(errors: Mapping[tuple[str, int], ErrorCode]) -> Failure:
    """Return the failure of a commit in which the broker refused some partitions; the others are written."""
    code = min(errors.values())
    partitions = frozenset(TopicPartition(topic, number) for (topic, number), e in errors.items() if e == code)
    advice = {
        FailureKind.UNKNOWN_TOPIC: "do not exist; they may just be deleted or created",
        FailureKind.METADATA_TOO_LARGE: "were refused: shorten the metadata text or commit fewer partitions at a time",
        FailureKind.AUTHORIZATION: "were refused: grant this client READ on the topics",
    }
    kind = COMMIT_FAILURES[code]
    return Failure(kind, f"{listed(partitions)} {advice[kind]} ({code.name})", code, partitions)


def listed(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    """Return the first few partitions, for a message."""
    ordered = sorted(partitions)
    text = ", ".join(str(partition) for partition in ordered[:most])
    return text if len(ordered) <= most else f"{text} and {len(ordered) - most} more"
