"""The vocabulary every room shares: topics, members, Problem, Plan, Move, offsets."""

from roster.model.topics import TopicPartition

__all__ = ["TopicPartition"]
