"""The certificate where there is nothing to prove, and reasons that must not be made up."""

from roster.assignors import ASSIGNORS
from roster.assignors.certificate import verify
from roster.model import MemberInfo, Problem


def test_where_no_replica_is_known_racks_move_nothing() -> None:
    members = {
        "c1": MemberInfo(topics=["t1", "t2"], owned={"t1": [0, 1]}, generation=5, rack="a"),
        "c2": MemberInfo(topics=["t1"]),
    }
    problem = Problem.build(members, {"t1": 3, "t2": 2}, replica_racks={"t2": [["a"], ["b"]]})
    plan = ASSIGNORS["sticky"].assign(problem)
    assert plan.loads().tolist() in ([2, 3], [3, 2])
    assert [(move.source, move.target) for move in plan.explain() if move.source] == [("c1", "c2")]
    assert verify(problem, plan).ok


def test_a_move_to_a_member_without_a_rack_says_what_is_wrong_with_the_other() -> None:
    members = {
        "c1": MemberInfo(topics=["t1", "t2"], owned={"t1": [0, 1]}, generation=5, rack="a"),
        "c2": MemberInfo(topics=["t1"]),
    }
    racks = {"t1": [["b"]] * 3, "t2": [["a"], ["b"]]}
    plan = ASSIGNORS["sticky"].assign(Problem.build(members, {"t1": 3, "t2": 2}, replica_racks=racks))
    reasons = {move.why for move in plan.explain() if move.source}
    assert reasons == {"c1 is in a rack without a replica, c2 in none"}


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
            assert f"{move.target} is in a rack" not in move.why or move.target == "c"
