"""The deterministic simulator: members, coordinators, network and disk in virtual time, from one seed."""

from tests.simulation.errors import BrokenInvariant
from tests.simulation.run import Outcome, Summary, run_many, run_scenario, run_seed, shrink
from tests.simulation.scenario import Scenario, draw_scenario

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
