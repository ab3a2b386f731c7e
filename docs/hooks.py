"""Hooks of mkdocs: lists of options from their declaration, Mermaid diagrams as SVG, no requests to other hosts."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import os
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from griffe import Class, Docstring, Extension, Function, Parameter, ParameterKind, Parameters
from mkdocs.exceptions import PluginError

from roster.broker.config import PARTS
from roster.client.options import GroupMemberOptions
from roster.http.access import ACCESS_OPTIONS
from roster.member.task_options import TaskOptions
from roster.model.options import REQUIRED, Option, declared
from roster.pipeline.consumer_settings import CONSUMER_SETTINGS
from roster.pipeline.pipeline_options import PipelineOptions
from roster.pipeline.state_options import State
from roster.security.settings import SECURITY_OPTIONS

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
_WIDTH = re.compile(r'viewBox="\S+ \S+ (\S+)')
WIDEST = 950
"""Units of a diagram whose letters of 16 units are 11 pixels in a column of 660."""
_DRAWN = Path(__file__).parents[1] / ".cache" / "diagrams"
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the list of a class's options where a page has the mark `<!-- options: CLASS -->`; draw the diagrams."""
    markdown = _MARK.sub(lambda mark: markdown_list(TABLES[mark[1]].values()), markdown)
    numbers = itertools.count()
    return _DIAGRAM.sub(lambda block: _drawn(block[1], next(numbers)), markdown)


def markdown_list(options: Iterable[Option]) -> str:
    """Return the options as a Markdown list of definitions: a column for each fact would be a few letters wide."""
    return "\n\n".join(map(_definition, options))


def _definition(option: Option) -> str:
    kind = f"{option.kind}, {option.unit}" if option.unit else option.kind
    default = "required" if option.default is REQUIRED else f"default `{_default(option.default)}`"
    elsewhere = [f"in {where} `{name}`" for where, name in (("Kafka", option.kafka), ("Spark", option.spark)) if name]
    return f"`{option.name}` · {kind} · {default}\n:   {'; '.join([option.help, *elsewhere])}"


def _default(value: object) -> str:
    return f"{value:,}".replace(",", "_") if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _drawn(source: str, number: int) -> str:
    """Draw a Mermaid diagram here: a reader's browser would fetch Mermaid from another host."""
    svg = " ".join(_svg(source).split("\n")).replace("my-svg", f"diagram-{number}")
    if (width := float(_WIDTH.search(svg)[1])) > WIDEST:
        raise PluginError(
            f"a diagram is {width:.0f} units wide, more than {WIDEST}: its letters would be too small\n{source}"
        )
    return f'<figure class="diagram" data-search-exclude>{svg}</figure>'


def _svg(source: str) -> str:
    """Return a diagram, drawn once for each version of Mermaid's port: each takes a second."""
    drawn_by = f"{version('mermaidx')}\n{source}".encode()
    file = _DRAWN / f"{hashlib.sha256(drawn_by).hexdigest()}.svg"
    if not file.exists():
        from mermaidx import render  # noqa: PLC0415 (tests of the tables do without)

        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(render(source).svg())
        partial.replace(file)
    return file.read_text()


def on_post_page(output: str, page: Page, **_: object) -> None:
    """Refuse a page that makes browsers fetch a script, style or image from another host."""
    if found := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads {found[1]} from another host")


class Signatures(Extension):
    """Shows the signature and help that a class makes of its options, and methods that block as such."""

    def on_function_instance(self, *, func: Function, **_: object) -> None:
        """Take the word async from a method that its callers do not await."""
        if any(str(decorator.value) == "blocking" for decorator in func.decorators):
            func.labels.discard("async")

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
