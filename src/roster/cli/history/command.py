"""`roster history` and its commands."""

from __future__ import annotations

import click

from roster.cli.history.record import record
from roster.cli.history.show import show


@click.group()
def history() -> None:
    """Record what happens to the consumer groups of any Apache Kafka, and show what happened to one."""


history.add_command(record)
history.add_command(show)
