"""What the driver does with no Spark job: the loop of batches, its member, its offsets."""
