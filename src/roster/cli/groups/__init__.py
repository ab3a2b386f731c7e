"""`roster groups`: the consumer groups of a cluster, their members, offsets and lag."""
