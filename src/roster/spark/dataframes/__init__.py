"""Structured Streaming programs as they are: a reader, a writer and a query with the methods of Spark's own."""
