"""An assignor of one's own: consumers say in user data which rack they are in, and read partitions of that rack.

    python custom_assignor.py BOOTSTRAP

Two members of one process form a group; without a cluster, `roster plan --assignor custom_assignor:RACKS` shows plans.
The leader sends each member the racks that have consumers, which `on_assignment` receives.
"""

import argparse
import json
import time
from contextlib import ExitStack

from roster.assignors import Assignor, JoinContext, RebalanceProtocol
from roster.client import GroupMember
from roster.model import Plan, Problem, TopicPartition

TOPIC = "orders"
RACK_OF_PARTITION = {0: "east", 1: "west", 2: "east"}


class RackAssignor(Assignor):
    """Give each partition to the member of its rack with the fewest; if the rack has no member, to any."""

    name = "rack-example"
    supported_protocols = (RebalanceProtocol.COOPERATIVE,)  # members go on reading what they keep

    def __init__(self, rack: str = "") -> None:
        self.rack = rack
        self.racks: list[str] = []

    def subscription_user_data(self, join: JoinContext) -> bytes:
        """Send this member's rack."""
        return self.rack.encode()

    def assign(self, problem: Problem) -> Plan:
        """Decide by the racks that the members sent."""
        told = dict(zip(problem.members, problem.user_data, strict=True))
        racks = {member: (data or b"").decode(errors="replace") for member, data in told.items()}
        given: dict[str, dict[str, list[int]]] = {member: {} for member in problem.members}
        load = dict.fromkeys(problem.members, 0)
        for topic, count in zip(problem.topics, problem.counts.tolist(), strict=True):
            subscribers = [member for member in problem.members if topic in problem.topics_of(member)]
            for number in range(count):
                near = [member for member in subscribers if racks[member] == RACK_OF_PARTITION.get(number)]
                owner = min(near or subscribers, key=lambda member: load[member])
                given[owner].setdefault(topic, []).append(number)
                load[owner] += 1
        present = json.dumps(sorted(set(racks.values()))).encode()
        return Plan.from_assignment(problem, given, user_data=dict.fromkeys(problem.members, present))

    def on_assignment(self, partitions: frozenset[TopicPartition], user_data: bytes | None, generation: int) -> None:
        """Keep the leader's list of racks."""
        self.racks = json.loads(user_data or b"[]")


RACKS = RackAssignor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    bootstrap = parser.parse_args().bootstrap
    assignors = {rack: RackAssignor(rack) for rack in ("east", "west")}
    with ExitStack() as stack:
        members = {
            rack: stack.enter_context(
                GroupMember(bootstrap, "custom-assignor", [TOPIC], assignors=assignor, heartbeat_interval_ms=200)
            )
            for rack, assignor in assignors.items()
        }
        deadline = time.monotonic() + 60
        while True:
            owned = {rack: member.ownership() for rack, member in members.items()}
            for rack, now in owned.items():
                if now.error is not None:
                    raise now.error
                members[rack].release(now.revoking)  # nothing is read here, so nothing is left to finish
            known = all(assignor.racks == ["east", "west"] for assignor in assignors.values())
            numbers = [len(now.partitions) for now in owned.values()]
            if known and all(numbers) and sum(numbers) == len(RACK_OF_PARTITION):
                break
            if time.monotonic() > deadline:
                raise TimeoutError("the members did not come together")
            time.sleep(0.1)
        for rack, now in owned.items():
            print(rack, sorted(partition.partition for partition in now.partitions), "of racks", assignors[rack].racks)


if __name__ == "__main__":
    main()
