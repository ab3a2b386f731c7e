"""Proof that a plan is as balanced as possible and moves as few partitions as possible.

The proof shares no code with the assignors and makes no plan of its own. It answers three questions about a plan:

valid: does every partition of a subscribed topic have one owner, which subscribes to the topic?

balanced: can any member pass load on, partition by partition, to a member with at least two partitions fewer? If none
can, the loads are lexicographically fairest (Harvey, Ladner, Lovasz and Tamir, Semi-matchings for bipartite graphs,
2006).

fewest: does a cycle of exchanges exist that keeps all loads and leaves more partitions with their present owner (or,
where racks matter, in a rack with a replica)? Such a cycle is a negative cycle in the graph of possible exchanges. If
there is none, no plan with these loads moves fewer partitions.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from roster.model import NO_OWNER, Plan, Problem
from roster.model.arrays import Int32, Int64


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of `verify`; `flaw` says what a better plan would improve, "" if no plan is better."""

    valid: bool
    balanced: bool
    fewest: bool
    flaw: str = ""

    @property
    def ok(self) -> bool:
        """True if the plan is valid, balanced, and moves the fewest partitions."""
        return self.valid and self.balanced and self.fewest


def verify(problem: Problem, plan: Plan) -> Proof:
    """Check a plan against its problem, in time proportional to subscriptions and claims."""
    if flaw := _invalid(problem, plan):
        return Proof(valid=False, balanced=False, fewest=False, flaw=flaw)
    if flaw := _unbalanced(problem, plan):
        return Proof(valid=True, balanced=False, fewest=False, flaw=flaw)
    flaw = _needless_move(problem, plan)
    return Proof(valid=True, balanced=True, fewest=not flaw, flaw=flaw)


def _invalid(problem: Problem, plan: Plan) -> str:
    if len(plan.owner) != problem.partition_count:
        return "the plan is for other partitions"
    subscribed = [set(topics.tolist()) for topics in problem.subscriptions]
    pairs = np.unique(plan.owner.astype(np.int64) * len(problem.topics) + problem.topic_of())
    for pair in pairs.tolist():
        member, topic = divmod(pair, len(problem.topics))
        if member == NO_OWNER:
            return f"a partition of {problem.topics[topic]} has no owner"
        if topic not in subscribed[problem.subscription_of[member]]:
            return f"{problem.members[member]} owns a partition of {problem.topics[topic]} and does not subscribe to it"
    return ""


def _unbalanced(problem: Problem, plan: Plan) -> str:
    """Search from each member, the fullest first, so a member is first reached from the fullest that can reach it."""
    loads = plan.loads().tolist()
    owned = np.unique(plan.owner.astype(np.int64) * len(problem.topics) + problem.topic_of()).tolist()
    owns = _lists(len(problem.members), (divmod(pair, len(problem.topics)) for pair in owned))
    with_topic = _lists(
        len(problem.topics), ((topic, s) for s, topics in enumerate(problem.subscriptions) for topic in topics.tolist())
    )
    with_subscription = _lists(
        len(problem.subscriptions), ((s, member) for member, s in enumerate(problem.subscription_of.tolist()))
    )
    met = [False] * len(loads)
    for fullest in sorted(range(len(loads)), key=lambda m: -loads[m]):
        stack = [fullest]
        while stack:
            member = stack.pop()
            if met[member]:
                continue
            met[member] = True
            if loads[member] <= loads[fullest] - 2:
                names = problem.members
                return (
                    f"{names[fullest]} has {loads[fullest]}, {names[member]} {loads[member]}, and load can be passed on"
                )
            for topic in owns[member]:
                for subscription in with_topic[topic]:
                    stack += with_subscription[subscription]
                    with_subscription[subscription] = []  # all these members have been visited or are on the stack
                with_topic[topic] = []
    return ""


def _lists(size: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Group pairs (key in 0..size-1, value) into a list of values per key."""
    lists: list[list[int]] = [[] for _ in range(size)]
    for key, value in pairs:
        lists[key].append(value)
    return lists


def _needless_move(problem: Problem, plan: Plan) -> str:
    """Look for a cycle of exchanges with negative cost (Bellman-Ford); return what it improves, "" if there is none.

    Nodes are rows (a topic's partitions in the same racks), subscriptions in one rack, members, and loads. An arc from
    a member to a row gives up a partition. An arc from a row to a member, directly or through its subscription, takes
    one. A path through node "load n" swaps the loads of a member with n partitions and a member with n + 1.
    """
    racks, members, loads = problem.racks, len(problem.members), plan.loads().tolist()
    sets = 1 if racks is None else len(racks.sets)
    rows = len(problem.topics) * sets
    row_of = problem.topic_of().astype(np.int64) * sets + (0 if racks is None else racks.set_of)
    subscribed = [set(topics.tolist()) for topics in problem.subscriptions]
    subscription_of = problem.subscription_of.tolist()
    fits = np.ones((members, sets), dtype=np.bool_)
    if racks is not None:
        busy = [m for m in range(members) if subscribed[subscription_of[m]]]
        if racks.tells_apart(busy):
            fits = racks.suits()

    owned = _count(plan.owner, row_of, rows)
    owned_before = _count(plan.owner_before, row_of, rows)
    kept = _count(np.where(plan.owner == plan.owner_before, plan.owner, NO_OWNER), row_of, rows)
    swapped = next((pair for pair, n in owned_before.items() if kept.get(pair, 0) < min(n, owned.get(pair, 0))), None)
    if swapped is not None:
        name, topic = problem.members[swapped // rows], problem.topics[swapped % rows // sets]
        return f"{name} swaps partitions of {topic} for others"

    kind_of = list(zip(subscription_of, [None] * members if racks is None else racks.member, strict=True))
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(kind_of))}
    example = [kind_of.index(kind) for kind in kinds]
    member_at, kind_at, load_at = rows, rows + members, rows + members + len(kinds)
    nodes = load_at + max(loads, default=0) + 2
    wrong_rack = nodes + 1
    arcs: list[tuple[int, int, int]] = []
    for pair, number in owned.items():
        member, row = divmod(pair, rows)
        right = wrong_rack * int(fits[member, row % sets])
        arcs.append((member_at + member, row, int(number <= owned_before.get(pair, 0)) + right - wrong_rack))
    for pair, number in owned_before.items():
        member, row = divmod(pair, rows)
        if number > owned.get(pair, 0) and row // sets in subscribed[subscription_of[member]]:
            arcs.append((row, member_at + member, wrong_rack * int(not fits[member, row % sets]) - 1))
    for member, (kind, load) in enumerate(zip(kind_of, loads, strict=True)):
        arcs.append((kind_at + kinds[kind], member_at + member, 0))
        arcs += [(member_at + member, load_at + load + 1, 0), (load_at + load, member_at + member, 0)]
    present = np.unique(row_of)
    for (subscription, _), kind_number in kinds.items():
        of_kind = fits[example[kind_number]]
        for row in present[np.isin(present // sets, problem.subscriptions[subscription])].tolist():
            arcs.append((row, kind_at + kind_number, wrong_rack * int(not of_kind[row % sets])))
    return "some partitions could stay where they are" if _negative_cycle(nodes, np.array(arcs, dtype=np.int64)) else ""


def _count(member: Int32, row_of: Int64, rows: int) -> dict[int, int]:
    """Return {member * rows + row: number of partitions}, without unowned partitions."""
    pairs, counts = np.unique((member * np.int64(rows) + row_of)[member != NO_OWNER], return_counts=True)
    return dict(zip(pairs.tolist(), counts.tolist(), strict=True))


def _negative_cycle(nodes: int, arcs: Int64) -> bool:
    tail, head, cost = arcs.reshape(-1, 3).T
    price = np.zeros(nodes, dtype=np.int64)
    for _ in range(nodes + 1):
        lower = price.copy()
        np.minimum.at(lower, head, price[tail] + cost)
        if (lower == price).all():
            return False
        price = lower
    return True
