"""The page on groups for browsers: one look at the cluster for all who watch, told as server-sent events."""
