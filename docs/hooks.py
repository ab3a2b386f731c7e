"""Hooks of mkdocs: tables of options from their declaration, Mermaid diagrams as SVG, no requests to other hosts."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from griffe import Class, Docstring, Extension, Function, Parameter, ParameterKind, Parameters
from mkdocs.exceptions import PluginError

from roster.broker.config import PARTS
from roster.client.options import GroupMemberOptions
from roster.http.access import ACCESS_OPTIONS
from roster.member.task_options import TaskOptions
from roster.model.options import REQUIRED, Option, declared
from roster.security.settings import SECURITY_OPTIONS
from roster.spark.consumer_settings import CONSUMER_SETTINGS
from roster.spark.pipeline_options import PipelineOptions
from roster.spark.state_options import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mkdocs.structure.pages import Page

TABLES = {
    "Access": ACCESS_OPTIONS,
    "EmbeddedBroker": {name: option for kind in reversed(PARTS.values()) for name, option in declared(kind).items()},
    "GroupMember": declared(GroupMemberOptions),
    "Consumer": {name: replace(option, name=name) for name, option in CONSUMER_SETTINGS.items()},
    "Pipeline": declared(PipelineOptions),
    "Security": SECURITY_OPTIONS,
    "State": declared(State),
    "TaskOptions": declared(TaskOptions),
}
_MARK = re.compile(r"^<!-- options: (\w+) -->$", re.MULTILINE)
_LOADED = re.compile(
    r"""<(?:[a-z]+\b[^>]*?\ssrc|link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect|prefetch))[^>]*?\shref)"""
    r"""\s*=\s*["']?((?:https?:)?//[^"'\s>]*)""",
    re.IGNORECASE,
)
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the table of a class's options where a page has the mark `<!-- options: CLASS -->`; draw the diagrams."""
    markdown = _MARK.sub(lambda mark: markdown_table(TABLES[mark[1]].values()), markdown)
    numbers = itertools.count()
    return _DIAGRAM.sub(lambda block: _drawn(block[1], next(numbers)), markdown)


def markdown_table(options: Iterable[Option]) -> str:
    """Return the options as a Markdown table."""
    rows = ["| option | type | default | meaning | in Kafka, Spark |", "|---|---|---|---|---|"]
    for option in options:
        kind = f"{option.kind}, {option.unit}" if option.unit else option.kind
        names = [f"`{option.kafka}`" if option.kafka else "", f"`{option.spark}`" if option.spark else ""]
        default = "" if option.default is REQUIRED else f"`{_default(option.default)}`"
        rows.append(f"| `{option.name}` | {kind} | {default} | {option.help} | {', '.join(filter(None, names))} |")
    return "\n".join(rows)


def _default(value: object) -> str:
    return f"{value:,}".replace(",", "_") if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _drawn(source: str, number: int) -> str:
    """Draw a Mermaid diagram here: a reader's browser would fetch Mermaid from another host."""
    from mermaidx import render  # noqa: PLC0415 (tests of the tables do without)

    svg = " ".join(render(source).svg().split("\n")).replace("my-svg", f"diagram-{number}")
    return f'<figure class="diagram" data-search-exclude>{svg}</figure>'


def on_post_page(output: str, page: Page, **_: object) -> None:
    """Refuse a page that makes browsers fetch a script, style or image from another host."""
    if found := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads {found[1]} from another host")


class Signatures(Extension):
    """Shows the signature and help that a class makes of its options."""

    def on_class_members(self, *, cls: Class, **_: object) -> None:
        """Give a class with `taking` or `explained` what Python's `help` shows of it."""
        decorators = [
            str(each.value)
            for member in (cls, cls.members.get("__init__"))
            for each in getattr(member, "decorators", ())
        ]
        if not any(name.startswith(("taking(", "explained")) for name in decorators):
            return
        shown = getattr(importlib.import_module(cls.module.path), cls.name)
        parameters = Parameters(Parameter("self", kind=ParameterKind.positional_or_keyword))
        for each in inspect.signature(shown).parameters.values():
            default = None if each.default is each.empty else repr(each.default)
            parameters.add(Parameter(each.name, kind=ParameterKind[each.kind.name.lower()], default=default))
        made = cls.members.get("__init__")
        if isinstance(made, Function):
            made.parameters = parameters
            made.docstring = Docstring(inspect.getdoc(shown.__init__) or "", parent=made)
