"""The roster command."""


def main() -> None:
    """Entry point of the `roster` script."""
