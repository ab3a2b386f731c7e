"""The `roster` command. Modules are imported when their command runs, so that `--help` is fast."""

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the `roster` script."""
    from roster.cli.root import run

    sys.exit(run(sys.argv[1:]))
