"""Spark jobs of the driver: batches, small batches done without a job, and slot probes."""
