"""What tasks with state do, pickled by the driver."""
