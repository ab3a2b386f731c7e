"""Code that runs in Spark tasks on executors, pickled by the driver."""
