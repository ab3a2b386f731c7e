"""Stores beyond the running batch: restored, kept as standby copies, cleaned, and where they lie."""
