"""Formats of the consumer protocol: subscriptions, assignments and the user data of assignors."""
