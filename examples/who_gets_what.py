"""An assignor as a plain function: who gets which partition when a member joins, and why.

python who_gets_what.py
"""

from roster.assignors import COOPERATIVE_STICKY
from roster.model import MemberInfo, Problem

MEMBERS = {
    "a": MemberInfo(topics=["orders"], owned={"orders": [0, 1, 2]}, generation=7),
    "b": MemberInfo(topics=["orders"], owned={"orders": [3, 4, 5]}, generation=7),
    "c": MemberInfo(topics=["orders"]),
}


def main() -> None:
    plan = COOPERATIVE_STICKY.assign(Problem.build(MEMBERS, {"orders": 6}))
    for move in plan.explain():
        print(f"{move.topic}-{move.partition}: {move.source} to {move.target} ({move.why})")
    for member, partitions in plan.partitions().items():
        print(f"{member} now: {', '.join(map(str, partitions)) or 'nothing'}")
    for partition, member in sorted(plan.transferring().items()):
        print(f"{member} one round later: {partition}")


if __name__ == "__main__":
    main()
