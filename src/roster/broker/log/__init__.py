"""The log of one partition on disk: segments, recovery, compaction, producer state and fsync."""
