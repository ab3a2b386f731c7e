"""`roster demo`: PySpark applications share a topic as one consumer group, some die, every record counts once."""
