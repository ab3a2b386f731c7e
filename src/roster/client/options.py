"""Options of `GroupMember`."""

from __future__ import annotations

from roster.member.options import GROUP_OPTIONS
from roster.model.options import Option, by_name

REQUIRED_OPTIONS = by_name(
    [
        Option(
            "bootstrap",
            "str or list",
            'brokers to ask first, `"host:port"`, several with commas or as a list',
            kafka="bootstrap.servers",
        ),
        Option("group", "str", "the consumer group's name", kafka="group.id"),
        Option("topics", "names or `re.Pattern`", "names, or a compiled pattern that must match whole names"),
    ]
)
"""Options that every member of a group must be given."""

SECURITY_OPTION = Option(
    "security",
    "mapping or `Security`",
    "TLS and SASL: [settings](security.md) by their names in Kafka's clients",
    None,
)

GROUP_MEMBER_OPTIONS = by_name(
    [
        *REQUIRED_OPTIONS.values(),
        *GROUP_OPTIONS.values(),
        SECURITY_OPTION,
        Option("on_event", "callable", "called with a `MemberEvent` on the loop's thread; must not block", None),
        Option("seed", "int", "of the jitter in retry pauses, for tests", None),
    ]
)
"""Options of `GroupMember`, in the order of its signature."""
