"""Names of a package that are imported on first use, so that a process loads what it needs of the package."""

from collections.abc import Callable, Sequence
from importlib import import_module


def on_demand(package: str, modules: Sequence[str]) -> Callable[[str], object]:
    """Return the `__getattr__` of `package`: it looks for a name in `modules` in this order, and imports no further.

    Static tools need the imports all the same, under `if TYPE_CHECKING`.
    """

    def find(name: str) -> object:
        # Import machinery asks packages for names such as `__path__`.
        for module in () if name.startswith("__") else modules:
            value = vars(import_module(f"{package}.{module}")).get(name, find)
            if value is not find:
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
