"""Targets of standby copies: evenly loaded clients, in different racks, and where stores already are.

A client's pressure is its number of copies, active ones included, per thread. Caught-up stores are kept first; a
surplus is given up where the pressure is highest. At most as many of them move to clients without a store as warm-ups
can restore at once. Each move lowers the highest pressure and the next rebalance continues from there, so a series of
rebalances ends. Where no single move evens out the load, several in a row may: a copy goes to a client that passes
another one on.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

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
    places.move(partial, most_moves)
    return places.holders


CopiesOn: TypeAlias = dict[int, dict[TaskId, None]]
"""Copies by client; a dictionary keeps the order of its tasks, which makes sorting them cheap."""

Moves: TypeAlias = tuple[tuple[TaskId, int, int], ...]
"""Moves of copies: (task, from, to)."""

_NOWHERE: frozenset[int] = frozenset()


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
        while self._moves_left and (row := self._moves_in_a_row(copies_on)):
            for task, heavy, light in reversed(row):
                if not self._may_move(task, heavy, light):
                    break  # the next rebalance goes on
                self._move_among(copies_on, task, heavy, light)

    def _moves_in_a_row(self, copies_on: CopiesOn) -> Moves:
        """Return moves from client to client after which the last one has less load than the first one has now.

        The row has the fewest warm-ups (Dijkstra's algorithm), so the next rebalance finds it again, with fewer left.
        """
        visited: set[int] = set()
        lightest = min(map(self._with_one_more, copies_on))
        for heavy in self._heaviest_first(copies_on):
            queue: list[tuple[int, int, int, Moves]] = [(0, 0, heavy, ())]
            while queue and lightest < self._pressure(heavy):
                warm_ups, length, client, row = heapq.heappop(queue)
                if self._with_one_more(client) < self._pressure(heavy):
                    return row
                for light in copies_on.keys() - visited if client not in visited else ():
                    moves = [
                        (self._warms_up(task, client, light), task)
                        for task in copies_on[client].keys() - {moved for moved, _, _ in row}
                        if self._may_hold(task, light)
                        and self._clash(task, light, but=client) <= self._clash(task, client)
                    ]
                    if moves:
                        cost, task = min(moves)
                        heapq.heappush(queue, (warm_ups + cost, length + 1, light, (*row, (task, client, light))))
                visited.add(client)
        return ()

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
        for heavy in self._heaviest_first(copies_on):
            if queue[0][0] >= self._pressure(heavy):
                continue
            for task in _largest_first(copies_on[heavy]):
                if queue[0][0] >= self._pressure(heavy):
                    break
                if not self._moves_left and not self._moves_for_free(task, heavy):
                    continue
                light = self._lighter(queue, task, heavy)
                if light is not None:
                    self._move_among(copies_on, task, heavy, light)
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

    def _move_among(self, copies_on: CopiesOn, task: TaskId, heavy: int, light: int) -> None:
        self._move(task, heavy, light)
        del copies_on[heavy][task]
        copies_on[light][task] = None

    def _heaviest_first(self, clients: Iterable[int]) -> list[int]:
        return sorted(clients, key=lambda client: (-self._pressure(client), client))

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
