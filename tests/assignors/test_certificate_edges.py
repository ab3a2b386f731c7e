"""The certificate where there is nothing to prove, and reasons that must not be made up."""

from roster.assignors import ASSIGNORS
from roster.assignors.certificate import verify
from roster.model import MemberInfo, Problem


def test_a_group_without_members_is_proved() -> None:
    problem = Problem.build({}, {"t": 3})
    assert verify(problem, ASSIGNORS["sticky"].assign(problem)).ok


def test_a_member_without_a_rack_is_never_said_to_be_in_one() -> None:
    members = {
        "a": MemberInfo(topics=["t"], owned={"t": [0, 1, 2, 3]}, generation=1, rack="far"),
        "b": MemberInfo(topics=["t"]),
        "c": MemberInfo(topics=["t"], rack="near"),
    }
    problem = Problem.build(members, {"t": 4}, replica_racks={"t": [["near"]] * 4})
    for name in ("range", "roundrobin", "sticky"):
        for move in ASSIGNORS[name].assign(problem).explain():
            assert "rack" not in move.why or move.target == "c"
