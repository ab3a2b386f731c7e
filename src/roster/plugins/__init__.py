"""The assignors as classes for other Kafka clients."""
