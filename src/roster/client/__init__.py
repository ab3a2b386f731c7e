"""Connections to any Kafka-compatible cluster, and the shell that runs a member."""
