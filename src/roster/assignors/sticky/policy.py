"""The sticky assignors: as balanced as subscriptions allow, then fewest moves (KIP-54, KIP-341, KIP-429).

`sticky` assigns all partitions at once. `cooperative-sticky` makes the same plan, but withholds partitions that another
member still claims; they are free in the next round and assigned then, so a group is stable after at most two rounds.
"""

import numpy as np

from roster.assignors.arrays import deal, rank_within, stable_order
from roster.assignors.base import Assignor, ClaimSource, JoinContext, RebalanceProtocol
from roster.assignors.claims import settle_claims, to_withhold
from roster.assignors.sticky import general
from roster.assignors.subscribers import active_members
from roster.model import NO_GENERATION, NO_OWNER, Plan, Problem
from roster.model.arrays import Bool, Int32, Int64
from roster.model.topics import numbers_by_topic
from roster.wire.consumer.user_data import encode_cooperative_user_data, encode_sticky_user_data


def uniform_balance(problem: Problem, owner_before: Int32, members: Int64) -> Int32:
    """Return [partitions] the owner of every partition, for members with equal subscriptions.

    members: ascending, at least one; all subscribe to all topics.
    """
    size = problem.partition_count
    quota, spare = divmod(size, len(members))
    place = np.full(len(problem.members) + 1, NO_OWNER, dtype=np.int32)
    place[members] = np.arange(len(members), dtype=np.int32)
    has = place[owner_before]
    load = np.bincount(has + 1, minlength=len(members) + 1)[1:]

    fuller = (load > quota).nonzero()[0][:spare]
    limit = np.full(len(members), quota, dtype=np.int64)
    limit[fuller] += 1
    over = load > limit
    if over.any():
        _give_up(problem, has, limit, over)
        load = np.minimum(load, limit)

    free = (has < 0).nonzero()[0]
    if len(free):
        lack = quota - np.minimum(load, quota)
        plain = (limit == quota).nonzero()[0]
        next_fuller = plain[stable_order(lack[plain], quota + 1)][: spare - len(fuller)]
        has[free] = np.concatenate((deal(lack), next_fuller))
    return members[has].astype(np.int32)


def _give_up(problem: Problem, has: Int32, limit: Int64, over: Bool) -> None:
    """Unassign the partitions that members own above their limit, evenly from all topics (KAFKA-16277).

    A member's partitions are ordered by number, then topic; those past the limit are unassigned.
    """
    candidates = np.flatnonzero(np.append(over, False)[has])
    number = problem.number_of()[candidates]
    candidates = candidates[stable_order(number, int(number.max()) + 1)]
    owner = has[candidates]
    has[candidates[rank_within(owner, len(limit)) >= limit[owner]]] = NO_OWNER


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
        owner = uniform_balance(problem, owner_before, members)
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
