"""Assignors as pure functions: assign(problem) -> Plan."""

from roster.assignors.base import Assignor, ClaimSource, JoinContext, RebalanceProtocol
from roster.assignors.evaluation import Evaluation, evaluate, evaluate_claims
from roster.assignors.lag import LAG, LAG_COOPERATIVE_STICKY, LAG_STICKY, LagOptions, lag_cooperative_sticky, lag_sticky
from roster.assignors.make_plan import make_plan
from roster.assignors.range import RANGE
from roster.assignors.registry import ASSIGNORS, as_tuple, find_assignor, rebalance_protocol, resolve_assignors
from roster.assignors.roundrobin import ROUNDROBIN
from roster.assignors.sticky import COOPERATIVE_STICKY, STICKY, CooperativeStickyAssignor, StickyAssignor

__all__ = [
    "ASSIGNORS",
    "COOPERATIVE_STICKY",
    "LAG",
    "LAG_COOPERATIVE_STICKY",
    "LAG_STICKY",
    "RANGE",
    "ROUNDROBIN",
    "STICKY",
    "Assignor",
    "ClaimSource",
    "CooperativeStickyAssignor",
    "Evaluation",
    "JoinContext",
    "LagOptions",
    "RebalanceProtocol",
    "StickyAssignor",
    "as_tuple",
    "evaluate",
    "evaluate_claims",
    "find_assignor",
    "lag_cooperative_sticky",
    "lag_sticky",
    "make_plan",
    "rebalance_protocol",
    "resolve_assignors",
]
