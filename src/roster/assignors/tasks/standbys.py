"""Targets of standby copies: evenly loaded clients, in different racks, and where stores already are.

A client's pressure is its number of copies, active ones included, per thread. Caught-up stores are kept first; a
surplus is given up where the pressure is highest. At most as many of them move to clients without a store as warm-ups
can restore at once. Each move lowers the highest pressure and the next rebalance continues from there, so a series of
rebalances ends. Where there are several sub-topologies, and not too many clients, all copies are made level at once,
and then those of each sub-topology by exchanges.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf, lcm
from typing import TypeAlias

from roster.assignors.tasks.least_cost import negative_cycle
from roster.model.tasks import TaskId


def target_standbys(
    standbys: int,
    target: Mapping[TaskId, int],
    caught_up: Mapping[TaskId, Sequence[int]],
    partial: Mapping[TaskId, Sequence[int]],
    threads: Sequence[int],
    racks: Sequence[str | None],
    most_moves: int,
) -> dict[TaskId, set[int]]:
    """Return for each task the clients that are to have a standby copy, fewer than `standbys` if clients are few.

    target: the target client of each active task. caught_up, partial: other clients whose store is within the
    acceptable lag, or beyond it, in order of lag. threads, racks: of each client; rack None if not known. most_moves:
    the number of copies that may move from a caught-up store to a client without one.
    """
    places = _Standbys(min(standbys, len(threads) - 1), target, caught_up, threads, racks)
    places.give_up_surplus()
    places.fill_up(partial)
    subtopologies = len({task.subtopology for task in target})
    exchange = 1 < subtopologies <= _MOST_ARCS // len(threads) ** 2
    places.move(partial, len(target) * len(threads) ** 2 if exchange else most_moves)
    if exchange:
        places.level_each_subtopology()
    return places.holders


CopiesOn: TypeAlias = dict[int, dict[TaskId, None]]
"""Copies by client; a dictionary keeps the order of its tasks, which makes sorting them cheap."""

_NOWHERE: frozenset[int] = frozenset()

_MOST_ARCS = 5_000
"""Ways from client to client, over all sub-topologies, up to which exchanges are looked for."""


class _Standbys:
    def __init__(
        self,
        standbys: int,
        target: Mapping[TaskId, int],
        caught_up: Mapping[TaskId, Sequence[int]],
        threads: Sequence[int],
        racks: Sequence[str | None],
    ) -> None:
        self.target = target
        self.holders = {task: set(caught_up.get(task, ())) for task in sorted(target)}
        self._caught_up = {task: frozenset(holders) if holders else _NOWHERE for task, holders in self.holders.items()}
        self._standbys = standbys
        self._with_surplus = {task for task, holders in self._caught_up.items() if len(holders) > standbys}
        self.threads = threads
        self._racks = racks
        self._known_racks = len({rack for rack in racks if rack is not None}) > 1
        self._load = Counter(target.values())
        self._load.update(chain.from_iterable(self.holders.values()))
        self._moves_left = 0

    def give_up_surplus(self) -> None:
        """Drop copies above the wanted number: first those that share a rack, then those on the most loaded clients."""
        surplus = {task: set(holders) for task, holders in self.holders.items() if len(holders) > self._standbys}
        for task in list(surplus) if self._known_racks else ():
            while len(self.holders[task]) > self._standbys:
                clash, _, client = max(
                    (self._clash(task, holder), self._pressure(holder), holder) for holder in self.holders[task]
                )
                if not clash:
                    break
                self._remove(task, client)
        by_client: dict[int, list[TaskId]] = {}
        for task in surplus:
            for client in self.holders[task]:
                by_client.setdefault(client, []).append(task)
        for waiting in by_client.values():
            waiting.reverse()
        queue = [(-self._pressure(client), client) for client in by_client]
        heapq.heapify(queue)
        while queue:
            _, client = heapq.heappop(queue)
            waiting = by_client[client]
            while waiting and len(self.holders[waiting[-1]]) <= self._standbys:
                waiting.pop()
            if waiting:
                self._remove(waiting.pop(), client)
                heapq.heappush(queue, (-self._pressure(client), client))

    def fill_up(self, partial: Mapping[TaskId, Sequence[int]]) -> None:
        """Add missing copies: first on clients that have restored part of the log, then evenly where load is least."""
        for task, begun in partial.items():
            for client in begun[: max(self._standbys - len(self.holders[task]), 0)]:
                self._add(task, client)
        new: CopiesOn = {client: {} for client in range(len(self.threads))}
        queue = self._lightest_first()
        take = self._take_apart if self._known_racks else self._take_lightest
        for task, holders in self.holders.items():
            missing = self._standbys - len(holders)
            for client in take(queue, task, missing) if missing > 0 else ():
                new[client][task] = None
        self._moves_left = len(self.holders) * len(self.threads) ** 2
        self._level(new)

    def _take_lightest(self, queue: list[tuple[float, int]], task: TaskId, count: int) -> list[int]:
        """Add copies on the least loaded clients that may have one; return these clients."""
        holders, target = self.holders[task], self.target[task]
        taken: list[int] = []
        passed_over = []
        while len(taken) < count:
            entry = heapq.heappop(queue)
            if entry[1] == target or entry[1] in holders:
                passed_over.append(entry)
            else:
                taken.append(entry[1])
        holders.update(taken)
        load, threads = self._load, self.threads
        for client in taken:
            load[client] += 1
            heapq.heappush(queue, ((load[client] + 1) / threads[client], client))
        for entry in passed_over:
            heapq.heappush(queue, entry)
        return taken

    def _take_apart(self, queue: list[tuple[float, int]], task: TaskId, count: int) -> list[int]:
        """Add copies on the clients with fewest copies in their rack, the least loaded first; return these clients."""
        taken = []
        for _ in range(count):
            entry = min(
                (self._clash(task, lightest[1]), lightest) for lightest in queue if self._may_hold(task, lightest[1])
            )[1]
            queue.remove(entry)
            heapq.heapify(queue)
            self._add(task, entry[1])
            heapq.heappush(queue, (self._with_one_more(entry[1]), entry[1]))
            taken.append(entry[1])
        return taken

    def move(self, partial: Mapping[TaskId, Sequence[int]], most: int) -> None:
        """Move copies: to clients that have begun to restore them, out of shared racks, and to even out the load."""
        self._moves_left = most
        self._continue_restoring(partial)
        self._spread()
        copies_on: CopiesOn = {client: {} for client in range(len(self.threads))}
        for task, holders in self.holders.items():
            for client in holders:
                copies_on[client][task] = None
        self._level(copies_on)

    def _continue_restoring(self, partial: Mapping[TaskId, Sequence[int]]) -> None:
        for task, begun in partial.items():
            for light in begun:
                holders = self.holders[task]
                if not holders or not self._may_hold(task, light):
                    continue
                _, _, heavy = max((self._clash(task, holder), self._pressure(holder), holder) for holder in holders)
                gain = self._clash(task, heavy) - self._clash(task, light, but=heavy)
                level = gain == 0 and self._with_one_more(light) < self._pressure(heavy)
                if (gain > 0 or level) and self._may_move(task, heavy, light):
                    self._move(task, heavy, light)

    def level_each_subtopology(self) -> None:
        """Exchange copies until those of each sub-topology are as level as they can be beside all copies.

        Active copies count; among equally level placements the one with level standbys is best, then the one with
        fewest warm-ups, so each warm-up brings the last placement nearer.
        """
        exchange = _Exchange(self)
        if not exchange.is_uneven() and not self._warm_ups():
            return
        while moves := exchange.find():
            for task, heavy, light in moves:
                self._move(task, heavy, light)
            exchange = _Exchange(self)

    def _warm_ups(self) -> bool:
        """True if a caught-up store is given up for one that is to be restored."""
        return any(
            len(holders) >= self._standbys
            and not holders <= self._caught_up[task]
            and not self._caught_up[task] <= holders
            for task, holders in self.holders.items()
        )

    def movable(self, task: TaskId, heavy: int, light: int) -> int | None:
        """Return the warm-ups that a move of the copy costs (-1: it saves one), None if it may not move."""
        if not self._may_hold(task, light) or self._clash(task, light, but=heavy) > self._clash(task, heavy):
            return None
        return self._warms_up(task, heavy, light) - self._warms_up(task, light, heavy)

    def _spread(self) -> None:
        """Move copies that share a rack with another copy of their task to a rack without one, if there is any."""
        for task, holders in self.holders.items() if self._known_racks else ():
            for client in sorted(holders):
                clash = self._clash(task, client)
                others = [
                    (self._clash(task, other, but=client), self._with_one_more(other), other)
                    for other in range(len(self.threads) if clash else 0)
                    if self._may_move(task, client, other)
                ]
                if others and min(others)[0] < clash:
                    self._move(task, client, min(others)[2])

    def _level(self, copies_on: CopiesOn) -> None:
        """Move copies one by one as long as that evens out the load."""
        while self._move_from_the_heaviest(copies_on):
            if not self._moves_left:
                free, caught_up = self._with_surplus, self._caught_up
                for client, tasks in copies_on.items():
                    copies_on[client] = {t: None for t in tasks if t in free or client not in caught_up[t]}

    def _move_from_the_heaviest(self, copies_on: CopiesOn) -> bool:
        """For each client, the most loaded first, move copies to a client that then has less load than it has now."""
        moved = False
        queue = self._lightest_first()
        for heavy in sorted(copies_on, key=lambda client: (-self._pressure(client), client)):
            if queue[0][0] >= self._pressure(heavy):
                continue
            for task in _largest_first(copies_on[heavy]):
                if queue[0][0] >= self._pressure(heavy):
                    break
                if not self._moves_left and not self._moves_for_free(task, heavy):
                    continue
                light = self._lighter(queue, task, heavy)
                if light is not None:
                    self._move(task, heavy, light)
                    del copies_on[heavy][task]
                    copies_on[light][task] = None
                    if not self._moves_left:
                        return True  # the other copies may not move: the caller removes them
                    heapq.heappush(queue, (self._with_one_more(light), light))
                    moved = True
        return moved

    def _lighter(self, queue: list[tuple[float, int]], task: TaskId, heavy: int) -> int | None:
        """Take from the queue the least loaded client for which a move of the copy is a gain; None if there is none."""
        passed_over = []
        lighter = None
        clash = self._clash(task, heavy)
        while lighter is None and queue and queue[0][0] < self._pressure(heavy):
            entry = heapq.heappop(queue)
            if self._may_move(task, heavy, entry[1]) and self._clash(task, entry[1], but=heavy) <= clash:
                lighter = entry[1]
            else:
                passed_over.append(entry)
        for entry in passed_over:
            heapq.heappush(queue, entry)
        return lighter

    def _may_hold(self, task: TaskId, client: int) -> bool:
        return client != self.target[task] and client not in self.holders[task]

    def _clash(self, task: TaskId, client: int, but: int | None = None) -> int:
        """Return how many other copies of the task, without the one at `but`, are in the client's rack."""
        rack = self._racks[client]
        if rack is None or not self._known_racks:
            return 0
        others: Iterable[int] = {self.target[task], *self.holders[task]} - {client, but}
        return sum(self._racks[other] == rack for other in others)

    def _may_move(self, task: TaskId, heavy: int, light: int) -> bool:
        return self._may_hold(task, light) and (self._moves_left > 0 or not self._warms_up(task, heavy, light))

    def _moves_for_free(self, task: TaskId, heavy: int) -> bool:
        """True if the copy may move without a warm-up."""
        return task in self._with_surplus or heavy not in self._caught_up[task]

    def _move(self, task: TaskId, heavy: int, light: int) -> None:
        self._moves_left -= self._warms_up(task, heavy, light)
        self._remove(task, heavy)
        self._add(task, light)

    def _warms_up(self, task: TaskId, heavy: int, light: int) -> bool:
        """True if the present copy stays until the new one has caught up."""
        return heavy in self._caught_up[task] and light not in self._caught_up[task]

    def _add(self, task: TaskId, client: int) -> None:
        self.holders[task].add(client)
        self._load[client] += 1

    def _remove(self, task: TaskId, client: int) -> None:
        self.holders[task].remove(client)
        self._load[client] -= 1

    def _pressure(self, client: int) -> float:
        return self._load[client] / self.threads[client]

    def _with_one_more(self, client: int) -> float:
        return (self._load[client] + 1) / self.threads[client]

    def _lightest_first(self) -> list[tuple[float, int]]:
        queue = [(self._with_one_more(client), client) for client in range(len(self.threads))]
        heapq.heapify(queue)
        return queue


def _largest_first(tasks: Iterable[TaskId]) -> list[TaskId]:
    """Return the tasks in an order in which the sub-topology with most of those that are left comes next."""
    by_subtopology: defaultdict[int, list[TaskId]] = defaultdict(list)
    for task in sorted(tasks):
        by_subtopology[task.subtopology].append(task)
    left = [(place - len(alike), task) for alike in by_subtopology.values() for place, task in enumerate(alike)]
    return [task for _, task in sorted(left)]


Cell: TypeAlias = tuple[int, int]
"""A sub-topology and a client."""


class _Exchange:
    """The search for a cycle of moves that levels the sub-topologies' copies (Klein's theorem, as in `least_cost`).

    Levels are compared by the sums of 1, 2, ... n copies per thread, which are least where the copies are level.
    """

    def __init__(self, places: _Standbys) -> None:
        self.places = places
        self.standbys = Counter[Cell](
            (task.subtopology, c) for task, holders in places.holders.items() for c in holders
        )
        self.copies = self.standbys + Counter((task.subtopology, c) for task, c in places.target.items())
        self.load = Counter[int]()
        for (_, client), copies in self.copies.items():
            self.load[client] += copies
        clients = range(len(places.threads))
        self.cells = [
            (subtopology, client)
            for subtopology in sorted({task.subtopology for task in places.target})
            for client in clients
        ]

    def is_uneven(self) -> bool:
        """True if a copy or a standby of a sub-topology, moved to another client, would level it."""
        threads = self.places.threads
        for counts in (self.copies, self.standbys):
            most: dict[int, float] = defaultdict(float)
            least: dict[int, float] = defaultdict(lambda: inf)
            for cell in self.cells:
                most[cell[0]] = max(most[cell[0]], counts[cell] / threads[cell[1]])
                least[cell[0]] = min(least[cell[0]], (counts[cell] + 1) / threads[cell[1]])
            if any(least[subtopology] < pressure for subtopology, pressure in most.items()):
                return True
        return False

    def find(self) -> list[tuple[TaskId, int, int]]:
        """Return moves (task, from, to) that together level more, or as much with fewer warm-ups."""
        threads = self.places.threads
        node = {cell: number for number, cell in enumerate(self.cells)}
        first = len(node)
        pool = first + len(threads)
        unit = lcm(*threads)
        base = 4 * (pool + 1) * unit * (self.load.total() + 1)
        best = self._cheapest_moves()
        arcs = [(node[tail], node[head], cost) for (tail, head), (cost, _) in best.items()]
        for cell in self.cells:
            step = unit // threads[cell[1]]
            copies, standbys = self.copies[cell], self.standbys[cell]
            arcs.append((node[cell], first + cell[1], ((copies + 1) * base + standbys + 1) * step * base))
            if standbys:
                arcs.append((first + cell[1], node[cell], -(copies * base + standbys) * step * base))
        for client, count in enumerate(threads):
            step = unit // count * base**3
            arcs.append((first + client, pool, (self.load[client] + 1) * step))
            arcs.append((pool, first + client, -self.load[client] * step))
        cycle = negative_cycle(arcs)
        between = [(self.cells[tail], self.cells[head]) for tail, head in cycle if max(tail, head) < first]
        return [(best[arc][1], arc[0][1], arc[1][1]) for arc in between]

    def _cheapest_moves(self) -> dict[tuple[Cell, Cell], tuple[int, TaskId]]:
        """Return for two cells the warm-ups of the cheapest move between them, and its task."""
        best: dict[tuple[Cell, Cell], tuple[int, TaskId]] = {}
        for task, held in self.places.holders.items():
            for heavy in held:
                for light in range(len(self.places.threads)):
                    cost = self.places.movable(task, heavy, light)
                    arc = ((task.subtopology, heavy), (task.subtopology, light))
                    if cost is not None and (arc not in best or cost < best[arc][0]):
                        best[arc] = (cost, task)
        return best
