"""Reads and writes records in Spark's tasks and in commands, with sockets of its own instead of `roster.client`."""
