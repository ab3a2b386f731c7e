"""Resolution of conflicting claims (KIP-341).

The claim of the newest generation wins. If several members claim a partition in that generation, all these claims are
dropped, since nothing tells which of them is right. An old claim stands if no member contests it. The result depends on
the set of claims only, not on the order of members or on earlier calls.
"""

from typing import NamedTuple

import numpy as np

from roster.model import NO_OWNER, Problem
from roster.model.arrays import Bool, Int32


class SettledClaims(NamedTuple):
    """Result of `settle_claims`.

    owner_before: [partitions] owner according to the claims, even if it no longer subscribes; NO_OWNER if none.
    contested: [partitions] True where several members claim it in the newest generation.
    """

    owner_before: Int32
    contested: Bool


def settle_claims(problem: Problem) -> SettledClaims:
    """Resolve all claims of a problem."""
    size = problem.partition_count
    member, partition = problem.claims.member, problem.claims.partition
    owner_before = np.full(size, NO_OWNER, dtype=np.int32)
    contested = np.zeros(size, dtype=np.bool_)
    owner_before[partition] = member
    if (owner_before[partition] == member).all():
        return SettledClaims(owner_before, contested)
    generation = problem.generation[member]
    order = np.lexsort((generation, partition))
    member, partition, generation = member[order], partition[order], generation[order]
    owner_before[partition] = member  # claims are in order of generation, so the newest is written last
    twin = (partition[1:] == partition[:-1]) & (generation[1:] == generation[:-1])
    newest = np.append(partition[1:] != partition[:-1], True)[1:]
    doubled = partition[1:][twin & newest]
    contested[doubled] = True
    owner_before[doubled] = NO_OWNER
    return SettledClaims(owner_before, contested)


def to_withhold(problem: Problem, owner: Int32, owner_before: Int32) -> Bool:
    """Return [partitions]: True where the new owner must wait one round because another member claims the partition.

    An outdated claim takes no partition from its owner; the member that made the claim revokes it.
    """
    claimed_by, partition = problem.claims.member, problem.claims.partition
    new = owner[partition]
    busy = (new != NO_OWNER) & (new != claimed_by) & (new != owner_before[partition])
    withheld = np.zeros(problem.partition_count, dtype=np.bool_)
    withheld[partition[busy]] = True
    return withheld
