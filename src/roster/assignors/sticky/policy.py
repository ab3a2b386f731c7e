"""The sticky assignors: as balanced as subscriptions allow, then fewest moves (KIP-54, KIP-341, KIP-429).

`sticky` assigns all partitions at once. `cooperative-sticky` makes the same plan, but withholds partitions that another
member still claims; they are free in the next round and assigned then, so a group is stable after at most two rounds.
"""

from __future__ import annotations

import numpy as np

from roster.assignors.base import Assignor, JoinContext, RebalanceProtocol
from roster.assignors.claim_source import ClaimSource
from roster.assignors.claims import settle_claims, to_withhold
from roster.assignors.sticky import general, uniform
from roster.assignors.subscribers import active_members
from roster.model import NO_GENERATION, NO_OWNER, Plan, Problem
from roster.model.topics import numbers_by_topic
from roster.wire.consumer.user_data import encode_cooperative_user_data, encode_sticky_user_data


def assign(problem: Problem, *, cooperative: bool = False) -> Plan:
    """Return the plan with the fairest loads (lexicographically), then most rack matches, then fewest moves.

    cooperative: without the partitions that another member still claims.
    """
    owner_before, contested = settle_claims(problem)
    members = active_members(problem)
    subscription_of = problem.subscription_of[members]
    racks = problem.racks
    by_rack = racks is not None and racks.tells_apart(members.tolist())
    if not len(members):
        owner = np.full(problem.partition_count, NO_OWNER, dtype=np.int32)
    elif (subscription_of == subscription_of[0]).all() and not by_rack:
        owner = uniform.balance(problem, owner_before, members)
    else:
        owner = general.balance(problem, owner_before, by_rack=by_rack)
    withheld = to_withhold(problem, owner, owner_before) if cooperative else None
    return Plan.of(problem, owner, owner_before=owner_before, withheld=withheld, contested=contested)


class StickyAssignor(Assignor):
    """`sticky`; its user data is the last assignment with its generation, null before the first."""

    name = "sticky"
    claim_source = ClaimSource.STICKY_USER_DATA

    def assign(self, problem: Problem) -> Plan:
        """See `assign` of this module."""
        return assign(problem)

    def subscription_user_data(self, join: JoinContext) -> bytes | None:
        """Return Kafka's sticky user data V1."""
        if join.last_generation == NO_GENERATION:
            return None
        return encode_sticky_user_data(numbers_by_topic(join.last_assignment), join.last_generation)


class CooperativeStickyAssignor(Assignor):
    """`cooperative-sticky`; its user data is the member's generation."""

    name = "cooperative-sticky"
    supported_protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)
    claim_source = ClaimSource.FIELDS_AND_USER_DATA

    def assign(self, problem: Problem) -> Plan:
        """See `assign` of this module."""
        return assign(problem, cooperative=True)

    def subscription_user_data(self, join: JoinContext) -> bytes | None:
        """Return Kafka's cooperative user data."""
        return encode_cooperative_user_data(join.generation)


STICKY = StickyAssignor()
COOPERATIVE_STICKY = CooperativeStickyAssignor()
