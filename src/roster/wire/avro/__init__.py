"""Avro: schemas, their resolution into programs, and values as Arrow columns."""
