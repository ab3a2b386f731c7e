"""The task assignor against Kafka Streams' high-availability assignor: `python -m benchmarks tasks`.

Stateful tasks of one sub-topology, a fresh placement and then one more client; `assign` alone in both, on objects that
are there already. Every client is caught up with what it was given and has nothing of the rest.
"""

from __future__ import annotations

import statistics

from benchmarks import peers
from benchmarks.assignors import LIMIT, median, short
from benchmarks.peers import MissingError, Peer, TooSlowError
from roster.assignors.tasks import Client, TaskPlan, TaskProblem, assign
from roster.model.tasks import RUNNING, TaskId

SIZES = ((1000, 1000, 1, 1), (6000, 2, 1, 1), (1000, 100, 1, 50), (1000, 10, 1000, 1))
"""(tasks, clients, threads of each, standbys), as in Kafka's own scale test"""


def problem(tasks: int, clients: int, threads: int, standbys: int, before: TaskPlan | None = None) -> TaskProblem:
    """The clients with what they were given before, if anything."""
    described = {}
    for number in range(clients):
        name = f"client-{number:05}"
        placed = before.clients.get(name) if before else None
        lags = {}
        if placed:
            lags = dict.fromkeys(placed.standby, 0) | dict.fromkeys(placed.active, RUNNING)
        described[name] = Client(threads, lags)
    return TaskProblem([TaskId(0, p) for p in range(tasks)], [], described, standbys=standbys)


def moved(before: TaskPlan, after: TaskPlan) -> int:
    """Active tasks that run elsewhere than before."""
    return sum(
        len(set(placed.active) - set(before.clients[name].active if name in before.clients else ()))
        for name, placed in after.clients.items()
    )


def run(*, quick: bool) -> None:
    """Print the table."""
    rounds, budget, limit = (1, 2.0, 30.0) if quick else (5, 10.0, 2 * LIMIT)
    print(
        f"Kafka Streams {peers.kafka_version()} HighAvailabilityTaskAssignor; CPU ms, medians; ratio: Roster's time as"
    )
    print("a multiple of Kafka's; moved: active tasks that at once run elsewhere")
    print(f"{'tasks, clients, threads, standbys':38}{'':7}{'Roster':>9}{'moved':>7}{'Java':>9}{'moved':>7}{'ratio':>8}")
    java = Peer("Kafka Streams", lambda: peers.java("TasksPeer"), limit)
    for size in SIZES:
        tasks, clients, threads, standbys = size
        fresh = problem(*size)
        before = assign(fresh)
        joined = problem(tasks, clients + 1, threads, standbys, before)
        ours = {"fresh": median(lambda p=fresh: assign(p), rounds), "join": median(lambda p=joined: assign(p), rounds)}
        note = ""
        theirs: dict[str, list[float]] = {}
        answer: dict[str, object] = {}
        try:
            answer = java.ask(f"E {tasks} {clients} {threads} {standbys} 2 {rounds} {int(budget * 1000)}", 2 * limit)
            note = str(answer.get("error", ""))
            theirs = {event: answer[event] for event in ours} if not note else {}  # type: ignore[misc]
        except TooSlowError:
            note = f">{2 * limit:.0f} s"
        except MissingError as missing:
            print(f"*** MISSING: {missing}")
        for event, figure in ours.items():
            line = f"{', '.join(map(str, size)):38}{event:7}{short(figure):>9}"
            line += f"{moved(before, assign(joined)) if event == 'join' else '':>7}"
            if event in theirs:
                java_ms = statistics.median(theirs[event])
                line += f"{short(java_ms):>9}{answer['moved'] if event == 'join' else '':>7}{figure / java_ms:>8.2g}"
            else:
                line += f"{note or '-':>9}"
            print(line, flush=True)
    java.stop()
