"""What every pipeline's tasks do, pickled by the driver: they read, decode and map rows."""
