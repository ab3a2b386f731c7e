"""Records read and written over blocking connections, without asyncio and the client: in Spark's tasks, in commands."""
