"""Completion of an assignment: each topic spread evenly, and lag as evenly as that allows.

Members keep as many of their partitions as the counts allow. The other partitions of each topic are dealt in order of
decreasing lag: each goes to the member with fewest partitions of the topic, and among equals to the one with least lag
so far (KIP-169). Members with equally few get one each before any gets a second, so a topic is dealt in waves, one
numpy step each: the biggest partition of a wave goes to the member with least lag, and so on.
"""

from zlib import crc32

import numpy as np

from roster.assignors.arrays import rank_within
from roster.assignors.lag.exchange import Exchanges
from roster.assignors.lag.shares import Shares, fullness, level
from roster.model import NO_OWNER, Problem
from roster.model.arrays import Bool, Float64, Int32, Int64

_FEW = 24
"""Up to so many members, Python deals a wave faster than numpy."""


def complete(problem: Problem, shares: Shares, lag: Int64, owner_before: Int32, bound: float) -> Int32:
    """Return [partitions] the owners, with counts by `Shares` and the fairest totals.

    Owned partitions stay where they are if counts allow it. `bound`: lag at which smoothing may end.
    """
    placing = _Placing(problem, shares, lag, owner_before)
    if placing.settled:
        return placing.owner
    placing.fill()
    placing.hand_out_extras()
    placing.level()
    movable = placing.owner != owner_before
    if movable.any():
        Exchanges(problem, shares, lag, placing.owner, None if movable.all() else movable).smooth(bound)
    return placing.owner


class _Placing:
    """owner: [partitions] so far. load: [members] lag so far. count: [members] partitions in the whole assignment."""

    def __init__(self, problem: Problem, shares: Shares, lag: Int64, owner_before: Int32) -> None:
        self.problem, self.shares, self.lag = problem, shares, lag
        self.topic_of = problem.topic_of()
        self.members, self.topics = len(problem.members), len(problem.topics)
        self.owner = owner_before.copy()
        owned = np.flatnonzero(owner_before >= 0)
        self.owner[owned[~shares.subscribe(owner_before[owned], self.topic_of[owned])]] = NO_OWNER
        self._keep()
        self.load = np.zeros(self.members, dtype=np.int64)
        owned = np.flatnonzero(self.owner >= 0)
        np.add.at(self.load, self.owner[owned], lag[owned])
        self.free = np.flatnonzero(self.owner < 0)
        self.settled = not len(self.free) and self._totals_fairest()
        self.extras: list[tuple[int, Int64]] = []
        self.given: dict[int, tuple[Int64, Int64]] = {}
        """{topic: (members that have just received an extra, the partitions)}."""

    def _keep(self) -> None:
        """Decide how many partitions of each topic every member keeps; unassign the rest."""
        owned = np.flatnonzero(self.owner >= 0)
        pairs, pair_of, had = np.unique(
            self.topic_of[owned] * np.int64(self.members) + self.owner[owned], return_inverse=True, return_counts=True
        )
        topic, member = pairs // self.members, pairs % self.members
        least = self.shares.least(topic, member)
        willing = (had > least) & self.shares.may_have_extra(topic, member)
        self.count = self.shares.base()
        spare = self._spare()
        contended = np.bincount(topic[willing], minlength=self.topics) > spare
        keeps = willing & ~contended[topic]
        np.add.at(self.count, member[keeps], 1)
        begin = np.searchsorted(topic, np.arange(self.topics + 1))
        for t in np.flatnonzero(contended).tolist():
            rows = np.arange(begin[t], begin[t + 1])[willing[begin[t] : begin[t + 1]]]
            claimants = member[rows]
            rows = rows[
                np.argsort(fullness(self.count[claimants], self.shares.weight[claimants]), kind="stable")[
                    : int(spare[t])
                ]
            ]
            keeps[rows] = True
            self.count[member[rows]] += 1
        self.keepers = [member[begin[t] : begin[t + 1]][keeps[begin[t] : begin[t + 1]]] for t in range(self.topics)]
        kept = np.minimum(had, least + keeps)
        if (kept < had).any():
            self._give_up(owned, pair_of, had - kept, member)
        self._kept_of, self._kept_by, self._kept_begin = kept, member, begin

    def _spare(self) -> Int64:
        """Return [topics] the number of extras."""
        counts, weight = self.problem.counts, self.shares.topic_weight
        if (self.shares.weight == 1).all():
            return np.asarray(counts % np.maximum(weight, 1), dtype=np.int64)
        known: dict[int, int] = {}
        spare = []
        for t, count in enumerate(counts.tolist()):
            least = self.shares.quota(t)[0]
            spare.append(count - known.setdefault(id(least), int(least.sum())))
        return np.array(spare, dtype=np.int64)

    def _give_up(self, owned: Int64, pair_of: Int64, surplus: Int64, member: Int64) -> None:
        """Unassign each member's surplus: the partitions whose loss brings its lag closest to the mean."""
        load = np.zeros(self.members, dtype=np.int64)
        np.add.at(load, self.owner[owned], self.lag[owned])
        weight = self.shares.weight
        fair = load.sum() * (weight / max(int(weight[self.shares.busy].sum()), 1))
        leaving = np.bincount(member, weights=surplus, minlength=self.members)
        share = np.maximum(load - fair, 0) / np.maximum(leaving, 1)
        rows = np.flatnonzero(surplus[pair_of] > 0)
        partition, pair = owned[rows], pair_of[rows]
        order = np.lexsort((-partition, np.abs(self.lag[partition] - share[self.owner[partition]]), pair))
        partition, pair = partition[order], pair[order]
        self.owner[partition[rank_within(pair, len(surplus)) < surplus[pair]]] = NO_OWNER

    def _totals_fairest(self) -> bool:
        """Return True if no extra can be passed on to make totals fairer."""
        self.extras, self.given = [], {}
        before = self.owner.copy()
        self.level()
        return bool((before == self.owner).all())

    # Free partitions.

    def fill(self) -> None:
        """Give every member its minimum of every topic; `extras` is the rest."""
        lag, free = self.lag, self.free
        free = free[np.lexsort((-lag[free], self.topic_of[free]))]
        begin = np.searchsorted(self.topic_of[free], np.arange(self.topics + 1))
        waiting = np.flatnonzero(np.diff(begin))
        heaviest_first = waiting[np.argsort(-lag[free[begin[waiting]]], kind="stable")]
        had = np.zeros(self.members, dtype=np.int64)
        self.heaviest = int(heaviest_first[0]) if len(heaviest_first) else NO_OWNER
        for t in heaviest_first.tolist():
            partitions = free[begin[t] : begin[t + 1]]
            consumers = self.shares.consumers[self.shares.class_of[t]]
            rows = slice(self._kept_begin[t], self._kept_begin[t + 1])
            had[self._kept_by[rows]] = self._kept_of[rows]
            room = self.shares.quota(t)[0] - had[consumers]
            had[self._kept_by[rows]] = 0
            np.maximum(room, 0, out=room)
            size = int(room.sum())
            if size:
                self._deal(t, partitions[:size], consumers, room)
            if size < len(partitions):
                self.extras.append((t, partitions[size:]))

    def _deal(self, topic: int, partitions: Int64, consumers: Int64, room: Int64) -> None:
        """Deal partitions, by decreasing lag, to members with room."""
        members = np.flatnonzero(room)
        turn = self._tie_order(topic, len(consumers), unless=self.heaviest)[members]
        members, room = consumers[members], room[members]
        if len(members) == 1:
            self.owner[partitions] = members[0]
            self.load[members[0]] += int(self.lag[partitions].sum())
            return
        order = np.lexsort((turn, fullness(self.count[members], self.shares.weight[members])))
        members, room = members[order], room[order]
        rounds = int(room.max())
        if int(room.min()) == rounds:
            waves = [members] * rounds
        else:
            slot = np.repeat(np.arange(len(room)), room)
            nth = np.arange(len(slot)) - np.repeat(np.cumsum(room) - room, room)
            number = (2 * nth + 1) * rounds // (2 * room[slot])
            by_wave = np.argsort(number, kind="stable")
            cuts = np.flatnonzero(np.diff(number[by_wave])) + 1
            waves = np.split(members[slot[by_wave]], cuts)
        dealt_before = 0
        for wave in waves:
            dealt = partitions[dealt_before : dealt_before + len(wave)]
            dealt_before += len(dealt)
            takers = self._emptiest_first(wave) if self.lag[dealt[0]] > 0 else wave
            self.owner[dealt] = takers
            self.load[takers] += self.lag[dealt]

    def _emptiest_first(self, members: Int64) -> Int64:
        """Return the members by lag so far per unit of capacity; equal ones keep their order."""
        relative = self._relative(members)
        if len(members) <= _FEW:
            loads = relative.tolist()
            return members[sorted(range(len(loads)), key=loads.__getitem__)]
        return np.asarray(members[np.argsort(relative, kind="stable")])

    def _tie_order(self, topic: int, size: int, *, unless: int = NO_OWNER) -> Int64:
        """Return [subscribers] the order that breaks ties.

        It is rotated by the topic's name, so that no member comes first in every topic; topic `unless` is not rotated.
        """
        turn = 0 if topic == unless else crc32(self.problem.topics[topic].encode("utf-8", "surrogatepass"))
        return (np.arange(size) - turn) % size

    def hand_out_extras(self) -> None:
        """Give each extra to a subscriber without one: to the one with fewest partitions in total, then least lag."""
        consumers = self.shares.consumers
        class_of = self.shares.class_of
        for t, partitions in sorted(
            self.extras, key=lambda e: (len(consumers[class_of[e[0]]]), -int(self.lag[e[1][0]]), e[0])
        ):
            group, (_, may) = consumers[class_of[t]], self.shares.quota(t)
            may = may.copy()
            may[np.searchsorted(group, self.keepers[t])] = False
            members, turn = group[may], self._tie_order(t, len(group))[may]
            chosen = self._emptiest(members, turn, len(partitions))
            self.owner[partitions] = chosen
            self.load[chosen] += self.lag[partitions]
            self.count[chosen] += 1
            self.given[t] = chosen, partitions

    def _emptiest(self, members: Int64, turn: Int64, size: int) -> Int64:
        """Return `size` members: those with fewest partitions, then least lag; ordered by lag."""
        count, relative = fullness(self.count[members], self.shares.weight[members]), self._relative(members)
        if size == 1:
            best = np.flatnonzero(count == count.min())
            best = best[relative[best] == relative[best].min()]
            return np.asarray(members[best[[np.argmin(turn[best])]]])
        order = np.lexsort((turn, relative, count))[:size]
        return np.asarray(members[order[np.lexsort((turn[order], relative[order]))]])

    def _relative(self, members: Int64) -> Float64:
        return np.asarray(self.load[members] / self.shares.weight[members], dtype=np.float64)

    def level(self) -> None:
        """Pass extras on until totals are fairest: those without an owner first, owned ones only if needed."""
        consumers, class_of = self.shares.consumers, self.shares.class_of
        for every in (False, True):
            topics = range(self.topics) if every else sorted(self.given)
            eligible: list[Int64] = []
            has: list[Bool] = []
            touched: list[int] = []
            for t in topics:
                group, (_, may) = consumers[class_of[t]], self.shares.quota(t)
                if not may.any():
                    continue
                extras = self.given[t][0] if t in self.given else np.zeros(0, dtype=np.int64)
                if not every:
                    may = may.copy()
                    may[np.searchsorted(group, self.keepers[t])] = False
                    having = extras
                else:
                    having = np.concatenate((extras, self.keepers[t]))
                members = group[may]
                mask = np.zeros(len(members), dtype=np.bool_)
                mask[np.searchsorted(members, having)] = True
                eligible.append(members)
                has.append(mask)
                touched.append(t)
            before = [mask.copy() for mask in has]
            level(eligible, has, self.count, self.shares.weight, self.load)
            for t, members, was, now in zip(touched, eligible, before, has, strict=True):
                if (was != now).any():
                    self._pass_extras(t, members[was & ~now], members[now & ~was])

    def _pass_extras(self, topic: int, givers: Int64, takers: Int64) -> None:
        begin, end = self.problem.first[topic : topic + 2]
        extras, parts = self.given.get(topic, (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)))
        extras = extras.copy()
        for giver, taker in zip(givers.tolist(), takers.tolist(), strict=True):
            places = np.flatnonzero(extras == giver)
            if len(places):
                partition = int(parts[places[0]])
                extras[places[0]] = taker
            else:
                own = begin + np.flatnonzero(self.owner[begin:end] == giver)
                partition = int(own[np.lexsort((-own, self.lag[own]))[0]])
                self.keepers[topic] = self.keepers[topic][self.keepers[topic] != giver]
                extras, parts = np.append(extras, taker), np.append(parts, partition)
            self.owner[partition] = taker
            self.load[giver] -= self.lag[partition]
            self.load[taker] += self.lag[partition]
        self.given[topic] = extras, parts
