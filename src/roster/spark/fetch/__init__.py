"""Fetching ranges of offsets over connections of Roster's own, in the reading task."""
