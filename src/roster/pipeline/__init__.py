"""A pipeline without Spark: options, the loop that drives its batches, and what its tasks do."""
