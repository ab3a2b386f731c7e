"""Whose a partition is, when members' claims disagree (KIP-341).

The newest generation wins. Several claims from the same newest generation cancel out: somebody is wrong and nobody can
tell who. An old claim that nobody contests stands. All of it looks at the whole set of claims, so the order in which
members are listed decides nothing, and no memory of past calls does either.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from roster.model import NO_OWNER, Problem
from roster.model.arrays import Bool, Int32


class Ownership(NamedTuple):
    """held: [partitions] member that has it, subscribed to it or not; contested: claimed twice in the newest
    generation.
    """

    held: Int32
    contested: Bool


def settle(problem: Problem) -> Ownership:
    """Settle all claims."""
    size = problem.partition_count
    member, partition = problem.claims.member, problem.claims.partition
    held = np.full(size, NO_OWNER, dtype=np.int32)
    contested = np.zeros(size, dtype=np.bool_)
    held[partition] = member
    if (held[partition] == member).all():
        return Ownership(held, contested)
    generation = problem.generation[member]
    order = np.lexsort((generation, partition))
    member, partition, generation = member[order], partition[order], generation[order]
    held[partition] = member  # the last one written is of the newest generation
    twin = (partition[1:] == partition[:-1]) & (generation[1:] == generation[:-1])
    newest = np.append(partition[1:] != partition[:-1], True)[1:]
    doubled = partition[1:][twin & newest]
    contested[doubled] = True
    held[doubled] = NO_OWNER
    return Ownership(held, contested)


def to_withhold(problem: Problem, owner: Int32, held: Int32) -> Bool:
    """[partitions] True where the new owner must wait a round because another member still claims the partition.

    A partition stays with the member that has it even if an outdated claim on it exists; that member is told to let go.
    """
    claimed_by, partition = problem.claims.member, problem.claims.partition
    new = owner[partition]
    busy = (new != NO_OWNER) & (new != claimed_by) & (new != held[partition])
    withheld = np.zeros(problem.partition_count, dtype=np.bool_)
    withheld[partition[busy]] = True
    return withheld
