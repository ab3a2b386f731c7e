"""Balance for members with different subscriptions or racks: the fairest loads, then the fewest moves.

Partitions that the same members may own, with replicas in the same racks, form a row; members with the same
subscription and rack form a class. `fair_loads` computes the loads from rows and classes alone. Then every member keeps
its partitions, and a minimum-cost flow finds those that have to move. The network has nodes for rows, classes, members,
and one for each block, from which its members get the one partition that they may have above the lower level. Its size
grows with the number of holdings (pairs of member and row), not with partitions or members x topics.
"""

from dataclasses import dataclass

import numpy as np

from roster.assignors.arrays import deal, distinct, ranges, rank_within, stable_order
from roster.assignors.min_cost_flow import UNBOUNDED, MinCostFlow
from roster.assignors.sticky.fair_loads import Levels, Table, fairest, spread
from roster.assignors.subscribers import active_members, topic_classes
from roster.model import NO_OWNER, Problem
from roster.model.arrays import Bool, Int32, Int64


def balance(problem: Problem, held: Int32, *, by_rack: bool) -> Int32:
    """Return [partitions] the owner of each, NO_OWNER for topics without subscribers.

    The loads are lexicographically fairest; given that (by_rack), most partitions have a replica in their owner's rack;
    given that, fewest partitions change owner.
    """
    exchange = _Exchange(_kinds(problem, by_rack=by_rack), held)
    return exchange.owners(problem, held)


@dataclass(frozen=True, slots=True, eq=False)
class _Kinds:
    """Rows and classes of a problem.

    row_of: [partitions] number of the row. class_of: [members] number of the class, -1 without a subscription.
    table: the cells, pairs of a row and a class whose members may own its partitions.
    off_rack: [cells] True if the class has a rack without a replica of the row's partitions.
    """

    row_of: Int64
    class_of: Int64
    table: Table
    off_rack: Bool


def _kinds(problem: Problem, *, by_rack: bool) -> _Kinds:
    topics = topic_classes(problem)
    row_of = topics.of_topic[problem.topic_of()]
    topic_class_of_row = np.arange(len(topics))
    set_of_row = np.zeros(len(topics), dtype=np.int64)
    rack_of = np.zeros(len(problem.members), dtype=np.int64)
    racks = problem.racks if by_rack else None
    if racks is not None:
        used, row_of = np.unique(row_of * len(racks.sets) + racks.set_of, return_inverse=True)
        topic_class_of_row, set_of_row = used // len(racks.sets), used % len(racks.sets)
        number = {rack: i for i, rack in enumerate(sorted({rack for rack in racks.member if rack is not None}), 1)}
        rack_of += [0 if rack is None else number[rack] for rack in racks.member]

    busy = active_members(problem)
    kind = problem.subscription_of[busy] * (rack_of.max(initial=0) + 1) + rack_of[busy]
    class_of = np.full(len(problem.members), -1, dtype=np.int64)
    _, example, class_of[busy] = np.unique(kind, return_index=True, return_inverse=True)
    classes_of = np.bincount(problem.subscription_of[busy[example]], minlength=len(problem.subscriptions))
    first_class = np.cumsum(classes_of) - classes_of

    width = np.diff(topics.start)[topic_class_of_row]
    subscription = topics.subscription[ranges(topics.start[topic_class_of_row], width)]
    row = np.repeat(np.repeat(np.arange(len(width)), width), classes_of[subscription])
    column = ranges(first_class[subscription], classes_of[subscription])
    off_rack = np.zeros(len(row), dtype=np.bool_)
    if racks is not None:
        off_rack = ~racks.suits()[busy[example][column], set_of_row[row]]
    supply = np.bincount(row_of, minlength=len(width))
    table = Table(row, column, supply, np.bincount(class_of[busy], minlength=len(example)))
    return _Kinds(row_of, class_of, table, off_rack)


class _Exchange:
    """Decides with a minimum-cost flow how many partitions move, and chooses these partitions.

    A holding is a pair (member, row) with at least one partition that the member owns.
    """

    def __init__(self, kinds: _Kinds, has: Int32) -> None:
        table = kinds.table
        self.kinds = kinds
        self.rows, self.classes, self.members = len(table.supply), len(table.size), len(kinds.class_of)
        owned = np.flatnonzero(has >= 0)
        pair = has[owned].astype(np.int64) * self.rows + kinds.row_of[owned]
        pairs, self.holding_of_owned, self.held = distinct(pair, self.members * self.rows)
        self.owned = owned
        self.holder, self.held_row = pairs // self.rows, pairs % self.rows
        self.held_cell = self._cells()
        if (self.held_cell < 0).any():
            self._let_go(self.held_cell < 0)

    def _cells(self) -> Int64:
        """Return [holdings] the cell of its row and its member's class, -1 if the member does not subscribe."""
        table, held_class = self.kinds.table, self.kinds.class_of[self.holder]
        cells = table.row * self.classes + table.column
        wanted = self.held_row * self.classes + held_class
        place = np.minimum(np.searchsorted(cells, wanted), len(cells) - 1)
        return np.where((cells[place] == wanted) & (held_class >= 0), place, -1)

    def _let_go(self, gone: Bool) -> None:
        """Remove the holdings where `gone` is True; their partitions have no owner then."""
        stays = ~gone[self.holding_of_owned]
        number = np.cumsum(~gone) - 1
        self.owned, self.holding_of_owned = self.owned[stays], number[self.holding_of_owned[stays]]
        self.holder, self.held_row, self.held_cell, self.held = (
            column[~gone] for column in (self.holder, self.held_row, self.held_cell, self.held)
        )

    def owners(self, problem: Problem, has: Int32) -> Int32:
        """Return [partitions] the owner of each."""
        nothing_to_lose = not len(self.held) and not self.kinds.off_rack.any()
        levels = self._levels(wants_placed=nothing_to_lose)
        kept, row_to_class, class_to_member = (self._as_placed if nothing_to_lose else self._cheapest)(levels)
        owner = self._keep(problem, has, kept)
        self._give_out(owner, row_to_class, class_to_member)
        return owner

    def _levels(self, *, wants_placed: bool) -> Levels:
        """Return blocks and loads, computed from a placement that keeps every holding."""
        table = self.kinds.table
        placed = np.zeros(len(table.row), dtype=np.int64)
        np.add.at(placed, self.held_cell, self.held)
        left = table.supply - np.bincount(table.row, weights=placed, minlength=self.rows).astype(np.int64)
        load = np.bincount(table.column, weights=placed, minlength=self.classes).astype(np.int64)
        return fairest(table, placed + spread(table, left, load), wants_placed=wants_placed)

    def _as_placed(self, levels: Levels) -> tuple[Int64, Int64, Int64]:
        """Return the same as `_cheapest`. Without holdings and racks, any placement with these loads is cheapest."""
        table = self.kinds.table
        inside = levels.block_of_row[table.row] == levels.block_of_class[table.column]
        row_to_class = np.where(inside, levels.placed, 0)
        load = np.bincount(table.column, weights=row_to_class, minlength=self.classes).astype(np.int64)
        busy = np.flatnonzero(self.kinds.class_of >= 0)
        member_class = self.kinds.class_of[busy]
        class_to_member = np.zeros(self.members, dtype=np.int64)
        share, more = load // table.size, load % table.size
        class_to_member[busy] = share[member_class] + (rank_within(member_class, self.classes) < more[member_class])
        return self.held, row_to_class, class_to_member

    def _cheapest(self, levels: Levels) -> tuple[Int64, Int64, Int64]:
        """Return [holdings] partitions kept, [cells] partitions moved to a class, [members] partitions received."""
        kinds, table, rows, classes, members = self.kinds, self.kinds.table, self.rows, self.classes, self.members
        busy = np.flatnonzero(kinds.class_of >= 0)
        member_class = kinds.class_of[busy]
        member_level = levels.level[member_class]
        member_block = levels.block_of_class[member_class]
        blocks = int(levels.block_of_class.max()) + 1
        class_node, member_node, block_node = rows, rows + classes, rows + classes + members
        nodes = block_node + blocks

        inside = levels.block_of_row[self.held_row] == levels.block_of_class[kinds.class_of[self.holder]]
        off_rack = kinds.off_rack[self.held_cell]
        wrong_rack = np.int64(nodes + 1)
        kept = np.where(inside & ~off_rack, self.held, 0)
        holding = np.flatnonzero(inside)
        cell = np.flatnonzero(levels.block_of_row[table.row] == levels.block_of_class[table.column])
        loaded = np.flatnonzero(member_level > 0)

        excess = np.zeros(nodes, dtype=np.int64)
        excess[:rows] = table.supply - np.bincount(self.held_row, weights=kept, minlength=rows).astype(np.int64)
        held_by = np.bincount(self.holder, weights=kept, minlength=members).astype(np.int64)
        floor = np.maximum(member_level - 1, 0)
        carries_more = (held_by[busy] > floor) & (member_level > 0)
        excess[member_node + busy] = held_by[busy] - floor - carries_more
        in_block = np.bincount(levels.block_of_row, weights=table.supply, minlength=blocks).astype(np.int64)
        carried = np.bincount(member_block, weights=floor + carries_more, minlength=blocks).astype(np.int64)
        excess[block_node:] = carried - in_block

        zero = np.zeros
        arcs = [
            # a row's partitions that a member keeps or gives up
            (self.held_row[holding], member_node + self.holder[holding], self.held[holding],
             wrong_rack * off_rack[holding], kept[holding]),
            # a row's partitions that go to a new owner in a class: one move each
            (table.row[cell], class_node + table.column[cell], np.full(len(cell), UNBOUNDED),
             1 + wrong_rack * kinds.off_rack[cell], zero(len(cell), dtype=np.int64)),
            (class_node + member_class, member_node + busy, np.full(len(busy), UNBOUNDED),
             zero(len(busy), dtype=np.int64), zero(len(busy), dtype=np.int64)),
            # the allowance of one more partition, given first to members that hold more
            (member_node + busy[loaded], block_node + member_block[loaded], np.ones(len(loaded), dtype=np.int64),
             zero(len(loaded), dtype=np.int64), carries_more[loaded].astype(np.int64)),
        ]  # fmt: skip
        tail, head, room, cost, flow0 = (np.concatenate(column) for column in zip(*arcs, strict=True))
        network = MinCostFlow(nodes, tail, head, room, cost, flow0, excess)
        network.solve()
        flow = network.flow
        kept = np.zeros(len(self.held), dtype=np.int64)
        kept[holding] = flow[: len(holding)]
        row_to_class = np.zeros(len(table.row), dtype=np.int64)
        row_to_class[cell] = flow[len(holding) : len(holding) + len(cell)]
        class_to_member = np.zeros(members, dtype=np.int64)
        class_to_member[busy] = flow[len(holding) + len(cell) :][: len(busy)]
        return kept, row_to_class, class_to_member

    def _keep(self, problem: Problem, has: Int32, kept: Int64) -> Int32:
        """Return [partitions] the owners of partitions that do not move, NO_OWNER for the others.

        A holding that shrinks keeps its lowest partition numbers, so that all its topics shrink equally (KAFKA-16277).
        """
        owner = np.full(len(has), NO_OWNER, dtype=np.int32)
        owner[self.owned] = has[self.owned]
        shrinks = np.flatnonzero((kept < self.held)[self.holding_of_owned])
        number = problem.number_of()[self.owned[shrinks]]
        shrinks = shrinks[stable_order(number, int(number.max(initial=0)) + 1)]
        holding = self.holding_of_owned[shrinks]
        owner[self.owned[shrinks[rank_within(holding, len(kept)) >= kept[holding]]]] = NO_OWNER
        return owner

    def _give_out(self, owner: Int32, row_to_class: Int64, class_to_member: Int64) -> None:
        """Assign the free partitions: each row's to classes in proportion, each class's to members in turn."""
        table = self.kinds.table
        unit_cell = np.repeat(np.arange(len(table.row)), row_to_class)
        within = np.arange(len(unit_cell)) - np.repeat(np.cumsum(row_to_class) - row_to_class, row_to_class)
        in_proportion = np.argsort(table.row[unit_cell] + (within + 0.5) / row_to_class[unit_cell], kind="stable")
        unit_class = table.column[unit_cell[in_proportion]]

        receiver = deal(class_to_member)
        receiver = receiver[stable_order(self.kinds.class_of[receiver], self.classes)]

        free = np.flatnonzero(owner < 0)
        free = free[stable_order(self.kinds.row_of[free], self.rows)]
        owner[free[stable_order(unit_class, self.classes)]] = receiver
