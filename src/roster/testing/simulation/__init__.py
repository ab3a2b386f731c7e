"""The deterministic simulator: members, coordinators, network and disk in virtual time, from one seed."""

from roster.testing.simulation.errors import BrokenInvariant
from roster.testing.simulation.run import Outcome, Summary, run_many, run_scenario, run_seed, shrink
from roster.testing.simulation.scenario import Scenario, draw_scenario

__all__ = [
    "BrokenInvariant",
    "Outcome",
    "Scenario",
    "Summary",
    "draw_scenario",
    "run_many",
    "run_scenario",
    "run_seed",
    "shrink",
]
