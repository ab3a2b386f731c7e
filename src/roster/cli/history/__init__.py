"""`roster history`: rebalances and commits of all groups, recorded and shown."""
