"""Sinks on the driver, and in `tasks` their writers; import public ones from `roster.spark`."""
