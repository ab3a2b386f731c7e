"""Options of `roster broker`, made of the settings that declare a flag: `roster.broker.config.OPTIONS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from roster.broker.config import OPTIONS
from roster.model.options import Option

C = TypeVar("C", bound=Callable[..., object])

_SEPARATORS: dict[type, str] = {tuple: ",", frozenset: ";"}
"""Of settings with several values, by their type."""


def broker_options(command: C) -> C:
    """Add an option for each setting; the command gets those by the settings' names."""
    for option in reversed(OPTIONS.values()):
        command = _click_option(option)(command)
    return command


def _click_option(option: Option) -> Callable[[C], C]:
    given: dict[str, Any] = {"default": option.default, "show_default": True}
    separator = _SEPARATORS.get(type(option.default))
    if option.kind == "bool":
        given = {"is_flag": True}
    elif option.least is not None:
        given["type"] = click.IntRange(option.least, option.most)
    elif option.choices:
        given["type"] = click.Choice(option.choices)
    elif option.kind == "Path":
        given["type"] = click.Path(path_type=Path, dir_okay=False)
    elif separator is not None:
        values: Any = option.default
        given |= {"default": separator.join(values), "show_default": bool(values), "metavar": f"NAME[{separator}…]"}
        given["callback"] = lambda _context, _parameter, text: type(values)(_names(text, separator))
    unit = f" ({option.unit})" if option.unit and not option.flag.endswith(f"-{option.unit}") else ""
    text = option.help[0].upper() + option.help[1:]
    return click.option(f"--{option.flag}", option.name, help=f"{text}{unit}.", **given)


def _names(text: str, separator: str) -> list[str]:
    return [name for each in text.split(separator) if (name := each.strip())]
