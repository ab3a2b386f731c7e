"""Sinks: the contract (`base`) and the implementations; import public ones from `roster.spark`."""
