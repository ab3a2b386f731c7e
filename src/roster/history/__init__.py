"""A history of consumer groups: what `__consumer_offsets` says, as tables, and the timeline of a group's rebalances."""
