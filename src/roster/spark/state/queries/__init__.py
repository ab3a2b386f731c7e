"""Reads of state while a pipeline runs: in this application, on its executors, in others of the group."""
