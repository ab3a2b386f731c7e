"""Topics that the members of a group subscribe to."""

from __future__ import annotations

from roster.coordinator.group import Group
from roster.wire import WireError
from roster.wire.consumer.messages import decode_subscription


def subscribed_topics(group: Group) -> set[str] | None:
    """Return the topics that the members of a consumer group subscribe to, or None if they cannot be read.

    Subscriptions are decoded on demand only: malformed metadata cannot stop a rebalance (worked case DF-4), it only
    keeps the group's offsets from being deleted and from expiring by topic.
    """
    if not group.is_consumer_group():
        return None
    topics: set[str] = set()
    for member in group.members.values():
        try:
            topics.update(decode_subscription(member.metadata(group.protocol)).topics)
        except WireError:
            return None
    return topics


def is_subscribed_to(group: Group, subscribed: set[str] | None, topic: str) -> bool:
    """Return True if a topic is in use; unreadable consumer groups use every topic, other kinds of groups none."""
    return group.is_consumer_group() if subscribed is None else topic in subscribed
