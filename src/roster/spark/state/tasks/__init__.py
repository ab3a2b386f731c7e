"""Code that tasks of a stateful pipeline run on executors, pickled by the driver."""
