"""What the actions of a scenario do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.network import Direction
from tests.simulation.scripted import Scripted
from tests.simulation.setting import Fate
from tests.simulation.world import MOST_PROCESSES, SUBSCRIBED

if TYPE_CHECKING:
    from tests.simulation.member_process import MemberProcess
    from tests.simulation.scenario import Action
    from tests.simulation.world import World


def perform(world: World, action: Action) -> None:
    """Do one action; one that finds nothing to act on does nothing and is not counted."""
    world.note(f"ACTION {action.kind} {action.text}")
    if ACTIONS[action.kind](world, action):
        world.counts[f"{action.kind}: {action.text}" if action.text else action.kind] += 1


def chosen(world: World, action: Action) -> MemberProcess | None:
    """Return the member that an action is about."""
    running = world.running
    return running[action.number % len(running)] if running else None


def join(world: World, _action: Action) -> bool:
    """Start a member, unless there are many."""
    if len(world.running) >= MOST_PROCESSES:
        return False
    world.start_member()
    return True


def leave(world: World, action: Action) -> bool:
    """Close a member that says so."""
    process = chosen(world, action)
    if process is not None:
        process.close(leave=True)
    return process is not None


def close_without_leaving(world: World, action: Action) -> bool:
    """Close a member that says nothing."""
    process = chosen(world, action)
    if process is not None:
        process.close(leave=False)
    return process is not None


def kill(world: World, action: Action) -> bool:
    """Kill a process."""
    process = chosen(world, action)
    if process is not None:
        process.kill()
    return process is not None


def kill_and_restart(world: World, action: Action) -> bool:
    """Kill a process and start it again."""
    process = chosen(world, action)
    if process is not None:
        process.kill()
        world.restart_later(action.ms, process)
    return process is not None


def second_process(world: World, action: Action) -> bool:
    """Start another process with an instance id in use."""
    static = [process for process in world.running if process.config.group_instance_id is not None]
    if static:
        world.restart(static[action.number % len(static)])
    return bool(static)


def pause(world: World, action: Action) -> bool:
    """Stop a process for a while."""
    process = chosen(world, action)
    if process is not None:
        process.pause(action.ms)
    return process is not None


def one_way_partition(world: World, action: Action) -> bool:
    """Hold back one direction between a member and the coordinator."""
    process = chosen(world, action)
    if process is not None:
        direction = Direction(action.number % 2)
        world.network.partition(process.name, world.leader.name, direction, action.ms)
    return process is not None


def reset_connections(world: World, action: Action) -> bool:
    """Reset every connection of a member."""
    process = chosen(world, action)
    if process is not None:
        process.client.reset_all()
    return process is not None


def coordinator_crash(world: World, action: Action) -> bool:
    """Kill the coordinator; counted where it happens."""
    if world.leader.up:
        world.crash_leader(action.ms)
    return False


def crash_at_a_write(world: World, action: Action) -> bool:
    """Have the coordinator die at a write of the group's record to come, and make one likely."""
    world.fates.append((Fate[action.text], action.ms))
    return join(world, action) or kill(world, action)


def write_refused(world: World, action: Action) -> bool:
    """Have the disk refuse the next record of the group, and make one likely."""
    world.fates.append((Fate.REFUSED, action.ms))
    return join(world, action) or kill(world, action)


def move(world: World, _action: Action) -> bool:
    """Move the group to the other node; both know at once."""
    world.move(0)
    return True


def move_unnoticed(world: World, action: Action) -> bool:
    """Move the group; the former coordinator goes on for a while."""
    world.move(action.ms + 2_000)
    return True


def disk_refuses(world: World, action: Action) -> bool:
    """Have the disk refuse half of the writes for a while."""
    world.disk_bad_until = world.scheduler.now + action.ms
    return True


def disk_is_slow(world: World, action: Action) -> bool:
    """Have writes take long for a while."""
    world.disk_slow_until = world.scheduler.now + action.ms + 2_000
    return True


def member_clock_jumps(world: World, action: Action) -> bool:
    """Set a member's clock forward."""
    process = chosen(world, action)
    if process is not None:
        process.jump(action.ms)
    return process is not None


def coordinator_clock_jumps(world: World, action: Action) -> bool:
    """Set the coordinator's clock forward."""
    if world.leader.up:
        world.leader.jump(action.ms)
    return world.leader.up


def wall_clock_jumps(world: World, action: Action) -> bool:
    """Set the coordinator's wall clock forward or back."""
    world.leader.wall_ahead += action.ms
    return True


def topic_grows(world: World, action: Action) -> bool:
    """Add a partition to a topic."""
    topic = sorted(world.topics)[action.number % len(world.topics)]
    world.topics[topic] += 1
    world.most_partitions[topic] = max(world.most_partitions[topic], world.topics[topic])
    return True


def topic_is_created(world: World, action: Action) -> bool:
    """Create a topic that members subscribe to, if there is one that does not exist."""
    missing = sorted(SUBSCRIBED - world.topics.keys())
    if missing:
        world.topics[missing[0]] = 1 + action.number % 3
        world.most_partitions[missing[0]] = max(world.most_partitions.get(missing[0], 0), world.topics[missing[0]])
    return bool(missing)


def topic_is_deleted(world: World, _action: Action) -> bool:
    """Delete a topic with its offsets, while there is a coordinator to delete them."""
    coordinator = world.leader.coordinator
    if "u" not in world.topics or coordinator is None or coordinator.group(world.group_id) is None:
        return False
    del world.topics["u"]
    world.unsteady_topics.add("u")
    world.books.topics_deleted(("u",))
    world.leader.topics_deleted(("u",))
    return True


def subscription_changes(world: World, action: Action) -> bool:
    """Have a member subscribe to other topics."""
    process = chosen(world, action)
    if process is not None:
        selections = (frozenset({"t"}), frozenset({"u", "v"}), SUBSCRIBED)
        process.subscribe(selections[action.number % len(selections)])
    return process is not None


def leader_dies(world: World, action: Action) -> bool:
    """Kill the next leader between its join and its sync, and make a rebalance likely; counted where it happens."""
    world.leaders_to_kill.append(action.ms)
    join(world, action)
    return False


def herd_joins(world: World, _action: Action) -> bool:
    """Start many members at once."""
    for _ in range(MOST_PROCESSES):
        world.start_member()
    return True


def rolling_restart(world: World, _action: Action) -> bool:
    """Restart every member, one after another."""
    for place, process in enumerate(world.running):
        world.scheduler.after(1_500 * place, _replace, world, process, None)
    return True


def rolling_upgrade(world: World, action: Action) -> bool:
    """Restart every member, one after another, with the assignors of the next stage."""
    policy = world.scenario.upgrade[action.number]
    world.policies = (policy,)
    for place, process in enumerate(world.running):
        world.scheduler.after(1_200 * place, _replace, world, process, policy)
    return True


def _replace(world: World, process: MemberProcess, policy: tuple[str, ...] | None) -> None:
    if not process.running or world.calm:
        return
    process.close(leave=True)
    process.kill()
    world.restart_later(300, process, policy)


def misbehaving_member(world: World, action: Action) -> bool:
    """Start a client that misbehaves."""
    scripted = Scripted(world, world.books, f"s{len(world.scripted)}", action.text)
    world.scripted.append(scripted)
    scripted.start()
    return True


def crash_at_a_write_of_a_transaction(world: World, action: Action) -> bool:
    """Have the coordinator die at a write of a transaction to come: a decision, an output, offsets, a marker."""
    world.transaction_fates.append((Fate[action.text], action.ms))
    return True


def write_of_a_transaction_refused(world: World, action: Action) -> bool:
    """Have the disk refuse the next write of a transaction."""
    world.transaction_fates.append((Fate.REFUSED, action.ms))
    return True


def second_process_with_the_transactional_id(world: World, action: Action) -> bool:
    """Start another process with a transactional id in use, under a member of its own."""
    process = chosen(world, action)
    if process is not None:
        world.restart(process)
    return process is not None


ACTIONS: dict[str, Callable[[World, Action], bool]] = {
    "join": join,
    "leave": leave,
    "close without leaving": close_without_leaving,
    "kill": kill,
    "kill and restart": kill_and_restart,
    "second process with the instance id": second_process,
    "pause": pause,
    "pause longer than the session": pause,
    "one-way partition": one_way_partition,
    "reset connections": reset_connections,
    "coordinator crash": coordinator_crash,
    "coordinator crash at a write": crash_at_a_write,
    "write refused": write_refused,
    "coordinator move": move,
    "coordinator move, the old one learns late": move_unnoticed,
    "disk refuses": disk_refuses,
    "disk is slow": disk_is_slow,
    "clock of a member jumps": member_clock_jumps,
    "clock of a coordinator jumps": coordinator_clock_jumps,
    "wall clock jumps": wall_clock_jumps,
    "topic grows": topic_grows,
    "topic is created": topic_is_created,
    "topic is deleted": topic_is_deleted,
    "subscription changes": subscription_changes,
    "leader dies between join and sync": leader_dies,
    "herd joins": herd_joins,
    "rolling restart": rolling_restart,
    "rolling upgrade": rolling_upgrade,
    "misbehaving member": misbehaving_member,
    "coordinator crash at a write of a transaction": crash_at_a_write_of_a_transaction,
    "write of a transaction refused": write_of_a_transaction_refused,
    "second process with the transactional id": second_process_with_the_transactional_id,
    "pause longer than a transaction": pause,
}
"""What each kind of action does; True if it did something."""
