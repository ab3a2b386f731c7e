"""State of tasks: stores on a host's disk, their changelogs, and functions that update them by columns.

What stands: the store (`roster.state.lmdb_store`), restoring from a changelog's columns, one pending batch for each
transaction, aggregates of each key by columns (`roster.state.aggregate`), functions called for each key with one value
(`roster.state.per_key`), and in `roster.model.topology` the names of topics, tasks and the check of co-partitioning.
What does not stand: a pipeline with state, lists and maps of a key, timers, windows, expiry, queries. Nothing reads or
writes changelog topics yet, no member runs tasks, and no API for users is promised.

The truth is the changelog, written in the batch's transaction; a store is a cache of it. A store knows the changelog
offset up to which it is applied and the input positions that belong to it, in the same write as the values.
"""

from roster.state.store import Position, Snapshot, StateError, Store

__all__ = ["Position", "Snapshot", "StateError", "Store"]
