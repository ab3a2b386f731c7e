"""The loops that numba compiles, as plain Python with every index checked."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType


class Checked:
    """An array that refuses an index below 0, where numpy would count from the end."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: int) -> Any:
        assert 0 <= index < len(self.array)
        return self.array[index]

    def __setitem__(self, index: int, value: Any) -> None:
        assert 0 <= index < len(self.array)
        self.array[index] = value


class PlainKernel:
    """The loops of modules as Python functions."""

    def __init__(self, *modules: ModuleType) -> None:
        space = {name: value for module in modules for name, value in vars(module).items()}
        for value in list(space.values()):
            if hasattr(value, "py_func"):  # what it calls in a module that is not named
                space = vars(sys.modules[value.py_func.__module__]) | space
        for name, value in list(space.items()):
            if hasattr(value, "py_func"):
                space[name] = FunctionType(value.py_func.__code__, space)
        self._space = space

    def __getattr__(self, name: str) -> Any:
        if name not in self._space:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            with np.errstate(over="ignore"):
                return int(self._space[name](*(Checked(a) if isinstance(a, np.ndarray) else a for a in arguments)))

        return call
