"""The driver's work outside Spark jobs: the batch loop, the group member, offsets."""
