"""Bytes to messages and back: Kafka requests, record batches, the consumer protocol, __consumer_offsets records."""
