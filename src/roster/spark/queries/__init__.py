"""Reads of state while a pipeline runs: in this application, on its executors, in other applications of the group."""
