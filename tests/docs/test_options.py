"""Options are declared once: signatures, dataclasses, reference and help are held to the declaration."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from mkdocs_click._docs import make_command_docs

from roster.cli.root import roster
from roster.client import GroupMember
from roster.client.options import GROUP_MEMBER_OPTIONS
from roster.member.config import MemberConfig
from roster.member.options import GROUP_OPTIONS
from roster.model.options import REQUIRED, Option, by_name, markdown_table
from roster.spark import Pipeline
from roster.spark.options import Options
from roster.spark.pipeline_options import PIPELINE_OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
SIGNATURES = [(Pipeline, PIPELINE_OPTIONS), (GroupMember, GROUP_MEMBER_OPTIONS)]


@pytest.mark.parametrize(("public", "options"), SIGNATURES)
def test_a_signature_is_as_declared(public, options):
    parameters = inspect.signature(public).parameters.values()
    given = {each.name: REQUIRED if each.default is each.empty else each.default for each in parameters}
    assert list(given.items()) == [(name, option.default) for name, option in options.items()]
    shown = inspect.signature(public, eval_str=True)
    assert all(each.annotation is not each.empty for each in shown.parameters.values())
    assert f"{public.__name__}({next(iter(options))}:" in pydoc.plain(pydoc.render_doc(public)), "what help() prints"


@pytest.mark.parametrize(
    ("documented", "options", "error"),
    [(Pipeline.__init__, PIPELINE_OPTIONS, "PipelineError"), (GroupMember, GROUP_MEMBER_OPTIONS, "OptionError")],
)
def test_the_docstring_explains_every_option(documented, options, error):
    arguments = inspect.getdoc(documented).partition("Args:")[2]
    explained = dict(re.findall(r"^    (\w+): (.*)", arguments, re.MULTILINE))
    assert list(explained) == [*options, error]
    assert [name for name, option in options.items() if option.unit not in explained[name]] == []


@pytest.mark.parametrize(("checked", "options"), [(MemberConfig, GROUP_OPTIONS), (Options, PIPELINE_OPTIONS)])
def test_what_is_checked_has_the_declared_defaults(checked, options):
    found = {each.name: each.default for each in dataclasses.fields(checked)}
    common = found.keys() & options.keys() - {"reader_options", "security"}
    assert len(common) > 8
    declared = {name: options[name].default for name in common if options[name].default is not REQUIRED}
    assert {name: found[name] for name in declared} == declared


@pytest.mark.parametrize("page", ["pipeline.md", "client.md"])
def test_the_reference_has_a_row_for_each_option(page):
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    shown = hooks.on_page_markdown((DOCS / "reference" / page).read_text())
    rows = re.findall(r"^\| `(\w+)` \|", shown, re.MULTILINE)
    public, _ = SIGNATURES[["pipeline.md", "client.md"].index(page)]
    assert rows == list(inspect.signature(public).parameters)
    assert all(line.count(" | ") == 4 for line in shown.splitlines() if re.match(r"\| `\w+` \|", line))


def test_bounds_refuse_what_is_no_whole_number_between_them():
    option = Option("a", "int", "", 5, least=1, most=9)
    assert [value for value in (0, 1, 9, 10, True, 5.0, "5", None) if option.accepts(value)] == [1, 9]
    assert option.but(default=None).accepts(None)
    assert Option("a", "str", "").accepts(object())
    with pytest.raises(ValueError, match="twice"):
        by_name([option, option])
    assert markdown_table([option.but(default=5_000, unit="ms", kafka="k.a")]).splitlines()[-1] == (
        "| `a` | int, ms | `5_000` |  | `k.a` |"
    )


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, f"{path} {name}")


COMMANDS = dict(commands(roster, "roster"))


def test_every_command_and_option_is_in_the_reference():
    assert ":command: roster" in (DOCS / "reference" / "commands.md").read_text()
    lines = list(make_command_docs(prog_name="roster", command=roster, depth=1, style="table"))
    sections = {line.lstrip("# ").strip() for line in lines if line.startswith("#")}
    text = "\n".join(lines)
    assert len(COMMANDS) > 15
    for path, command in COMMANDS.items():
        assert path.split()[-1] in sections
        for parameter in command.params:
            assert all(flag in text for flag in parameter.opts if flag.startswith("--"))


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_has_help(path):
    command = COMMANDS[path]
    assert command.help
    assert [each.name for each in command.params if isinstance(each, click.Option) and not each.help] == []
