"""Sinks: the contract (`base`) and the implementations; import the public ones from `roster.spark`."""
