"""State of tasks: stores on a host's disk, their changelogs, and functions that update them by columns.

Contents: the store (`roster.state.lmdb_store`), restoring from a changelog's columns, one pending batch for each
attempt, operators by columns (aggregates, windows, sessions, first rows of each key), and variables and timers of each
key for code written for Spark (`roster.state.processor`). `roster.model.topology` has the names of topics and tasks and
the check of co-partitioning. No API of this package is promised to users.

The changelog, written in the batch's transaction, is authoritative; a store is a cache of it. A store writes its
changelog offset and the input positions that belong to it together with the values.
"""

from roster.state.store import Position, Snapshot, StateError

__all__ = ["Position", "Snapshot", "StateError"]
