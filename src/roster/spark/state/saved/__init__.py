"""State saved while it runs: a consistent cut of a group, exported by a Spark job."""
