"""`roster history` and its commands."""

from __future__ import annotations

import click

from roster.cli.history.export_case import export_case
from roster.cli.history.record import record
from roster.cli.history.replay import replay
from roster.cli.history.show import show


@click.group()
def history() -> None:
    """Record what happens to the consumer groups of any Apache Kafka, and show what happened to one."""


for command in (record, show, replay, export_case):
    history.add_command(command)
