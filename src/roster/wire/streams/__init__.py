"""Formats of Kafka Streams' task assignment."""
