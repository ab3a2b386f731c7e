"""What tasks of the jobs on saved state do; pickled by the driver."""
