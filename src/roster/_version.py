"""The version: the build reads it from here, and so does everything that names it."""

__version__ = "0.1.0"
