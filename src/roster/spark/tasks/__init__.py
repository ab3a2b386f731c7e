"""What runs in the tasks on executors, pickled by the driver."""
