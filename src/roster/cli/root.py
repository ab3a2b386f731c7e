"""The command tree: names and one-line descriptions; everything else is imported on use."""

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click

from roster import __version__
from roster.cli.errors import FAILED, INTERRUPTED, USAGE, Failure, explained_imports, one_line

# name -> (module, attribute, line in `roster --help`)
COMMANDS = {
    "broker": ("roster.cli.broker", "broker", "Run the embedded broker: one process, durable."),
    "topics": ("roster.cli.topics.command", "topics", "List, create, describe, read, grow and delete topics."),
    "groups": ("roster.cli.groups.command", "groups", "List, describe, watch and reset consumer groups."),
    "history": ("roster.cli.history", "history", "Record commits and rebalances of all groups; show them."),
    "state": ("roster.cli.state", "state", "Look into stores of stateful pipelines; export, import and reset state."),
    "console": ("roster.cli.group_pages", "console", "Show consumer groups in a browser."),
    "exporter": ("roster.cli.group_pages", "exporter", "Serve lag of consumer groups to Prometheus."),
    "users": ("roster.cli.users", "users", "List, add and remove users who log in."),
    "plan": ("roster.cli.plan.command", "plan", "Dry run of an assignor, with JSON lines or a live group."),
    "load": ("roster.cli.load.command", "load", "Send a CSV, JSON lines or Parquet file to a topic."),
    "prepare": ("roster.cli.prepare", "prepare", "Make what applications on this machine start sooner with."),
    "demo": ("roster.cli.demo.command", "demo", "Show two applications that share a topic through failures."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, not when the list of them is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, None if no command has that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        with explained_imports(cmd_name):
            command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for one that does not exist the error has the nearest name."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            nearest = get_close_matches(name, COMMANDS)
            hint = f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


_COMPLETION = """Completion of commands and options, for the current shell:

\b
  bash  eval "$(_ROSTER_COMPLETE=bash_source roster)"
  zsh   eval "$(_ROSTER_COMPLETE=zsh_source roster)"
  fish  _ROSTER_COMPLETE=fish_source roster | source
"""


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=_COMPLETION,
)
@click.version_option(__version__, prog_name="roster")
def roster() -> None:
    """A PySpark application as an ordinary member of a Kafka consumer group."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; an expected error is one line on standard error."""
    # An ignored SIGINT is inherited by jobs that a shell started in the background; Ctrl-C must still end us cleanly.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _require_streams()
        result: Any = roster.main(args=list(arguments), prog_name="roster", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "roster"
        return _complain(f"{one_line(error).rstrip('.')} (see `{where} --help`)", error.exit_code)
    except click.ClickException as error:
        return _complain(one_line(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        return _complain(one_line(error), FAILED)
    except MemoryError:
        return _complain("there is not enough memory", FAILED)
    return result if isinstance(result, int) else 0


def _require_streams() -> None:
    """Refuse to run without standard output, and put the null device in the place of the other two if they are closed.

    The next file or socket opened would get the number of a closed stream, and output to the stream would go into it.
    """
    closed = sys.stdout is None
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # in a locale that is not UTF-8
    if closed:
        raise Failure("standard output is closed; write >/dev/null to throw the output away")


def _complain(message: str, code: int) -> int:
    click.echo(f"roster: error: {message}", err=True)
    return code
