"""A recorded history replayed: the same members and topics, with the claims that each assignor's own plans leave."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from roster._json import JsonObject
from roster.assignors import Assignor, RebalanceProtocol, make_plan
from roster.history.derived import REBALANCE, GroupHistory, column
from roster.history.generations import Generation, Generations
from roster.model import NO_OWNER, Plan, Problem, TopicPartition
from roster.model.arrays import Float64, Int32, Int64
from roster.model.problem import MAX_PARTITIONS, Claims, member_order

log = logging.getLogger("roster.history")

REPLAYS = pa.schema(
    [
        *REBALANCE,
        ("policy", pa.string()),
        ("members", pa.int32()),
        ("partitions", pa.int32()),
        ("moved", pa.int32()),
        ("rounds", pa.int32()),
        ("stopped", pa.int32()),
        ("least", pa.int32()),
        ("most", pa.int32()),
        ("lag_spread", pa.int64()),
        ("drain_seconds", pa.float64()),
    ]
)
"""A row for each recorded rebalance and policy.

moved: partitions that another member had before. rounds: generations until the plan was whole. stopped: partitions that
a member which stays had to stop reading. least, most: partitions of the member with fewest and with most. lag_spread:
records between the members with least and most to read. drain_seconds: until all records that waited are read, by the
member that needs longest, at the usual seconds for a record. The last two are null where lag is not known.
"""

_MOST_ROUNDS = 5
_NOBODY = np.array([NO_OWNER], np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A rebalance, for every policy.

    problem: its fields but for claims and `settling`. place: [partitions] the number of each over all steps.
    name: [members] the number of each over all steps, and NO_OWNER at the end.
    """

    now: Generation
    problem: JsonObject
    place: Int64
    name: Int32
    seconds: Float64 | None
    """[partitions] how long the records that wait take."""


def replay(history: GroupHistory, assignors: Sequence[Assignor]) -> pa.Table:
    """Return the rows of REPLAYS for one group; racks are not replayed, as records do not have those of replicas.

    What only finished a round of the recorded assignor is left out: each policy has rounds of its own.
    """
    steps = list(_steps(history))
    rows = [
        (history.group, step.now.number, step.now.at_ms, assignor.name, *numbers)
        for assignor in assignors
        for step, numbers in zip(steps, _replay(assignor, steps), strict=True)
    ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(REPLAYS)
    return pa.table(
        [column(values, field.type) for values, field in zip(columns, REPLAYS, strict=True)], schema=REPLAYS
    )


def _steps(history: GroupHistory) -> Iterator[_Step]:
    """Yield the rebalances that had members; topics have the partitions that were known by then."""
    timeline, group = history.timeline, history.timeline.group
    chosen = [
        number
        for number, rebalance in enumerate(timeline.rebalances)
        if len(rebalance.now.member) and not rebalance.is_follow_up
    ]
    if not chosen:
        return
    counts = history.counts()[chosen]
    first = np.concatenate(([0], np.cumsum(counts.max(axis=0, initial=0))))
    if int(first[-1]) > MAX_PARTITIONS:
        log.warning("group %s is not replayed: it has more than %d partitions", history.group, MAX_PARTITIONS)
        return
    tps = [
        TopicPartition(t, n) for t, size in zip(group.topics, np.diff(first).tolist(), strict=True) for n in range(size)
    ]
    lags = history.positions.lags(tps, history.moments[chosen]).records
    is_known = ~np.asarray(np.isnan(lags).all(axis=0))
    lags = np.nan_to_num(lags).astype(np.int64)
    seconds_per_record = np.array([history.positions.seconds_per_record(tp) for tp in tps], float)
    usual = np.nanmedian(seconds_per_record) if np.isfinite(seconds_per_record).any() else None
    rank = np.argsort(member_order(*zip(*((m.member_id, m.instance_id) for m in group.members), strict=True)))
    layouts: dict[tuple[object, ...], tuple[dict[str, object], Int32, Int64]] = {}
    for row, number in enumerate(chosen):
        now = timeline.rebalances[number].now
        order = np.argsort(rank[now.member])
        member, subscription = now.member[order], now.subscription[order]
        members = [group.members[m] for m in member.tolist()]
        used = tuple(dict.fromkeys(subscription.tolist()))
        key = (used, counts[row].tobytes())
        if key not in layouts:
            layouts[key] = _layout(group, used, counts[row], first)
        layout, number_of, place = layouts[key]
        lag, seconds = None, None
        if is_known[row]:
            lag = lags[place, row]
            seconds = (
                None
                if usual is None
                else lag * np.where(np.isnan(seconds_per_record), usual, seconds_per_record)[place]
            )
        problem = layout | {
            "members": tuple([entry.member_id for entry in members]),
            "instances": tuple([entry.instance_id for entry in members]),
            "subscription_of": number_of[subscription],
            "generation": np.zeros(len(members), np.int32),
            "user_data": (None,) * len(members),
            "member_racks": (None,) * len(members),
            "lag": lag,
            "capacity": now.capacity[order] if (now.capacity > 1).any() else None,
        }
        yield _Step(now, problem, place, timeline.name_of[np.concatenate((member, _NOBODY))], seconds)


def _layout(
    group: Generations, used: Sequence[int], counts: Int64, first: Int64
) -> tuple[dict[str, object], Int32, Int64]:
    """Return the problem of a member for each subscription that is used, [subscriptions] the number of each in it, and
    [partitions] the number of each partition over all steps.
    """
    no_rows, size = np.zeros(0, np.int32), len(used)
    layout = Problem.from_columns(
        members=[f"{number:09}" for number in range(size)],
        instances=[None] * size,
        member_racks=[None] * size,
        topics=group.topics,
        counts=counts,
        subscriptions=[group.subscriptions[number] for number in used],
        subscription_of=np.arange(size, dtype=np.int32),
        generation=np.zeros(size, np.int32),
        claim_member=no_rows,
        claim_topic=no_rows,
        claim_number=no_rows,
        group_generation=1,
    )
    number_of = np.zeros(len(group.subscriptions), np.int32)
    number_of[list(used)] = layout.subscription_of
    starts: Int64 = first[[group.topics.index(topic) for topic in layout.topics]]
    kept = {
        field.name: getattr(layout, field.name) for field in fields(layout) if field.name not in ("claims", "settling")
    }
    return kept, number_of, np.repeat(starts, layout.counts) + layout.number_of()


def _replay(assignor: Assignor, steps: Sequence[_Step]) -> Iterator[tuple[float | None, ...]]:
    """Yield the numbers of each step, from `members` on."""
    is_eager = RebalanceProtocol.COOPERATIVE not in assignor.supported_protocols
    size = max((int(step.place.max(initial=-1)) + 1 for step in steps), default=0)
    owner = np.full(size, NO_OWNER, np.int32)
    number_of = np.full(max((int(step.name.max()) + 1 for step in steps), default=0) + 1, NO_OWNER, np.int32)
    for step in steps:
        before = owner[step.place]
        number_of[step.name[:-1]] = np.arange(len(step.name) - 1)
        claimed = number_of[before]
        stopped = int(np.count_nonzero(claimed >= 0)) if is_eager else 0
        rounds = 0
        while True:
            rounds += 1
            partition = (claimed >= 0).nonzero()[0]
            claims = Claims(claimed[partition], partition)
            plan = make_plan(assignor, Problem(**step.problem, claims=claims, settling=rounds > 1))
            waits = int(np.count_nonzero(plan.withheld))
            if not waits or rounds == _MOST_ROUNDS:
                break
            stopped += waits
            claimed = plan.given
        number_of[step.name] = NO_OWNER
        owner.fill(NO_OWNER)
        owner[step.place] = after = step.name[plan.owner]
        moved = int(np.count_nonzero((before >= 0) & (after >= 0) & (after != before)))
        loads = plan.loads()
        counted = (len(loads), len(before), moved, rounds, stopped, int(loads.min()), int(loads.max()))
        yield (*counted, *_lag(plan, step))


def _lag(plan: Plan, step: _Step) -> tuple[float | None, float | None]:
    if plan.problem.lag is None:
        return None, None
    owned, size = plan.owner >= 0, len(plan.problem.members)
    of_member = np.bincount(plan.owner[owned], plan.problem.lag[owned], size)
    drain = None if step.seconds is None else float(np.bincount(plan.owner[owned], step.seconds[owned], size).max())
    return float(of_member.max() - of_member.min()), drain
