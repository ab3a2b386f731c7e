"""The documentation agrees with the code: names, options, links, and the ids that tests carry."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml

from roster import RosterError, client, spark
from roster.broker.request_limits import SERVED
from roster.cli.root import roster
from roster.client import GroupMember
from roster.spark import KafkaSink, ParquetSink, Pipeline, State, session
from tests.real.realparts import installed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ALL = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALLS = {
    each.__name__: inspect.signature(each.__init__).parameters
    for each in (Pipeline, State, GroupMember, ParquetSink, KafkaSink)
}

named = pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))


def code(page: Path) -> list[ast.Module]:
    return [ast.parse(block) for block in PYTHON.findall(page.read_text())]


@named
def test_what_pages_import_exists(page):
    for tree in code(page):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "roster":
                module = importlib.import_module(node.module)
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                assert missing == [], f"{node.module} has no {missing}"


@named
def test_options_on_pages_exist(page):
    for tree in code(page):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                assert given <= set(CALLS[node.func.id]), f"{node.func.id}: {given - set(CALLS[node.func.id])}"


PACKAGE = ROOT / "src" / "roster"
TREES = [ROOT / name for name in ("benchmarks", "docs", "examples", "src", "tests")]
FOLDERS = {".ci", *(tree.name for tree in TREES)}
FILES = {path.name for tree in TREES for path in tree.rglob("*.*")}


def is_path(text: str) -> bool:
    """Say whether text in backticks is a path of the repository, or a module's name."""
    first, slash, _ = text.partition("/")
    return text.endswith((".md", ".py")) or (slash == "/" and first in FOLDERS)


def exists(text: str, page: str) -> bool:
    """Say whether there is such a file; `shops.py` may be the user's own, whose text the page shows."""
    if "/" not in text and text.endswith(".py"):
        return text in FILES or f"\n# {text}\n" in page or f"\n# {text}: " in page
    return any(any(base.glob(text.rstrip("/"))) for base in (ROOT, PACKAGE))


@named
def test_paths_in_backticks_exist(page):
    text = page.read_text()
    paths = [path for path in re.findall(r"`([\w./*-]+)`", text) if is_path(path)]
    assert [path for path in paths if not exists(path, text)] == []


UNITS = {"": 1, "ms": 1, "s": 1_000, "min": 60_000, "minutes": 60_000, "h": 3_600_000, "hours": 3_600_000}


def told_defaults(text: str) -> list[tuple[str, int]]:
    """Values in brackets behind an option's name: `session_timeout_ms` (45 s), whatever more the brackets hold."""
    found = re.findall(r"`([a-z_.]+)`\s\(([\d,]+)(?: (ms|s|min|minutes|h|hours))?(?=[,);])", text)
    return [(name, int(number.replace(",", "")) * UNITS[unit]) for name, number, unit in found]


def test_defaults_in_the_text_of_pages_are_those_of_the_options(hooks):
    declared = {}
    for options in hooks.TABLES.values():
        for option in options.values():
            for name in {option.name, option.kafka}:
                declared.setdefault(name, set()).add(option.default)
    told = [(page.name, *each) for page in ALL for each in told_defaults(page.read_text()) if each[0] in declared]
    assert len(told) > 4
    assert [each for each in told if each[2] not in declared[each[1]]] == []


def test_variables_of_the_tests_are_in_contributing():
    told = set(re.findall(r"`([A-Z_]+)[`=]", (ROOT / "CONTRIBUTING.md").read_text()))
    read = re.compile(r"(?:environ\.get\(|environ\[|examples\(\d+, |SEEDS = )\"([A-Z_]+)\"")
    used = {name for path in (ROOT / "tests").rglob("*.py") for name in read.findall(path.read_text())}
    ours = {name for name in used if not name.startswith(("HYPOTHESIS_", "JAVA_", "JDK_", "PYTHON", "SPARK_"))}
    assert len(ours) > 20
    assert ours - told == set()


@named
def test_relative_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


_BLOCK = re.compile(r"^( *)```(?:sh|text)?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def command_lines(text: str) -> list[str]:
    """Lines of blocks, and text in backticks, that call `roster` with a command."""
    lines = [line.strip() for _, block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(roster [^`]+)`", text.replace("\n", " "))
    return [line for line in lines if re.match(r"roster [a-z]", line)]


def mistake(line: str) -> str:
    """Say which command or option of a line does not exist, "" if all do."""
    words = shlex.split(re.split(r"\s[|&<>]|;", line)[0], comments=True)[1:]
    command, context = roster, click.Context(roster)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.get_command(context, words.pop(0))
        if command is None:
            return "no such command"
        context = click.Context(command, parent=context)
    try:
        command.make_parser(context).parse_args(words)
    except click.UsageError as error:
        return error.message
    return ""


@named
def test_commands_and_options_on_pages_exist(page):
    wrong = {line: mistake(line) for line in command_lines(page.read_text())}
    assert {line: error for line, error in wrong.items() if error} == {}


def test_a_command_or_option_that_does_not_exist_is_found():
    page = "Use `roster groups lst`.\n\n```sh\nroster topics create t --partitions 3 --fast | cat  # ok\n```\n"
    option, command = (mistake(line) for line in command_lines(page))
    assert "--fast" in option
    assert command == "no such command"


def test_every_page_is_in_the_navigation():
    listed: set[str] = set()

    def walk(entry: object) -> None:
        if isinstance(entry, str):
            listed.add(entry)
        for child in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            walk(child)

    settings = (ROOT / "mkdocs.yml").read_text()
    walk(yaml.safe_load(settings)["nav"])
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES}


@pytest.mark.parametrize(
    "loaded",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<img alt='' src='//cdn.example/x.png'>",
        '<link rel="stylesheet" href="http://cdn.example/x.css">',
        "<link href=https://fonts.example rel=preconnect>",
    ],
)
def test_a_page_that_loads_from_another_host_stops_the_build(hooks, loaded):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    own = '<link rel="canonical" href="https://roster.example"><a href="https://x.org">Kafka</a><img src="a.svg">'
    hooks.on_post_page(f"<html>{own}</html>", page=page)
    with pytest.raises(
        installed("mkdocs.exceptions").PluginError, match=r"index\.md loads \S+\.example\S* from another host"
    ):
        hooks.on_post_page(f"<html>{own}{loaded}</html>", page=page)


def test_the_search_works_in_pages_opened_from_the_file_system():
    """The plugin `offline` inlines the index; without a polyfill of ours it has browsers fetch one."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert "offline" in settings["plugins"]
    (polyfill,) = settings["extra"]["polyfills"]
    assert "iframe-worker" in polyfill, "the plugin knows its own by this name"
    assert (DOCS / polyfill).is_file()


def test_every_case_that_tests_and_code_name_is_explained():
    explained = set(
        re.findall(r"^\| ([A-Z]+-?\d+) ", (DOCS / "documents" / "worked-cases.md").read_text(), re.MULTILINE)
    )
    case = re.compile(r"\b(?:test_)?(gc|df|rg|rr|st|sg|ud|la)-?(\d{1,2})(?=_|\b)", re.IGNORECASE)
    invariant = re.compile(r"\b(S(?:1[0-4]|[1-9]))\b(?=[:,)\- ])")
    used: set[str] = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        if path == Path(__file__):
            continue
        text = path.read_text()
        used |= {
            f"{kind.upper()}-{number}"
            for kind, number in case.findall(text)
            if kind.isupper() or f"test_{kind}" in text
        }
        used |= set(invariant.findall(text)) if path.parent.name in {"coordinator", "member", "assignors"} else set()
    assert len(used) > 40
    assert used - explained == set()


def named_for_spark_users(section):
    """The second column of the table of that section, in the page about Structured Streaming."""
    page = (DOCS / "how-to" / "from-structured-streaming.md").read_text()
    lines = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    return [line.split("|")[2] for line in lines if line.startswith(("| `", "| a ", "| any ", "| other "))]


def test_the_migration_table_names_options_that_exist():
    cells = named_for_spark_users("Options")
    options = {name for cell in cells for name in re.findall(r"`([a-z_]+)(?==|`)", cell)}
    parameters = set(CALLS["Pipeline"]) | set(inspect.signature(Pipeline.run).parameters)
    assert options <= parameters | set(inspect.signature(session).parameters)
    assert len(options) > 10


def test_the_migration_table_names_operators_that_exist():
    cells = named_for_spark_users("What moves")
    operators = {name for cell in cells for name in re.findall(r"`(?:pipeline\.)?([a-z_]+)(?=[(`])", cell)}
    assert len(operators) >= 12
    assert [name for name in operators if not hasattr(Pipeline, name) and name not in CALLS["Pipeline"]] == []


def test_the_table_of_what_keeps_state_names_operators_that_exist():
    page = (DOCS / "state" / "index.md").read_text().partition("\n## Which operator\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")]
    operators = {name for cell in cells for name in re.findall(r"[\[ ]`(?:pipeline\.)?([a-z_]+)(?=[(`])", cell)}
    assert len(operators) >= 8
    assert [name for name in sorted(operators) if not callable(getattr(Pipeline, name, None))] == []


ERRORS = (DOCS / "reference" / "errors.md").read_text()
PUBLIC = ["broker", "client", "model", "security", "spark", "testing"]


@pytest.mark.parametrize("package", ["roster", *(f"roster.{room}" for room in PUBLIC)])
def test_every_public_error_is_in_the_reference(package):
    public = importlib.import_module(package)
    things = {name: getattr(public, name) for name in public.__all__}
    errors = {name for name, thing in things.items() if isinstance(thing, type) and issubclass(thing, RosterError)}
    errors -= {"AuthenticationFailed"}  # callers see the client's AuthenticationError
    assert {name for name in errors if not re.search(rf"\b{name}\b", ERRORS)} == set()


def test_the_table_of_the_clients_errors_names_no_others():
    table = re.findall(r"^\|([^|]+)\|", ERRORS.partition("## Of the client")[2].partition("## ")[0], re.MULTILINE)
    assert [name for name in re.findall(r"`(\w+)`", "".join(table)) if not hasattr(client, name)] == []


@pytest.mark.parametrize(
    "home", ["roster.records.produce", "roster.pipeline.tasks.reader", "roster.spark.queries.view"]
)
def test_errors_that_a_run_raises_are_public_or_of_a_public_kind(home):
    """ReadError, WriteError, StateUnavailableError: defined in parts that nobody imports."""
    here = [thing for thing in vars(importlib.import_module(home)).values() if getattr(thing, "__module__", "") == home]
    errors = [thing for thing in here if isinstance(thing, type) and issubclass(thing, RosterError)]
    assert errors
    public = set(spark.__all__)
    assert [error for error in errors if not {kind.__name__ for kind in error.__mro__} & public] == []


def test_files_in_the_architecture_exist():
    package = ROOT / "src" / "roster"
    text = (DOCS / "architecture.md").read_text()
    rooms = {path.name for path in package.iterdir() if path.is_dir()}
    named = {name for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py)?)`", text) if name.partition("/")[0] in rooms}
    assert len(named) > 80
    assert [name for name in sorted(named) if not (package / name).exists()] == []


def test_every_package_has_a_row_in_the_architecture():
    text = (DOCS / "architecture.md").read_text().partition("\n## The way of")[0]
    first_cells = re.findall(r"^\| (`[^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    explained = {name for cell in first_cells for name in re.findall(r"`([a-z_/]+)`", cell)}
    packages = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")} - {"."}
    assert packages - explained == set()
    assert len(packages) > 40


def test_the_architecture_names_every_module():
    """By its path, or by its name in the row of its package."""
    named = set()
    text = (DOCS / "architecture.md").read_text().partition("\n## The way of")[0]
    for first, rest in re.findall(r"^\| (`[^|]+) \| ([^\n]+) \|$", text, re.MULTILINE):
        explained = re.findall(r"`([a-z0-9_/]+)`", first)
        named |= {
            "/".join([*package, name])
            for name in re.findall(r"`([a-z0-9_/]+\.py)`", first + rest)
            for package in ([], *([each] for each in explained))
        }
    modules = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("[a-z]*.py")}
    assert sorted(modules - named) == []


def test_functions_on_the_ways_through_the_architecture_exist():
    text = (DOCS / "architecture.md").read_text().partition("## The way of one JoinGroup")[2]
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "roster").rglob("*.py"))
    names = {name.rpartition(".")[2] for name in re.findall(r"`([A-Za-z_.]+)`", text) if "_" in name or "." in name}
    functions = {name for name in names if not name.isupper()} - {"__consumer_offsets"}
    assert len(functions) > 25
    assert [name for name in sorted(functions) if f"def {name}(" not in source and name != "map_arrow"] == []


def test_the_page_of_the_broker_lists_the_requests_that_it_serves() -> None:
    page = (DOCS / "how-to" / "run-the-broker.md").read_text()
    rows = page.split("| requests served | API keys |")[1].split("\n\n")[0]
    listed = re.findall(r"(\w+) (\d+)", rows)
    assert sorted(listed) == sorted((key.label, str(int(key))) for key in SERVED)
