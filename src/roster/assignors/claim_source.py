"""Sources of claims in a subscription, and reading the claims of a whole group from them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from roster.model import NO_GENERATION
from roster.model.arrays import Int32
from roster.wire.consumer.entries import ListedPartitions
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import decode_cooperative_user_data, decode_sticky_user_data, split_lag_user_data


class ClaimSource(Enum):
    """The part of a subscription that lists claimed partitions, and the generation of the claims."""

    NONE = "none"
    """No claims; user data is the assignor's own."""
    FIELDS = "fields"
    """The subscription's owned partitions and generation; user data is the assignor's own."""
    STICKY_USER_DATA = "sticky user data"
    """StickyAssignor's user data; the subscription's own fields are ignored."""
    FIELDS_AND_USER_DATA = "fields and user data"
    """The fields, and the generation from CooperativeStickyAssignor's user data if the fields have none."""


class ReadClaims(NamedTuple):
    """Result of `read_claims`: the claims, [members] generation and capacity, and whether any member is settling."""

    claims: ListedPartitions
    generation: Int32
    capacity: Int32 | None = None
    settling: bool = False


def read_claims(
    source: ClaimSource,
    *,
    user_data: Sequence[bytes | None],
    fields: ListedPartitions,
    generation: Int32,
    names: TopicIndex,
) -> ReadClaims:
    """Read the claims of all members; `fields` and `generation` are the columns of the subscriptions' own fields."""
    if source is ClaimSource.NONE:
        nothing = np.zeros(0, dtype=np.int32)
        return ReadClaims(ListedPartitions(nothing, nothing, nothing), generation)
    if source is ClaimSource.FIELDS:
        return ReadClaims(fields, generation)
    rests, capacities, settling = split_lag_user_data(user_data)
    capacity = capacities if (capacities > 1).any() else None
    if source is ClaimSource.STICKY_USER_DATA:
        return ReadClaims(*decode_sticky_user_data(rests, names), capacity, settling)
    without = generation == NO_GENERATION
    if without.any():
        generation = np.where(without, decode_cooperative_user_data(rests), generation)
    return ReadClaims(fields, generation, capacity, settling)
