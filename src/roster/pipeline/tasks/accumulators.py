"""Accumulators by task. Each Python worker imports this module, so it imports nothing of the driver's."""

from __future__ import annotations

from typing import Any

from pyspark import AccumulatorParam
from typing_extensions import override


class ByTask(AccumulatorParam[dict[Any, Any]]):
    """Accumulates a value per task: a task that runs twice counts once."""

    @override
    def zero(self, value: dict[Any, Any]) -> dict[Any, Any]:
        return {}

    @override
    def addInPlace(self, value1: dict[Any, Any], value2: dict[Any, Any]) -> dict[Any, Any]:
        return {**value1, **value2}


class ByAttempt(AccumulatorParam[dict[Any, tuple[Any, ...]]]):
    """Accumulates the values of each task's attempts."""

    @override
    def zero(self, value: dict[Any, tuple[Any, ...]]) -> dict[Any, tuple[Any, ...]]:
        return {}

    @override
    def addInPlace(
        self, value1: dict[Any, tuple[Any, ...]], value2: dict[Any, tuple[Any, ...]]
    ) -> dict[Any, tuple[Any, ...]]:
        return {task: value1.get(task, ()) + value2.get(task, ()) for task in value1.keys() | value2.keys()}
