"""Checks of settings by their names in Kafka's clients, for the reader and for sinks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from roster.pipeline.errors import PipelineError

INT32 = 2**31 - 1

Table: TypeAlias = Mapping[str, tuple[str | None, Callable[[object], object]]]
"""{name: (field that it sets, None without effect; check of its value)}."""

_SECURITY = re.compile(r"(security|sasl|ssl|enable\.ssl|enable\.sasl|oauth|https)[._]")


def number(least: int, most: int) -> Callable[[object], int]:
    """Make a check for a whole number between two bounds, inclusive."""

    def parse(value: object) -> int:
        number = int(value) if isinstance(value, str) else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"must be a number from {least} to {most}")
        return number

    return parse


def seconds(least: int, most: int) -> Callable[[object], float]:
    """Make a check for ms between two bounds, which returns seconds."""
    milliseconds = number(least, most)
    return lambda value: milliseconds(value) / 1000


def one_of(*allowed: str) -> Callable[[object], None]:
    """Make a check for one of the words."""

    def parse(value: object) -> None:
        if str(value).lower() not in allowed:
            raise ValueError(f"must be {' or '.join(allowed)}")

    return parse


def parse_settings(
    options: Mapping[str, object], table: Table, field: str, elsewhere: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return checked values by the table's fields.

    `elsewhere` maps a setting that the pipeline decides to its option for it, "" if it has none.
    Raises PipelineError that names the setting of `field` that is unknown, set elsewhere, wrong, or for TLS or SASL.
    """
    refuse_security_names(options, field)
    settings: dict[str, Any] = {}
    for name, value in options.items():
        if name == "security.protocol":
            continue
        if elsewhere and name in elsewhere:
            fix = f"Leave it out and use the option {elsewhere[name]}" if elsewhere[name] else "Leave it out"
            raise PipelineError(f"{name!r} is set by the pipeline itself", field=field, fix=fix)
        if name not in table:
            raise PipelineError(f"{name!r} is not a setting here", field=field, fix=_fix(name, table))
        target, parse = table[name]
        try:
            parsed = parse(value)
        except (ValueError, TypeError) as error:
            problem = str(error) if "must" in str(error) else "must be a number"
            raise PipelineError(f"{name} {problem}, not {value!r}", field=field) from None
        if target is not None:
            settings[target] = parsed
    return settings


def _fix(name: object, table: Table) -> str:
    near = difflib.get_close_matches(str(name), table, 1, 0.8)
    return f"Did you mean {near[0]}?" if near else f"Use some of {', '.join(table)}"


def refuse_security_names(options: Mapping[str, object], field: str) -> None:
    """Raise PipelineError for TLS or SASL settings of one client: they would secure only some connections."""
    for name, value in options.items():
        if not isinstance(name, str) or not _SECURITY.match(name):
            continue
        if name == "security.protocol" and str(value).lower() == "plaintext":
            continue
        raise PipelineError(
            f"{name!r} would secure some of the connections only", field=field, fix=f"Use security={{{name!r}: …}}"
        )
