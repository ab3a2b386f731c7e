"""Formats of the consumer protocol: subscriptions, assignments and the user data of assignors."""

PROTOCOL_TYPE = "consumer"
"""Protocol type of a classic group whose members are consumers."""
CLASSIC, CONSUMER = "classic", "consumer"
"""Types of groups: members assign partitions, or the broker does (KIP-848)."""
