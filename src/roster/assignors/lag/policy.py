"""The assignors that balance lag: the number of records of each partition still to be read.

`lag` extends KIP-169. Within a topic, the counts of its subscribers differ by at most one, whatever the lags are. The
totals differ as little as that allows; KIP-169 counts each topic by itself, and so gives 100 topics of one partition
each to one of ten members. Within those counts lag is evened out: partitions are dealt in order of decreasing lag to
the member with least, then exchanged until no exchange relieves the fullest member. `Plan.lag` has the result and a
lower bound.

With equal subscriptions and topics whose partitions divide evenly, the lags of two members differ by at most the
biggest partition, so the fullest member has at most twice the lower bound. tests/assignors/test_lag.py compares small
groups with the best of all assignments that have the same counts.

With `lag-sticky` and `lag-cooperative-sticky` a member keeps its partitions unless counts require a move, or the
fullest member exceeds what `LagOptions` tolerate and a move relieves it enough. A member's share of partitions and lag
is proportional to its capacity. Without lags they decide by counts and capacities. Racks are ignored.
"""

from dataclasses import dataclass, replace

import numpy as np

from roster.assignors.base import Assignor, ClaimSource, JoinContext
from roster.assignors.claims import settle_claims, to_withhold
from roster.assignors.lag.exchange import Exchanges, lower_bound
from roster.assignors.lag.placing import complete
from roster.assignors.lag.shares import Shares
from roster.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from roster.model import NO_OWNER, AutoOffsetReset, LagBalance, PartitionOffsets, Plan, Problem
from roster.model.arrays import Int32, Int64
from roster.model.offsets import check_auto_offset_reset
from roster.model.problem import MAX_CAPACITY
from roster.wire.consumer.user_data import encode_lag_user_data

_MOST_LAG = 1 << 62
_LOOKS = 4


@dataclass(frozen=True, slots=True)
class LagOptions:
    """When partitions move only to balance lag.

    The leader uses its own options, and any member may become leader, so give all members the same. Raises ValueError
    that names the invalid option.

    max_skew: nothing moves while the lag of the fullest member exceeds the lower bound by at most this fraction; moves
    aim at half of it. hysteresis: no partition moves unless all moves together relieve the fullest member by this
    fraction. movement_cost: records per unit of capacity by which each moved partition must relieve it.
    """

    max_skew: float = 0.1
    hysteresis: float = 0.05
    movement_cost: int = 0

    def __post_init__(self) -> None:
        for name, kind, example in (
            ("max_skew", float | int, "number from 0 up, such as 0.1 for a tenth"),
            ("hysteresis", float | int, "number from 0 up, such as 0.05 for a twentieth"),
            ("movement_cost", int, "whole number of records from 0 up"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a {example}, not {value!r}")


def with_offsets(
    problem: Problem, offsets: PartitionOffsets | None, auto_offset_reset: str = AutoOffsetReset.LATEST
) -> Problem:
    """Return the problem with the lag of each partition (KIP-169).

    Lag is the log end offset minus the committed offset, also where that is before the log start. Without a committed
    offset it is the whole log, or 0 for "latest". A partition without offsets has lag 0; with offsets None, lag is
    unknown.
    Raises ValueError if `auto_offset_reset` is not a value of Kafka's `auto.offset.reset`.
    """
    check_auto_offset_reset(auto_offset_reset)
    if offsets is None:
        return problem
    lag = np.zeros(problem.partition_count, dtype=np.int64)
    for topic, start, end in zip(problem.topics, problem.first[:-1].tolist(), problem.first[1:].tolist(), strict=True):
        known = offsets.get(topic)
        if not known:
            continue
        rows = [
            (number, *_clipped(first, last, committed))
            for number, (first, last, committed) in known.items()
            if 0 <= number < end - start
        ]
        if not rows:
            continue
        number, first, last, committed = np.array(rows, dtype=np.int64).T
        whole = np.zeros_like(last) if auto_offset_reset == AutoOffsetReset.LATEST else last - np.maximum(first, 0)
        lag[start + number] = np.maximum(np.where(committed < 0, whole, last - committed), 0)
    return replace(problem, lag=lag)


def _clipped(first: int, last: int, committed: int | None) -> tuple[int, int, int]:
    return (
        min(max(first, 0), _MOST_LAG),
        min(max(last, 0), _MOST_LAG),
        -1 if committed is None else min(max(committed, -1), _MOST_LAG),
    )


def assign(problem: Problem) -> Plan:
    """Assign by KIP-169, with totals and lag balanced over all topics; claims and capacities are not used."""
    shares = Shares(problem, np.ones(len(problem.members), dtype=np.int64))
    unowned = np.full(problem.partition_count, NO_OWNER, dtype=np.int32)
    if not len(shares.busy):
        return Plan.of(problem, unowned)
    lag = _usable(problem)
    bound = lower_bound(problem, shares, lag)
    owner = complete(problem, shares, lag, unowned, bound)
    note = "" if problem.lag is not None else "no offsets: every lag counts as 0"
    return Plan.of(problem, owner, lag=_balance(shares.weight, lag, owner, bound, note))


def _usable(problem: Problem) -> Int64:
    """Return the lags, bounded so that sums cannot overflow."""
    if problem.lag is None:
        return np.zeros(problem.partition_count, dtype=np.int64)
    return np.clip(problem.lag, 0, _MOST_LAG // (2 * max(problem.partition_count, 1)))


def _balance(weight: Int64, lag: Int64, owner: Int32, bound: float, note: str) -> LagBalance:
    load = np.zeros(len(weight), dtype=np.int64)
    np.add.at(load, owner, lag)
    return LagBalance(load, float((load / weight).max(initial=0.0)), bound, note)


def _decide(problem: Problem, options: LagOptions, *, cooperative: bool) -> Plan:
    owner_before, contested = settle_claims(problem)
    weight = np.ones(len(problem.members), dtype=np.int64)
    if problem.capacity is not None:
        weight = np.clip(problem.capacity, 1, MAX_CAPACITY).astype(np.int64)
    unit = int(np.gcd.reduce(weight)) if len(weight) else 1
    shares = Shares(problem, weight // unit)
    if not len(shares.busy):
        return Plan.of(problem, np.full_like(owner_before, NO_OWNER), owner_before=owner_before, contested=contested)
    decision = _Decision(problem, shares, options, owner_before, cooperative=cooperative)
    owner, note = decision.make()
    withheld = to_withhold(problem, owner, owner_before) if cooperative else None
    lag = _balance(weight, decision.lag, owner, decision.bound / unit, note)
    return Plan.of(problem, owner, owner_before=owner_before, withheld=withheld, contested=contested, lag=lag)


class _Decision:
    """One sticky decision: complete the present assignment, then check whether moving is worth its cost."""

    def __init__(
        self, problem: Problem, shares: Shares, options: LagOptions, owner_before: Int32, *, cooperative: bool
    ) -> None:
        self.problem, self.shares, self.options, self.owner_before, self.cooperative = (
            problem,
            shares,
            options,
            owner_before,
            cooperative,
        )
        self.lag = _usable(problem)
        self.bound = lower_bound(problem, shares, self.lag)

    def make(self) -> tuple[Int32, str]:
        """Return [partitions] the owner, and a note for the plan."""
        owner = self._complete(self.owner_before)
        note = "" if self.problem.lag is not None else "no offsets: decided by counts and capacities alone"
        if self.problem.lag is None:
            return owner, note
        if self.cooperative and self.problem.settling:
            return owner, "the last round's hand-over is being finished: nothing moves for lag's sake"
        plan, note = self._relieve(owner)
        if not self.cooperative:
            return plan, note
        # What is withheld now is free in the next round. Prefer a plan after which that round moves nothing more.
        for _ in range(_LOOKS):
            withheld = to_withhold(self.problem, plan, self.owner_before)
            if not withheld.any():
                break
            finished = self._complete(np.where(withheld, np.int32(NO_OWNER), plan))
            if (self._relieve(finished)[0] == finished).all():
                break
            plan, note = self._relieve(finished)
        return plan, note

    def _complete(self, owner_before: Int32) -> Int32:
        return complete(self.problem, self.shares, self.lag, owner_before, self.bound)

    def _relieve(self, owner: Int32) -> tuple[Int32, str]:
        """Return the assignment after moves that balance lag, or unchanged; a second call changes nothing."""
        options, bound = self.options, self.bound
        exchanges = Exchanges(self.problem, self.shares, self.lag, owner.copy())
        before = exchanges.fullest()
        if before <= bound * (1 + options.max_skew):
            return owner, ""
        least_gain = before * min(options.hysteresis, options.max_skew) / 16
        moved, enough = 0, bound * (1 + options.max_skew / 2)
        while exchanges.fullest() > enough:
            parts = exchanges.step(least_gain, float(options.movement_cost))
            if not parts:
                break
            moved += parts
        relief = before - exchanges.fullest()
        if relief <= 0 or relief < before * options.hysteresis or relief < options.movement_cost * moved:
            return (
                owner,
                f"left as it is: moving would take {relief:.0f} of {before:.0f} records off the fullest member",
            )
        return exchanges.owner, f"moved to take {relief:.0f} of {before:.0f} records off the fullest member"


class LagAssignor(Assignor):
    """`lag`: KIP-169."""

    name = "lag"
    claim_source = ClaimSource.NONE
    wants_lag = True

    def assign(self, problem: Problem) -> Plan:
        """See `assign` of this module."""
        return assign(problem)


class _Sticky(Assignor):
    """What both sticky assignors that balance lag add to those that do not."""

    wants_lag = True
    is_cooperative: bool

    def __init__(self, options: LagOptions = LagOptions()) -> None:
        self.options = options

    def assign(self, problem: Problem) -> Plan:
        """See the documentation of this module."""
        return _decide(problem, self.options, cooperative=self.is_cooperative)

    def subscription_user_data(self, join: JoinContext) -> bytes | None:
        """Return the user data of the assignor without lag, behind the header."""
        user_data = super().subscription_user_data(join)
        return encode_lag_user_data(user_data, capacity=join.capacity, settling=join.settling)


class LagStickyAssignor(_Sticky, StickyAssignor):
    """`lag-sticky`; its user data is that of `sticky` behind a header with the member's capacity."""

    name = "lag-sticky"
    is_cooperative = False


class LagCooperativeStickyAssignor(_Sticky, CooperativeStickyAssignor):
    """`lag-cooperative-sticky`; its user data is that of `cooperative-sticky` behind the same header."""

    name = "lag-cooperative-sticky"
    is_cooperative = True


def lag_sticky(options: LagOptions = LagOptions()) -> Assignor:
    """Return `lag-sticky` with these options."""
    return LagStickyAssignor(options)


def lag_cooperative_sticky(options: LagOptions = LagOptions()) -> Assignor:
    """Return `lag-cooperative-sticky` with these options."""
    return LagCooperativeStickyAssignor(options)


LAG = LagAssignor()
LAG_STICKY = lag_sticky()
LAG_COOPERATIVE_STICKY = lag_cooperative_sticky()
