"""`python -m tests.simulation`: members, coordinators, network and disk in virtual time, from seeds."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from roster.cli.output import print_table
from tests.simulation.coverage import table
from tests.simulation.run import Outcome, Summary, kept_actions, run_many, run_scenario, shrink
from tests.simulation.scenario import draw_scenario

if TYPE_CHECKING:
    from collections import Counter

    from tests.simulation.scenario import Scenario

LINES_SHOWN = 60
"""Lines at the end of a history that are shown without --trace."""
INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a run that is cut before an invariant broke."""
PROGRESS_EVERY = 100
"""Seeds between two lines of progress."""


@click.command("python -m tests.simulation")
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds to run, from 0 or --seed on.  [default: 100]")
@click.option("--seed", type=click.IntRange(min=0), help="Run this seed alone, or begin with it.")
@click.option("--trace", is_flag=True, help="Print the whole history of the seed.")
@click.option("--only", metavar="PLACES", help="With --seed: only the actions at these places, as in 0,3,4.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes that run seeds.  [default: one for each core]")
@click.option("--coverage", is_flag=True, help="Print how often each event met each state.")
def simulate(
    seeds: int | None, seed: int | None, trace: bool, only: str | None, jobs: int | None, coverage: bool
) -> None:
    """Run groups under faults in virtual time, and check the invariants of the group protocol after every event.

    A seed is one group: real members and misbehaving clients, two brokers with the real coordinator, a network and a
    disk, all in one thread. Connections break, processes are killed and paused, brokers crash and hand over, topics
    change; then the faults stop and the group has to come to rest. The same seed is the same run, bit for bit.

    The exit code is 1 if an invariant breaks; then the seed's shortest history that breaks it is printed.
    """
    alone = seed is not None and (seeds is None or seeds == 1)
    if (trace or only is not None) and not alone:
        raise click.UsageError("--trace and --only need --seed, and no --seeds")
    if alone:
        sys.exit(_run_alone(seed or 0, trace, _places(only)))
    first = seed or 0
    try:
        summary = run_many(range(first, first + (seeds or 100)), jobs=jobs or os.cpu_count() or 1, progress=_progress)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if sys.stderr.isatty():
        click.echo("\r", nl=False, err=True)
    _print_summary(summary, coverage=coverage)
    if summary.failures:
        _explain(summary.failures[0])
        sys.exit(1)


def _places(only: str | None) -> list[int] | None:
    if only is None:
        return None
    try:
        return [int(place) for place in only.split(",") if place]
    except ValueError:
        raise click.UsageError(f"--only: {only!r} is no list of places; give numbers, as in 0,3,4") from None


def _progress(summary: Summary) -> None:
    if summary.seeds % PROGRESS_EVERY == 0:
        rate = summary.seeds / summary.seconds * 3600
        click.echo(f"{summary.seeds} seeds, {summary.events} events, {rate:.0f} seeds/h", err=True)


def _run_alone(seed: int, trace: bool, places: list[int] | None) -> bool:
    """Run one seed and print its verdict; True if an invariant broke."""
    scenario = draw_scenario(seed)
    if places is not None:
        scenario = kept_actions(scenario, places)
    outcome = run_scenario(scenario, traced=True)
    if trace:
        _print_history(outcome, len(outcome.lines))
    verdict = "every invariant holds" if outcome.broken is None else f"BROKEN {outcome.broken}"
    click.echo(
        f"seed {seed}: {verdict}; {outcome.events} events in {outcome.virtual_ms / 1000:.1f} s of virtual time,"
        f" {outcome.rounds} generations, trace {outcome.digest}"
    )
    if outcome.broken is not None and not trace:
        _explain(outcome)
    return outcome.broken is not None


def _print_summary(summary: Summary, *, coverage: bool) -> None:
    hours = summary.virtual_ms / 3_600_000
    click.echo(
        f"{summary.seeds} seeds, {summary.events} events, {hours:.1f} h of virtual time, {summary.rounds} generations,"
        f" {summary.commits} acknowledged commits, {summary.refused} refused ones"
    )
    click.echo(
        f"{summary.seconds:.0f} s: {summary.seeds / summary.seconds * 3600:.0f} seeds/h,"
        f" {summary.events / summary.seconds:.0f} events/s; {len(summary.failures)} broken invariants"
    )
    rows = [(kind, number) for kind, number in sorted(summary.counts.items()) if number]
    print_table(("fault or action", "times"), rows, "no faults")
    if coverage:
        parts = {
            "coordinator": summary.coverage.coordinators,
            "member": summary.coverage.members,
            "transaction coordinator": summary.coverage.transactions,
        }
        for name, counts in parts.items():
            _print_coverage(name, counts)


def _print_coverage(name: str, counts: Counter[tuple[str, str]]) -> None:
    head, *rows = table(counts)
    click.echo()
    print_table((f"event of a {name}", *head[1:]), rows, "nothing")


def _explain(outcome: Outcome) -> None:
    """Print the shortest history found that breaks the same invariant, and the command that runs it again."""
    assert outcome.broken is not None
    shortest = run_scenario(shrink(outcome.scenario, outcome.broken.sentence), traced=True)
    click.echo(f"\nBROKEN in seed {outcome.scenario.seed}: {outcome.broken}")
    click.echo("\nshrunk to")
    _print_scenario(shortest.scenario)
    _print_history(shortest, LINES_SHOWN)
    click.echo(f"\nrun it again: python -m tests.simulation --seed {outcome.scenario.seed} --trace")
    click.echo(f"with the actions above alone: add --only {_kept(outcome.scenario, shortest.scenario)}")


def _kept(whole: Scenario, part: Scenario) -> str:
    return ",".join(str(whole.actions.index(action)) for action in part.actions) or "''"


def _print_scenario(scenario: Scenario) -> None:
    policies = ", ".join("/".join(policy) for policy in scenario.policies)
    transactions = "" if scenario.transactions is None else f"; transactions of version {scenario.transactions}"
    tasks = "" if scenario.tasks is None else f"; {scenario.tasks}"
    click.echo(
        f"  {scenario.members} members of {policies}{transactions}{tasks}; topics {scenario.topics}; {scenario.network}"
    )
    for action in scenario.actions:
        click.echo(f"  {action}")


def _print_history(outcome: Outcome, most: int) -> None:
    lines = outcome.lines[-most:]
    click.echo(f"\nhistory{'' if len(lines) == len(outcome.lines) else f', its last {most} lines'}:")
    for line in lines:
        click.echo(line)


if __name__ == "__main__":
    simulate()
