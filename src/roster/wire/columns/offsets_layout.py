"""Kinds of records, indexes and signatures that the loop over `__consumer_offsets` shares with its callers."""

OTHER, COMMIT, REMOVED, GROUP, NEWER, DAMAGED = range(6)
"""Another type (share and streams groups), a committed offset, its tombstone, a classic or a consumer group, an offset
of a newer version, and bytes that do not fit the format."""

PARTITION, OFFSET, LEADER_EPOCH, COMMITTED_AT, EXPIRES_AT = range(5)
FIELDS = 5
"""Numbers of a committed offset; after a tombstone only the partition is set."""

SIGNATURES = {
    "offset_commits": "- int32 uint8 uint8 int32 uint8 uint8 uint8 int64 int32 uint8 int32 uint8 int32 uint8",
    "commits_to_keep": "- int64 int64 int32 int64 int64 int64 int64 - int64 - int64 int64 uint8",
}
"""Parameters of the loops, in their order: arrays by the type of their elements, and numbers (-)."""
