"""Kinds of records, indexes and signatures that the loop over `__consumer_offsets` shares with its callers."""

OTHER, COMMIT, REMOVED, GROUP, NEWER, DAMAGED = range(6)
"""Another type (share and streams groups), a committed offset, its tombstone, a classic or a consumer group, an offset
of a newer version, and bytes that do not fit the format."""

PARTITION, OFFSET, LEADER_EPOCH, COMMITTED_AT, EXPIRES_AT = range(5)
FIELDS = 5
"""Numbers of a committed offset; after a tombstone only the partition is set."""

SIGNATURES: dict[str, dict[str, str | None]] = {
    "offset_commits": {
        "rows": None,
        "key_ends": "int32",
        "keys": "uint8",
        "key_valid": "uint8",
        "value_ends": "int32",
        "values": "uint8",
        "value_valid": "uint8",
        "kinds": "uint8",
        "numbers": "int64",
        "group_ends": "int32",
        "groups": "uint8",
        "topic_ends": "int32",
        "topics": "uint8",
        "metadata_ends": "int32",
        "metadatas": "uint8",
    },
    "commits_to_keep": {
        "rows": None,
        "groups": "int64",
        "topics": "int64",
        "partitions": "int32",
        "times": "int64",
        "offsets": "int64",
        "numbers": "int64",
        "minutes": "int64",
        "count": None,
        "slots": "int64",
        "size": None,
        "steps": "int64",
        "looked": "int64",
        "kept": "uint8",
    },
}
"""Parameters of the compiled functions: arrays by the type of their elements, and numbers (None)."""
