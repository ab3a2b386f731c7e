"""Roster: a PySpark application as an ordinary member of a Kafka consumer group."""

__version__ = "0.1.0"
