"""Exchanges between two members that even out lag and keep every guarantee on counts.

Three kinds are allowed: two partitions of one topic are swapped; an extra of one topic is swapped for an extra of
another; an extra passes to a member whose total may grow by one without loss of fairness. The best exchange brings the
lag of the two members closest together. It is found without a loop over pairs of partitions: for each partition of the
fuller member, a search finds the partition of the emptier one whose lag is less by about half the difference.
"""

from typing import NamedTuple

import numpy as np

from roster.assignors.lag.shares import Shares, fullness
from roster.model import Problem
from roster.model.arrays import Bool, Float64, Int32, Int64

NOTHING = -1
"""Stands for the partition that comes back, in an exchange where none does."""

NEAR_ENOUGH = 1.001
"""Multiple of the lower bound at which smoothing ends: further exchanges gain too little."""

_ROUNDS = 64
_FRUITLESS = 6
_PARTNERS = 64
_STEPS = 128


class Exchange(NamedTuple):
    """Best exchange for each pair of members.

    goes: partition that the fuller member gives up. comes: partition that it gets, or NOTHING. gain: how much lower the
    greater lag of the two members is afterwards, per unit of capacity; 0 if no exchange helps.
    """

    goes: Int64
    comes: Int64
    gain: Float64


class Exchanges:
    """An assignment whose lag is being evened out.

    owner: [partitions] all owned; changed in place. movable: [partitions] True if it may move; None: all may.
    """

    def __init__(self, problem: Problem, shares: Shares, lag: Int64, owner: Int32, movable: Bool | None = None) -> None:
        members = len(problem.members)
        self.shares, self.lag, self.owner, self.movable = shares, lag, owner, movable
        self._topic_of = problem.topic_of()
        order = np.argsort(owner.astype(np.uint16) if members < 0xFFFF else owner, kind="stable")
        self.count = np.bincount(owner, minlength=members)
        self._items = np.split(order, np.cumsum(self.count)[:-1]) if members else []
        self.load = np.zeros(members, dtype=np.int64)
        np.add.at(self.load, owner, lag)
        self._lags = np.unique(np.append(lag, 0))
        self._rank = np.searchsorted(self._lags, lag)
        self._in_class: list[Int64] = shares.consumers

    def relative(self) -> Float64:
        """Return [members] the lag per unit of capacity."""
        return np.asarray(self.load / self.shares.weight, dtype=np.float64)

    def fullest(self) -> float:
        """Return the greatest relative lag."""
        return float(self.relative().max(initial=0.0))

    def best(self, high: Int64, low: Int64) -> Exchange:
        """Return the best exchange for each pair of a fuller and an emptier member."""
        shares, lag = self.shares, self.lag
        goes, goes_pair = self._gather(high)
        comes, comes_pair = self._gather(low)
        topics = len(shares.class_of)
        cell = np.concatenate((goes_pair, comes_pair)) * topics
        cell += np.concatenate((self._topic_of[goes], self._topic_of[comes]))
        cells, cell_of = np.unique(cell, return_inverse=True)
        of_goes, of_comes = cell_of[: len(goes)], cell_of[len(goes) :]
        h_gives, l_gives = self._extras(cells % topics, high[cells // topics], low[cells // topics], of_goes, of_comes)

        trade_goes, trade_comes = np.flatnonzero(h_gives[of_goes]), np.flatnonzero(l_gives[of_comes])
        weight = shares.weight
        alone = fullness(self.count[high] - 1, weight[high]) >= fullness(self.count[low], weight[low])
        pairs = np.arange(len(high))
        side_a = _Side(
            np.concatenate((of_goes, len(cells) + goes_pair[trade_goes])),
            np.concatenate((goes, goes[trade_goes])),
            np.concatenate((goes_pair, goes_pair[trade_goes])),
        )
        side_b = _Side(
            np.concatenate((of_comes, len(cells) + comes_pair[trade_comes], len(cells) + pairs[alone])),
            np.concatenate((comes, comes[trade_comes], np.full(int(alone.sum()), NOTHING))),
            np.concatenate((comes_pair, comes_pair[trade_comes], pairs[alone])),
        )
        if self.movable is not None:
            side_a = side_a.where(self.movable[side_a.partition])
            side_b = side_b.where((side_b.partition == NOTHING) | self.movable[side_b.partition])
        if not len(side_a.group) or not len(side_b.group):
            return self._no_exchange(len(high))

        size = len(self._lags) + 1
        b_lag = np.where(side_b.partition == NOTHING, 0, lag[side_b.partition])
        b_rank = np.where(side_b.partition == NOTHING, 0, self._rank[side_b.partition])
        b_key = side_b.group * size + b_rank
        by_key = np.argsort(b_key, kind="stable")
        b_key, b_lag, b_partition = b_key[by_key], b_lag[by_key], side_b.partition[by_key]
        load_h, load_l = self.load[high], self.load[low]
        weight_h, weight_l = weight[high], weight[low]
        half_gap = (load_h * weight_l - load_l * weight_h) / (weight_h + weight_l)
        wanted = lag[side_a.partition] - half_gap[side_a.pair]
        nearest = np.searchsorted(b_key, side_a.group * size + np.searchsorted(self._lags, wanted))
        a = np.tile(np.arange(len(nearest)), 2)
        b = np.concatenate((nearest, nearest - 1))
        inside = (b >= 0) & (b < len(b_key))
        a, b = a[inside], b[inside]
        same = b_key[b] // size == side_a.group[a]
        a, b = a[same], b[same]
        pair = side_a.pair[a]
        shift = lag[side_a.partition[a]] - b_lag[b]
        before = load_h[pair] / weight_h[pair]
        after = np.maximum((load_h[pair] - shift) / weight_h[pair], (load_l[pair] + shift) / weight_l[pair])
        helps = (shift > 0) & (after < before)
        a, b, pair, gain = a[helps], b[helps], pair[helps], (before - after)[helps]
        return self._pick(len(high), pair, side_a.partition[a], b_partition[b], gain)

    def _extras(self, topic: Int64, high: Int64, low: Int64, of_goes: Int64, of_comes: Int64) -> tuple[Bool, Bool]:
        """([cells] the fuller may give the emptier an extra of the topic, [cells] the other way round)."""
        shares = self.shares
        has_high = np.bincount(of_goes, minlength=len(topic))
        has_low = np.bincount(of_comes, minlength=len(topic))
        least_high, least_low = shares.least(topic, high), shares.least(topic, low)
        h_gives = (has_high == least_high + 1) & (has_low == least_low) & shares.may_have_extra(topic, low)
        l_gives = (has_low == least_low + 1) & (has_high == least_high) & shares.may_have_extra(topic, high)
        h_gives &= shares.subscribe(low, topic)
        l_gives &= shares.subscribe(high, topic)
        return h_gives, l_gives

    def _gather(self, members: Int64) -> tuple[Int64, Int64]:
        """(everything the members own, the place in `members` of each one's owner)."""
        items = [self._items[m] for m in members.tolist()]
        sizes = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
        together = np.concatenate(items) if items else np.zeros(0, dtype=np.int64)
        return together.astype(np.int64, copy=False), np.repeat(np.arange(len(items)), sizes)

    def _pick(self, size: int, pair: Int64, goes: Int64, comes: Int64, gain: Float64) -> Exchange:
        result = self._no_exchange(size)
        order = np.lexsort((comes, goes, -gain, pair))
        pair = pair[order]
        first = order[np.flatnonzero(np.append(True, pair[1:] != pair[:-1]))] if len(order) else order
        pairs = pair[np.flatnonzero(np.append(True, pair[1:] != pair[:-1]))] if len(order) else pair
        result.goes[pairs], result.comes[pairs], result.gain[pairs] = goes[first], comes[first], gain[first]
        return result

    @staticmethod
    def _no_exchange(size: int) -> Exchange:
        return Exchange(np.full(size, NOTHING), np.full(size, NOTHING), np.zeros(size))

    def carry_out(self, high: int, low: int, goes: int, comes: int) -> None:
        """Apply an exchange between two members."""
        shift = int(self.lag[goes])
        self.owner[goes] = low
        items_of_high, items_of_low = self._items[high], self._items[low]
        items_of_high, items_of_low = items_of_high[items_of_high != goes], np.append(items_of_low, goes)
        if comes != NOTHING:
            shift -= int(self.lag[comes])
            self.owner[comes] = high
            items_of_high, items_of_low = np.append(items_of_high, comes), items_of_low[items_of_low != comes]
        else:
            self.count[high] -= 1
            self.count[low] += 1
        self._items[high], self._items[low] = items_of_high, items_of_low
        self.load[high] -= shift
        self.load[low] += shift

    def step(self, least_gain: float, cost: float) -> int:
        """Relieve the fullest member by the best exchange with one of the emptiest it shares a topic with.

        The exchange must gain at least `least_gain`, and `cost` for each partition in it. Returns how many partitions
        changed hands, 0 when no exchange is good enough.
        """
        relative = self.relative()
        fullest = int(np.argmax(relative))
        classes = np.unique(self.shares.class_of[self._topic_of[self._items[fullest]]])
        if not len(classes):
            return 0
        partners = self._in_class[classes[0]]
        if len(classes) > 1:
            partners = np.unique(np.concatenate([self._in_class[c] for c in classes.tolist()]))
        partners = partners[partners != fullest]
        partners = partners[np.argsort(relative[partners], kind="stable")][:_PARTNERS]
        exchange = self.best(np.full(len(partners), fullest), partners)
        moved = np.where(exchange.comes == NOTHING, 1, 2)
        worth = np.where(
            (exchange.gain > 0) & (exchange.gain >= np.maximum(least_gain, cost * moved)), exchange.gain, 0.0
        )
        if not len(worth) or worth.max() == 0:
            return 0
        chosen = int(np.argmax(worth))
        self.carry_out(fullest, int(partners[chosen]), int(exchange.goes[chosen]), int(exchange.comes[chosen]))
        return int(moved[chosen])

    def smooth(self, bound: float) -> None:
        """Exchange partitions until the fullest member is near the lower bound or no exchange helps.

        Many pairs of members at once first, then the fullest member alone.
        """
        busy = self.shares.busy
        enough = bound * NEAR_ENOUGH
        if self.fullest() <= enough or len(busy) < 2:
            return
        fruitless = 0
        for _ in range(_ROUNDS):
            relative = self.relative()[busy]
            order = np.argsort(relative, kind="stable")
            half = len(order) // 2
            stride = max(1, half // _FRUITLESS)
            over = int(np.count_nonzero(relative > enough))
            size = min(over, half)
            if not size or fruitless == _FRUITLESS:
                break
            high = busy[order[::-1][:size]]
            low = busy[order[(np.arange(size) + fruitless * stride) % half]]
            exchange = self.best(high, low)
            useful = np.flatnonzero(exchange.gain > 0).tolist()
            for i in useful:
                self.carry_out(int(high[i]), int(low[i]), int(exchange.goes[i]), int(exchange.comes[i]))
            fruitless = 0 if useful else fruitless + 1
        for _ in range(_STEPS):
            if self.fullest() <= enough or not self.step(0.0, 0.0):
                return


class _Side(NamedTuple):
    """Partitions of one side of many exchanges; partitions that may be swapped for each other share a group."""

    group: Int64
    partition: Int64
    pair: Int64

    def where(self, keep: Bool) -> "_Side":
        return _Side(self.group[keep], self.partition[keep], self.pair[keep])


def lower_bound(problem: Problem, shares: Shares, lag: Int64) -> float:
    """Return a lower bound on the lag per unit of capacity of the fullest member, for evenly spread topics.

    The greatest of: total lag by total capacity; for each class of topics, the lag of all topics whose subscribers are
    among those of the class, by the capacity of these subscribers; the biggest partition by the largest capacity of its
    subscribers; and, if all capacities are 1, that partition plus the least lag that its owner must have beside it.
    """
    if not len(lag):
        return 0.0
    begin, topics = problem.first[:-1], len(problem.topics)
    of_topic, biggest = np.add.reduceat(lag, begin), np.maximum.reduceat(lag, begin)
    classes = len(shares.consumers)
    of_class = np.zeros(classes, dtype=np.int64)
    np.add.at(of_class, shares.class_of, of_topic)
    within = of_class.astype(np.float64)
    if classes <= 64:  # comparisons grow with the square of the classes
        sets = [frozenset(shares.classes.subscriptions(c).tolist()) for c in range(classes)]
        within = np.array([sum(int(of_class[o]) for o in range(classes) if sets[o] <= sets[c]) for c in range(classes)])
    bounds = [float((within / shares.class_weight).max()), float(lag.sum() / shares.weight[shares.busy].sum())]
    most = np.array([shares.weight[group].max() for group in shares.consumers])
    bounds.append(float((biggest / most[shares.class_of]).max()))
    if (shares.weight == 1).all():
        least = problem.counts // shares.topic_weight
        ascending = lag[np.lexsort((lag, problem.topic_of()))]
        upto = np.append(0, np.cumsum(ascending))
        beside = upto[begin + least] - upto[begin]
        without_one = upto[begin + np.maximum(least - 1, 0)] - upto[begin]
        of_subscription = np.array([beside[subscribed].sum() for subscribed in problem.subscriptions])
        poorest = np.array([of_subscription[shares.classes.subscriptions(c)].min() for c in range(classes)])
        alone = poorest[shares.class_of] - np.where(least > 0, beside - without_one, 0)
        bounds.append(float((biggest + alone).max()) if topics else 0.0)
    return max(bounds)
