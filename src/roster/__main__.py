"""`python -m roster`: the same as the `roster` script."""

from roster.cli import main

if __name__ == "__main__":
    main()
