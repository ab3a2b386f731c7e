"""Options are declared once: signatures, dataclasses, reference and help are held to the declaration."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import click
import pytest

from roster.cli.root import roster
from roster.client import GroupMember
from roster.client.options import GroupMemberOptions
from roster.model.options import REQUIRED, Option, by_name, declared, taking
from roster.pipeline.pipeline_options import PipelineOptions
from roster.spark import Pipeline
from tests.real.realparts import installed

DOCS = Path(__file__).parents[2] / "docs"
SIGNATURES = [(Pipeline, declared(PipelineOptions)), (GroupMember, declared(GroupMemberOptions))]


@pytest.mark.parametrize(("public", "options"), SIGNATURES)
def test_a_signature_is_as_declared(public, options):
    parameters = inspect.signature(public).parameters.values()
    given = {each.name: REQUIRED if each.default is each.empty else each.default for each in parameters}
    assert list(given.items()) == [(name, option.default) for name, option in options.items()]
    shown = inspect.signature(public, eval_str=True)
    assert all(each.annotation is not each.empty for each in shown.parameters.values())
    # From Python 3.13 on a long signature has a line for each parameter.
    first = rf"{public.__name__}\([\s|]*{next(iter(options))}:"
    assert re.search(first, pydoc.plain(pydoc.render_doc(public))), "what help() prints"


@pytest.mark.parametrize(
    ("documented", "options", "error"),
    [
        (Pipeline.__init__, declared(PipelineOptions), "PipelineError"),
        (GroupMember.__init__, declared(GroupMemberOptions), "OptionError"),
    ],
)
def test_the_docstring_explains_every_option(documented, options, error):
    arguments = inspect.getdoc(documented).partition("Args:")[2]
    explained = dict(re.findall(r"^    (\w+): (.*)", arguments, re.MULTILINE))
    assert list(explained) == [*options, error]


@pytest.mark.parametrize("page", ["pipeline.md", "client.md"])
def test_the_reference_has_an_entry_for_each_option(hooks, page):
    shown = hooks.on_page_markdown((DOCS / "reference" / page).read_text())
    rows = re.findall(r"^`(\w+)` · .+ · (?:required|default `.+`)$\n:   \S", shown, re.MULTILINE)
    public, _ = SIGNATURES[["pipeline.md", "client.md"].index(page)]
    assert rows[: len(parameters := list(inspect.signature(public).parameters))] == parameters


def test_a_value_that_cannot_be_is_told_with_what_can():
    option = Option("a", "int", default=5, least=1, most=9)
    assert [value for value in (0, 1, 9, 10, True, 5.0, "5", None) if not option.problem(value)] == [1, 9]
    assert option.problem(10) == "10 is not a whole number from 1 to 9"
    assert replace(option, default=None).problem(None) == ""
    assert Option("a", "str").problem(object()) == ""
    assert Option("a", "str", choices=("b", "c")).problem("d") == "'d' is not known: use 'b' or 'c'"
    assert [Option("a", "bool").problem(value) for value in (True, 1)] == ["", "1 is neither True nor False"]
    with pytest.raises(ValueError, match="twice"):
        by_name([option, option])


def test_an_entry_of_the_reference_has_unit_default_and_names(hooks):
    option = Option("a", "int", default=5_000, unit="ms", kafka="k.a", help="a time")
    assert hooks.markdown_list([option]) == "`a` · int, ms · default `5_000`\n:   a time; in Kafka `k.a`"


@dataclass(frozen=True)
class Base:
    wait_ms: Annotated[int, Option(help="time to wait", unit="ms", least=1)] = 100


@dataclass(frozen=True)
class Declaration(Base):
    _: KW_ONLY
    place: Annotated[str | None, Option(help="[where](there.md) it is")] = None
    table: Annotated[dict[str, int], Option(kind="mapping", help="what there is")] = field(default_factory=dict)
    inner: int = 0


class Taker:
    @taking(Declaration)
    def __init__(self, options: Declaration) -> None:
        """Take.

        Raises:
            ValueError: never.

        """
        self.options = options


def test_one_declaration_makes_table_signature_and_help():
    wait, place, table = declared(Declaration).values()
    assert (wait.name, wait.kind, wait.default, wait.unit) == ("wait_ms", "int", 100, "ms")
    assert (place.kind, place.default, table.kind, table.default) == ("str", None, "mapping", REQUIRED)
    assert str(inspect.signature(Taker)).startswith("(wait_ms: int = 100, *, place: str | None = None, table: dict")
    assert inspect.getdoc(Taker.__init__).splitlines() == [
        "Take.",
        "",
        "Args:",
        "    wait_ms: time to wait.",
        "    place: where it is.",
        "    table: what there is.",
        "",
        "Raises:",
        "    ValueError: never.",
    ]
    assert Taker(5, place="a").options == Declaration(5, place="a")
    for wrong in ({"where": 5}, {"self": 5}):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(wrong))}'"):
            Taker(**wrong)


@pytest.mark.gate
def test_mypy_knows_names_and_types_of_every_option(tmp_path):
    path = tmp_path / "application.py"
    path.write_text(
        "from roster.client import GroupMember\n"
        "GroupMember('a:1', group='g', topics=['t'], session_timeout_ms=6_000)\n"
        "GroupMember('a:1', 'g', ['t'], session_timeout_ms='6 s')\n"
        "GroupMember('a:1', 'g', ['t'], session_timeout=6_000)\n"
        "GroupMember('a:1', 'g')\n"
        "from roster.spark import Pipeline, State, session\n"
        "Pipeline(session('a'), 'a:1', group='g', topics='t', state=State(standbys=1), consumer={'client.rack': 'r'})\n"
        "Pipeline(session('a'), 'a:1', 'g', 't', max_offsets_per_batch='5')\n"
        "Pipeline(session('a'), 'a:1', 'g', 't', max_offsets=5)\n"
        "Pipeline(session('a'), 'a:1', 'g', 't', state=State(directory='/var'))\n"
        "Pipeline(session('a'), 'a:1', 'g', 't', consumer={'session.timeout': 5})\n"
        "from roster.spark import StreamQuery, read_stream, write_stream\n"
        "frame = read_stream(session('a')).format('kafka').options(subscribe='t').load()\n"
        "writer = write_stream(frame).queryName('q').foreachBatch(lambda df, number: df.show(number))\n"
        "query: StreamQuery = writer.trigger(processingTime='5 seconds').start(path='out', mergeSchema=True)\n"
        "ended: bool | None = query.awaitTermination(5)\n"
        "query.processAllAvailable(); query.status['message'], query.exception(); query.stop()\n"
        "query.id + 1\n"
        "writer.trigger(processingTime=5)\n"
        "write_stream('frame')\n"
        "read_stream(session('a')).json('x')\n"
        "query.processAllAvailable(5)\n"
        "writer.foreachBatch(lambda df: df.show())\n"
    )
    found = installed("mypy.api").run(["--strict", "--no-error-summary", "--hide-error-context", str(path)])[0]
    assert re.findall(r":(\d+): error: .*\[(.+)\]", found) == [
        ("3", "arg-type"),
        ("4", "call-arg"),
        ("5", "call-arg"),
        ("8", "arg-type"),
        ("9", "call-arg"),
        ("10", "call-arg"),
        ("11", "arg-type"),
        ("18", "operator"),
        ("19", "arg-type"),
        ("20", "arg-type"),
        ("21", "attr-defined"),
        ("22", "call-arg"),
        ("23", "misc"),
        ("23", "arg-type"),
    ]


def test_help_of_a_pipeline_fits_two_screens():
    parameters = inspect.signature(Pipeline).parameters  # newer Pythons print a line for each
    assert len(Pipeline.__doc__.splitlines()) + len(parameters) <= 90
    assert len(parameters) == 4 + 22


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
    lines = list(
        installed("mkdocs_click._docs").make_command_docs(prog_name="roster", command=roster, depth=1, style="table")
    )
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
