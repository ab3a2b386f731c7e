"""What happens in one run, drawn from its seed: members, actions at their times, and the faults of the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from roster.wire import ApiKey
from tests.simulation.network import NetworkFaults

SESSION_MS = 6_000
REBALANCE_MS = 9_000
HEARTBEAT_MS = 2_000

NEWEST: dict[ApiKey, int] = {}
"""Every api in the newest version."""
BEFORE_STATIC_MEMBERS = {
    ApiKey.JOIN_GROUP: 4,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.OFFSET_COMMIT: 6,
    ApiKey.OFFSET_FETCH: 5,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.METADATA: 7,
}
"""Those of a client from before KIP-345."""
BEFORE_MEMBER_IDS = BEFORE_STATIC_MEMBERS | {
    ApiKey.JOIN_GROUP: 3,
    ApiKey.LEAVE_GROUP: 1,
    ApiKey.OFFSET_COMMIT: 3,
    ApiKey.OFFSET_FETCH: 3,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.METADATA: 4,
}
"""Those of a client from before KIP-394, which joins without having been given a member id."""
BEFORE_SKIPPED_ASSIGNMENTS = {
    ApiKey.JOIN_GROUP: 7,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
}
VERSIONS = {
    "newest": NEWEST,
    "before KIP-345": BEFORE_STATIC_MEMBERS,
    "before KIP-394": BEFORE_MEMBER_IDS,
    "before KIP-814": BEFORE_SKIPPED_ASSIGNMENTS,
}

TASKS = "tasks"
"""Name of the assignor of tasks."""
POLICIES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("cooperative-sticky",),),
    (("cooperative-sticky", "range"),),
    (("cooperative-sticky", "range"), ("range", "roundrobin")),
    (("range",),),
    (("sticky",),),
    (("sticky", "range"), ("roundrobin", "range")),
    (("roundrobin",),),
    (("lag-cooperative-sticky",),),
    (("lag-sticky", "sticky"), ("sticky",)),
)
"""Assignors of the members of a group; those of one entry have one in common."""
UPGRADES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("range",), ("cooperative-sticky", "range"), ("cooperative-sticky",)),
    (("sticky",), ("cooperative-sticky", "sticky"), ("cooperative-sticky",)),
)
"""Assignors before, during and after a rolling upgrade."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that happens at `time` (ms); `number` and `ms` mean what the kind has use for."""

    time: int
    kind: str
    number: int = 0
    ms: int = 0
    text: str = ""

    def __str__(self) -> str:
        details = f" {self.number}" + (f", {self.ms} ms" if self.ms else "") + (f", {self.text}" if self.text else "")
        return f"{self.time:>7} ms  {self.kind}{details}"


@dataclass(frozen=True, slots=True)
class Tasks:
    """Promises of a group that runs tasks with state."""

    standbys: int
    max_warmups: int


@dataclass(slots=True)
class Scenario:
    """One run; an action left out or a fault switched off leaves the rest as it is."""

    seed: int
    topics: dict[str, int]
    policies: tuple[tuple[str, ...], ...]
    members: int
    static: float
    """Chance that a new member is a static one."""
    old: float
    """Chance that a new dynamic member speaks old versions."""
    network: NetworkFaults
    slow_release: float
    sync_ms: int
    actions: list[Action] = field(default_factory=list)
    upgrade: tuple[tuple[str, ...], ...] = ()
    initial_delay_ms: int = 300
    session_ms: int = SESSION_MS
    rebalance_ms: int = REBALANCE_MS
    heartbeat_ms: int = HEARTBEAT_MS
    new_member_join_timeout_ms: int = 15_000
    ends_at: int = 0
    transactions: int | None = None
    """Version of the protocol of transactions (1, or 2: KIP-890) by which positions are committed; None for none."""
    tasks: Tasks | None = None
    """Promises of a group that runs tasks with state; None for a group of consumers."""


WEIGHTS = {
    "join": 8,
    "leave": 3,
    "close without leaving": 2,
    "kill": 4,
    "kill and restart": 5,
    "second process with the instance id": 3,
    "pause": 3,
    "pause longer than the session": 3,
    "one-way partition": 4,
    "reset connections": 2,
    "coordinator crash": 4,
    "coordinator crash at a write": 5,
    "write refused": 2,
    "coordinator move": 3,
    "coordinator move, the old one learns late": 3,
    "disk refuses": 1,
    "disk is slow": 1,
    "clock of a member jumps": 2,
    "clock of a coordinator jumps": 1,
    "wall clock jumps": 1,
    "topic grows": 3,
    "topic is created": 2,
    "topic is deleted": 2,
    "subscription changes": 2,
    "leader dies between join and sync": 3,
    "herd joins": 1,
    "rolling restart": 1,
    "misbehaving member": 5,
}
"""Kinds of actions and how often each is drawn."""
TRANSACTION_WEIGHTS = {
    "coordinator crash at a write of a transaction": 5,
    "write of a transaction refused": 1,
    "second process with the transactional id": 2,
    "pause longer than a transaction": 3,
}
"""The same for runs with transactions."""
TRANSACTIONAL = 0.3
"""Share of the runs with transactions."""
MISBEHAVIOURS = (
    "joins and vanishes",
    "never syncs",
    "commits stale",
    "sends garbage",
    "asks for many member ids",
    "repeats requests",
    "leads without assigning",
    "administers",
    "impersonates a static member",
)
FATES = ("LOST", "STORED", "ANSWERED")
WITH_TASKS = 0.15
"""Share of the runs with tasks."""
NOT_WITH_TASKS = {"subscription changes", "topic is created", "topic is deleted"}
"""Actions that a group of tasks refuses by design: all members read the topics of one topology, and these exist."""
BESIDE_TASKS = ("commits stale", "asks for many member ids", "administers")
"""Misbehaviours that leave the group to members that run tasks."""


def draw_scenario(seed: int, *, transactional: bool = True, tasks: bool = True) -> Scenario:
    """Draw the run of a seed: only some kinds of faults each time, so that each meets every other one and none.

    Without `transactional` no run has transactions, without `tasks` none has tasks; those of seeds that have none
    anyway stay the same.
    """
    chance = Random(f"scenario {seed}")
    upgrade = chance.choice(UPGRADES) if chance.random() < 0.12 else ()
    kinds = [kind for kind in WEIGHTS if chance.random() < 0.45] or ["kill"]
    scenario = Scenario(
        seed=seed,
        topics={"t": chance.choice((3, 5, 6)), "u": chance.choice((1, 3))},
        policies=(upgrade[0],) if upgrade else chance.choice(POLICIES),
        members=chance.choice((1, 2, 2, 3, 3, 4)),
        static=chance.choice((0.0, 0.0, 0.3, 1.0)),
        old=chance.choice((0.0, 0.0, 0.5)),
        network=draw_network(chance),
        slow_release=chance.choice((0.0, 0.0, 0.3)),
        sync_ms=chance.choice((2, 10, 10, 120)),
        upgrade=upgrade,
    )
    time = chance.choice((1_500, 6_000))
    for _ in range(chance.randint(2, 9)):
        time += chance.choice((0, 30, 300, 1_000, 3_000, 7_000)) + chance.randint(0, 400)
        scenario.actions.append(draw_action(chance, time, kinds))
    if upgrade:
        for stage in range(1, len(upgrade)):
            time += 1_000
            scenario.actions.append(Action(time, "rolling upgrade", stage))
            time += 12_000
    scenario.ends_at = time + chance.choice((0, 500, 3_000))
    if transactional:
        draw_transactions(seed, scenario)
    if tasks:
        draw_tasks(seed, scenario)
    return scenario


def draw_tasks(seed: int, scenario: Scenario) -> None:
    """Have a share of the runs be groups that run tasks with state, without actions that such a group refuses."""
    chance = Random(f"tasks {seed}")
    if chance.random() >= WITH_TASKS or scenario.upgrade or scenario.transactions is not None:
        return
    scenario.tasks = Tasks(standbys=chance.choice((0, 1, 1, 2)), max_warmups=chance.choice((1, 2, 4)))
    scenario.policies = ((TASKS,),)
    scenario.actions = [
        action
        for action in scenario.actions
        if action.kind not in NOT_WITH_TASKS and (not action.text or action.text in (*FATES, *BESIDE_TASKS))
    ]


def draw_transactions(seed: int, scenario: Scenario) -> None:
    """Have a share of the runs commit in transactions, with faults of their own, from a generator of their own."""
    chance = Random(f"transactions {seed}")
    if chance.random() >= TRANSACTIONAL:
        return
    scenario.transactions = chance.choice((1, 2, 2))
    scenario.old = 0.0  # older clients cannot ask for stable offsets
    kinds, weights = list(TRANSACTION_WEIGHTS), list(TRANSACTION_WEIGHTS.values())
    for _ in range(chance.randint(1, 5)):
        time = chance.randint(3_000, max(scenario.ends_at, 6_000))
        kind = chance.choices(kinds, weights)[0]
        ms = chance.choice((8_000, 20_000)) if kind.startswith("pause") else chance.choice((200, 1_500, 4_000))
        text = chance.choice(FATES) if kind.startswith("coordinator") else ""
        scenario.actions.append(Action(time, kind, chance.randint(0, 999), ms, text))
    scenario.actions.sort(key=lambda action: action.time)
    scenario.ends_at = max(scenario.ends_at, scenario.actions[-1].time + 500)


def draw_network(chance: Random) -> NetworkFaults:
    """Draw the faults of a network; in a third of the runs there are none."""
    faults = NetworkFaults(delay=chance.choice((2, 20, 20, 150)))
    if chance.random() < 0.66:
        faults.slow = chance.choice((0.0, 0.02, 0.1))
        faults.drop = chance.choice((0.0, 0.0, 0.01))
        faults.duplicate = chance.choice((0.0, 0.05))
        faults.reset = chance.choice((0.0, 0.01, 0.04))
    return faults


def draw_action(chance: Random, time: int, kinds: list[str]) -> Action:
    """Draw one action."""
    kind = chance.choices(kinds, [WEIGHTS[each] for each in kinds])[0]
    number = chance.randint(0, 999)
    short, long = chance.choice((200, 1_500, 4_000)), chance.choice((7_000, 16_000))
    match kind:
        case "pause longer than the session":
            return Action(time, kind, number, SESSION_MS + long)
        case "wall clock jumps":
            return Action(time, kind, number, chance.choice((-3_600_000, -5_000, 5_000, 3_600_000)))
        case "clock of a member jumps" | "clock of a coordinator jumps":
            return Action(time, kind, number, chance.choice((1_000, 5_000, 20_000)))
        case "misbehaving member":
            return Action(time, kind, number, text=chance.choice(MISBEHAVIOURS))
        case "coordinator crash at a write":
            return Action(time, kind, number, short, chance.choice(FATES))
        case "one-way partition" | "disk refuses":
            return Action(time, kind, number, chance.choice((short, long)))
    return Action(time, kind, number, short)
