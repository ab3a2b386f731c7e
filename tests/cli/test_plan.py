"""`roster plan` on JSON lines: Kafka's worked cases through the shell's door, and what it says of bad lines."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from roster.assignors import ASSIGNORS
from roster.cli.root import run
from roster.wire.consumer.user_data import encode_cooperative_user_data, encode_sticky_user_data


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """plan(assignor, problem) answers one problem; it must be answered without complaint."""

    def answer(assignor: str, problem: object) -> dict:
        path = tmp_path / "problem.jsonl"
        path.write_text(json.dumps(problem) + "\n")
        assert run(["plan", "--assignor", assignor, str(path)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        (line,) = out.splitlines()
        return json.loads(line)

    return answer


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """feed(assignor, lines) gives the exit code, the answers and the complaints, with the lines on standard input."""

    def answer(assignor: str, *lines: bytes | object, options: tuple[str, ...] = ()) -> tuple[int, str, list[str]]:
        data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = run(["plan", "--assignor", assignor, *options])
        out, err = capsys.readouterr()
        return code, out, err.splitlines()

    return answer


def owns(text: str) -> dict[str, list[int]]:
    """`t1-0 t1-1 t2-0` by topic."""
    found: dict[str, list[int]] = {}
    for entry in text.split():
        topic, _, number = entry.rpartition("-")
        found.setdefault(topic, []).append(int(number))
    return found


def assigned(text: str) -> dict[str, dict[str, list[int]]]:
    """`c1 t1-0 | c2` by member."""
    parts = [part.split(maxsplit=1) for part in text.split("|")]
    return {part[0]: owns(part[1] if len(part) > 1 else "") for part in parts}


def member(topics: str, owned: str = "", **more: object) -> dict:
    return {"topics": topics.split(), "owned": owns(owned), **more}


RANGE = {
    "RG-2": (
        {"t1": 3, "t2": 2},
        {"c1": member("t1"), "c2": member("t1 t2"), "c3": member("t1")},
        "c1 t1-0 | c2 t1-1 t2-0 t2-1 | c3 t1-2",
    ),
    "RG-3": ({"t": 1}, {"c1": member("t"), "c2": member("t")}, "c1 t-0 | c2"),
    "RG-3, topic missing": ({}, {"c1": member("t"), "c2": member("t")}, "c1 | c2"),
    "RG-3, no topics": ({"t": 1}, {"c": member("")}, "c"),
    "RG-5": (
        {"t1": 5, "t2": 4},
        {
            "x": member("t1 t2", instance="i1"),
            "b": member("t1 t2", instance="i2"),
            "a": member("t1 t2", instance="i3"),
            "c4": member("t1 t2"),
        },
        "x t1-0 t1-1 t2-0 | b t1-2 t2-1 | a t1-3 t2-2 | c4 t1-4 t2-3",
    ),
    "RG-8": (
        {
            **{t: {"partitions": 6, "racks": [["a"], ["b"]] * 3} for t in ("t1", "t2")},
            **{t: {"partitions": 2, "racks": [["a"], ["b"]]} for t in ("t3", "t4")},
        },
        {
            "c0": member("t1 t2", rack="a"),
            "c1": member("t1 t2", rack="b"),
            "c2": member("t3 t4", rack="b"),
            "c3": member("t3 t4", rack="a"),
        },
        "c0 t1-0 t1-2 t1-4 t2-0 t2-2 t2-4 | c1 t1-1 t1-3 t1-5 t2-1 t2-3 t2-5 | c2 t3-1 t4-1 | c3 t3-0 t4-0",
    ),
}

ROUND_ROBIN = {
    "RR-3": (
        {"t1": 3, "t2": 3},
        {**{f"c{n}": member("t1 t2", instance=f"i{n}") for n in (1, 2, 3)}, "c4": member("t1 t2")},
        "c1 t1-0 t2-1 | c2 t1-1 t2-2 | c3 t1-2 | c4 t2-0",
    ),
    "RR-4": (
        {"1": 2, "2": 1, "3": 2, "4": 1, "5": 2},
        {"m1": member("1 2 3 4 5"), "m2": member("1 3 5"), "m3": member("1 3 5"), "m4": member("1 2 3 4 5")},
        "m1 1-0 3-0 5-0 | m2 1-1 3-1 5-1 | m3 | m4 2-0 4-0",
    ),
}

STICKY = {
    "ST-3": (
        {"t0": 1, "t1": 2, "t2": 3},
        {"C1": member("t0 t1", "t1-0 t1-1", generation=1), "C2": member("t0 t1 t2", "t2-0 t2-1 t2-2", generation=1)},
        "C1 t0-0 t1-0 t1-1 | C2 t2-0 t2-1 t2-2",
    ),
    "ST-4": (
        {"t1": 2, "t2": 3},
        {"c1": member("t1 t2", "t1-0 t2-1", generation=1), "c2": member("t1 t2", "t1-1 t2-2", generation=1)},
        "c1 t1-0 t2-0 t2-1 | c2 t1-1 t2-2",
    ),
    "ST-5": (
        {"t1": 2, "t2": 3},
        {"c1": member("t1 t2", "t1-0"), "c2": member("t1 t2", "t1-1"), "c3": member("t1 t2")},
        "c1 t1-0 t2-1 | c2 t1-1 t2-2 | c3 t2-0",
    ),
    "ST-11": (
        {"t": 3, "t1": 3, "t2": 3, "t3": 3},
        {
            "c1": member("t t1 t2 t3"),
            "c2": member("t t1 t2 t3", "t-0 t1-0 t2-0", generation=9),
            "c3": member("t t1 t2 t3", "t1-1 t2-2 t3-2", generation=8),
            "c4": member("t t1 t2 t3", "t-1 t-2 t3-1", generation=7),
        },
        "c1 t1-2 t2-1 t3-0 | c2 t-0 t1-0 t2-0 | c3 t1-1 t2-2 t3-2 | c4 t-1 t-2 t3-1",
    ),
    "ST-14": (
        {"t": 4},
        {"c1": member("t", "t-0 t-1", generation=1), "c2": member("t", "t-2", generation=1), "c3": member("t")},
        "c1 t-0 t-1 | c2 t-2 | c3 t-3",
    ),
    "ST-15": (
        {"t": 3},
        {"a": member("t", "t-0 t-1", generation=1), "b": member("t", "t-2 t-3", generation=1)},
        "a t-0 t-1 | b t-2",
    ),
    "ST-16": ({"t1": 1, "t3": 3}, {"c": member("t1 t2 t3", "t2-0 t1-0")}, "c t1-0 t3-0 t3-1 t3-2"),
    "SG-1": (
        {"t1": 3, "t2": 2},
        {"c1": member("t1"), "c2": member("t1 t2"), "c3": member("t1")},
        "c1 t1-0 t1-2 | c2 t2-0 t2-1 | c3 t1-1",
    ),
    "SG-4": (
        {"t1": 2, "t2": 2},
        {"a": member("t1", "t1-0 t2-0", generation=1), "b": member("t1 t2", "t1-1 t2-1", generation=1)},
        "a t1-0 t1-1 | b t2-0 t2-1",
    ),
    "DF-2": (
        {"t": 4},
        {"b": member("t", "t-0 t-1", generation=4), "a": member("t", "t-0 t-1", generation=5)},
        "a t-0 t-1 | b t-2 t-3",
    ),
}

CASES = [
    pytest.param(assignor, *case, id=f"{name}, {assignor}")
    for assignors, cases in ((("range",), RANGE), (("roundrobin",), ROUND_ROBIN), (("sticky",), STICKY))
    for assignor in assignors
    for name, case in cases.items()
]


@pytest.mark.parametrize(("assignor", "topics", "members", "expected"), CASES)
def test_worked_case(plan, assignor, topics, members, expected):
    answer = plan(assignor, {"topics": topics, "members": members})
    assert answer["assignment"] == assigned(expected)
    assert answer["transferring"] == {}


def test_st_17_a_joining_member_takes_evenly_from_all_topics(plan):
    everything = " ".join(f"{t}-{n}" for t in ("t1", "t2") for n in range(12))
    answer = plan(
        "sticky",
        {"topics": {"t1": 12, "t2": 12}, "members": {"c1": member("t1 t2", everything), "c2": member("t1 t2")}},
    )
    assert answer["assignment"]["c1"] == {"t1": list(range(6)), "t2": list(range(6))}
    assert answer["moved"] == answer["fewest_moves"] == 12


def test_co_4_what_changes_racks_is_handed_over_in_two_rounds(plan):
    answer = plan(
        "cooperative-sticky",
        {
            "topics": {"t1": {"partitions": 4, "racks": [["a"], ["b"], ["a"], ["b"]]}},
            "members": {
                "c0": member("t1", "t1-0 t1-1", rack="a", generation=1),
                "c1": member("t1", "t1-2 t1-3", rack="b", generation=1),
            },
        },
    )
    assert answer["assignment"] == assigned("c0 t1-0 | c1 t1-3")
    assert answer["transferring"] == {"t1": {"1": "c1", "2": "c0"}}
    assert [(m["topic"], m["partition"], m["from"], m["to"]) for m in answer["moves"]] == [
        ("t1", 1, "c0", "c1"),
        ("t1", 2, "c1", "c0"),
    ]
    assert all("rack" in move["why"] for move in answer["moves"])
    assert answer["balance"] == {"min": 2, "max": 2, "optimal": True}


def test_ud_2_sticky_believes_user_data_and_not_the_fields(plan):
    members = {
        "c1": member("t1", user_data=encode_sticky_user_data({"t1": [0]}, 1).hex()),
        "c2": member("t1", "t1-2", user_data=encode_sticky_user_data({"t1": [1]}, 1).hex()),
        "c3": member("t1"),
    }
    answer = plan("sticky", {"topics": {"t1": 3}, "members": members})
    assert answer["assignment"] == assigned("c1 t1-0 | c2 t1-1 | c3 t1-2")
    assert answer["moved"] == 0


def test_user_data_that_cannot_be_read_is_no_claim(plan):
    members = {"c1": member("t", "t-0 t-1", user_data="ffff"), "c2": member("t", "t-0", generation=1)}
    assert plan("sticky", {"topics": {"t": 2}, "members": members})["assignment"]["c2"] == {"t": [0]}


def test_cooperative_sticky_reads_the_generation_from_user_data_where_the_field_has_none(plan):
    old = member("t", "t-0", user_data=encode_cooperative_user_data(4).hex())
    new = member("t", "t-0", generation=5, user_data=encode_cooperative_user_data(1).hex())
    answer = plan("cooperative-sticky", {"topics": {"t": 2}, "members": {"a": old, "b": new}})
    assert answer["assignment"] == assigned("a t-1 | b t-0")


def test_the_worked_example_of_the_design_document(plan):
    answer = plan(
        "cooperative-sticky",
        {
            "topics": {"t1": 3, "t2": {"partitions": 2, "racks": [["a"], ["b"]]}},
            "members": {
                "c1": {"topics": ["t1"], "owned": {"t1": [0, 1, 2]}, "generation": 5, "instance": "i1", "capacity": 2},
                "c2": {"topics": ["t1"]},
            },
            "offsets": {"t1": {"0": {"begin": 0, "end": 100, "committed": 40}, "2": {"begin": 3, "end": 8}}},
            "auto_offset_reset": "earliest",
        },
    )
    why = answer["moves"][0].pop("why")
    assert answer == {
        "assignment": {"c1": {"t1": [0, 1]}, "c2": {}},
        "transferring": {"t1": {"2": "c2"}},
        "moves": [{"topic": "t1", "partition": 2, "from": "c1", "to": "c2"}],
        "balance": {"min": 1, "max": 2, "optimal": True},
        "moved": 1,
        "fewest_moves": 1,
        "lag": {"c1": 60, "c2": 5},
    }
    assert why == "balance: c1 had 3 and keeps 2, c2 goes from 0 to 1"


def test_la_1_lag_is_evened_out_within_equal_counts(plan):
    offsets = {str(p): {"begin": 0, "end": end, "committed": 0} for p, end in enumerate((100_000, 60_000, 50_000))}
    problem = {"topics": {"t": 3}, "members": {"C0": member("t"), "C1": member("t")}, "offsets": {"t": offsets}}
    answer = plan("lag", problem)
    assert sorted(answer["lag"].values()) == [100_000, 110_000]
    assert plan("range", problem)["lag"] == {"C0": 160_000, "C1": 50_000}


@pytest.mark.parametrize(
    ("reset", "lag"), [("earliest", 90), ("none", 90), ("by_duration:PT1H", 90), ("latest", 0), (None, 0)]
)
def test_la_4_without_a_committed_offset_the_reset_policy_says_what_is_still_to_be_read(plan, reset, lag):
    problem = {"topics": {"t": 1}, "members": {"c": member("t")}, "offsets": {"t": {"0": {"begin": 10, "end": 100}}}}
    if reset:
        problem["auto_offset_reset"] = reset
    for assignor in ASSIGNORS:
        assert plan(assignor, problem)["lag"] == {"c": lag}


def test_lag_is_left_out_without_offsets(plan):
    assert "lag" not in plan("lag", {"topics": {"t": 1}, "members": {"c": member("t")}})


def test_capacity_counts_for_the_assignors_that_look_at_it(plan):
    members = {"big": member("t", capacity=3), "small": member("t")}
    assert len(plan("lag-sticky", {"topics": {"t": 8}, "members": members})["assignment"]["big"]["t"]) == 6
    assert len(plan("sticky", {"topics": {"t": 8}, "members": members})["assignment"]["big"]["t"]) == 4


def test_an_uneven_plan_is_called_so_and_the_fewest_moves_are_those_of_an_even_one(plan):
    problem = {
        "topics": {"t": 1, "u": 1, "v": 1},
        "members": {"a": member("t u v", "t-0 u-0 v-0"), "b": member("t u v")},
    }
    ranged = plan("range", problem)
    assert ranged["balance"] == {"min": 0, "max": 3, "optimal": False}
    assert (ranged["moved"], ranged["fewest_moves"]) == (0, 1)
    dealt = plan("roundrobin", problem)
    assert dealt["balance"]["optimal"]
    assert (dealt["moved"], dealt["fewest_moves"]) == (1, 1)


def test_nobody_and_nothing_are_problems_too(plan):
    for assignor in ASSIGNORS:
        empty = plan(assignor, {"topics": {"t": 2}, "members": {}})
        assert empty["assignment"] == {}
        assert empty["balance"] == {"min": 0, "max": 0, "optimal": True}
        assert plan(assignor, {"topics": {}, "members": {"c": member("t")}})["assignment"] == {"c": {}}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_hostile_claims_are_answered(plan, assignor):
    members = {
        "h": member("t", "t-0 t-0 t-7 nowhere-0", generation=2**31 - 1),
        "i": {"topics": ["t", "t", ""], "owned": {"t": [-1, 10**30, 0], "u": []}, "generation": -7},
        "j": member(""),
    }
    answer = plan(assignor, {"topics": {"t": 3}, "members": members})
    assert sorted(n for topics in answer["assignment"].values() for n in topics.get("t", [])) == [0, 1, 2] or (
        assignor.endswith("cooperative-sticky")
    )
    assert answer["assignment"]["j"] == {}


def shuffled(value: object, chance: random.Random) -> object:
    if isinstance(value, dict):
        names = list(value)
        chance.shuffle(names)
        return {name: shuffled(value[name], chance) for name in names}
    if isinstance(value, list) and all(isinstance(entry, str | int) for entry in value):
        return chance.sample(value, len(value))
    return value


@pytest.mark.process
@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.sampled(2)
def test_neither_order_nor_hash_seed_decides_anything(tmp_path, assignor):
    chance = random.Random(7)
    topics = {f"t{n}": n % 4 + 1 for n in range(8)}
    members = {
        f"m{n}": {
            "topics": chance.sample(sorted(topics), 5),
            "owned": {topic: [0] for topic in chance.sample(sorted(topics), 2)},
            "generation": chance.choice([-1, 3, 4]),
        }
        for n in range(9)
    }
    offsets = {topic: {"0": {"begin": 0, "end": chance.randrange(99)}} for topic in topics}
    problem = {"topics": topics, "members": members, "offsets": offsets, "auto_offset_reset": "earliest"}
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(shuffled(problem, chance)) + "\n" for _ in range(4)))
    answers = set()
    for seed in ("0", "1"):
        program = [sys.executable, "-c", "from roster.cli import main; main()", "plan", "-a", assignor, str(path)]
        out = subprocess.check_output(program, env={**os.environ, "PYTHONHASHSEED": seed}, text=True)
        answers |= {json.dumps(json.loads(line), sort_keys=True) for line in out.splitlines()}
    assert len(answers) == 1


GOOD = {"topics": {"t": 1}, "members": {"c": {"topics": ["t"]}}}

BAD = [
    (b"nonsense\n", "not JSON: Expecting value at column 1"),
    (b"\xff\n", "not UTF-8: invalid start byte at byte 0"),
    (b'{"topics": {"t": NaN}}\n', "NaN is not JSON, use null"),
    (b"[" * 100_000 + b"\n", "not JSON that can be read"),
    ([1], "must be an object, not [1]"),
    ({"members": {}}, "topics: is missing"),
    ({"topics": {}}, "members: is missing"),
    (
        {**GOOD, "member": {}},
        "member: unknown field; known are auto_offset_reset, generation, members, offsets, topics",
    ),
    ({"topics": [], "members": {}}, "topics: must be an object, not []"),
    ({"topics": {"t": -1}, "members": {}}, "topics.t: must be from 0 to 10000000, not -1"),
    ({"topics": {"t": 10**7, "u": 1}, "members": {}}, "topics.u: must be from 0 to 0, not 1"),
    ({"topics": {"t": True}, "members": {}}, "topics.t: must be a whole number, not true"),
    ({"topics": {"t": 1.5}, "members": {}}, "topics.t: must be a whole number, not 1.5"),
    ({"topics": {"t": {}}, "members": {}}, "topics.t.partitions: is missing"),
    (
        {"topics": {"t": {"partitions": 2, "racks": [[]]}}, "members": {}},
        "topics.t.racks: has 1 entries for 2 partitions",
    ),
    (
        {"topics": {"t": {"partitions": 1, "racks": [[3]]}}, "members": {}},
        "topics.t.racks[0][0]: must be a string, not 3",
    ),
    ({"topics": {}, "members": {"c": {}}}, "members.c.topics: is missing"),
    ({"topics": {}, "members": {"c": {"topics": "t"}}}, 'members.c.topics: must be a list, not "t"'),
    ({"topics": {}, "members": {"c": {"topics": ["t", 1]}}}, "members.c.topics[1]: must be a string, not 1"),
    (
        {"topics": {}, "members": {"c": {"topics": [], "owned": {"t": [0, "1"]}}}},
        'members.c.owned.t[1]: must be a whole number, not "1"',
    ),
    (
        {"topics": {}, "members": {"c": {"topics": [], "generation": 2**31}}},
        "members.c.generation: must be from -2147483648 to 2147483647, not 2147483648",
    ),
    ({"topics": {}, "members": {"c": {"topics": [], "rack": 1}}}, "members.c.rack: must be a string, not 1"),
    (
        {"topics": {}, "members": {"c": {"topics": [], "capacity": 0}}},
        "members.c.capacity: must be from 1 to 1048576, not 0",
    ),
    (
        {"topics": {}, "members": {"c": {"topics": [], "user_data": "0g"}}},
        'members.c.user_data: must be bytes in hex, not "0g"',
    ),
    ({"topics": {}, "members": {"c": {"topics": [], "ownd": {}}}}, "members.c.ownd: unknown field"),
    (b'{"topics": {"t": 1, "t": 2}, "members": {}}\n', "the name 't' stands twice in one object"),
    (b'{"topics": {"\\ud800": 1}, "members": {}}\n', "topics: '\\ud800' is half a character: a lone surrogate"),
    ({**GOOD, "auto_offset_reset": "soon"}, "auto_offset_reset: must be earliest, latest, none or by_duration: and"),
    ({**GOOD, "offsets": {"u": {}}}, "offsets.u: no such topic in topics"),
    ({**GOOD, "offsets": {"t": {"1": {"end": 1}}}}, "offsets.t.1: t has the partitions 0 to 0"),
    ({**GOOD, "offsets": {"t": {"0": {}}}}, "offsets.t.0.end: is missing"),
    ({**GOOD, "offsets": {"t": {"0": {"begin": 2, "end": 1}}}}, "offsets.t.0.begin: must be from 0 to 1, not 2"),
]


@pytest.mark.parametrize(("line", "complaint"), BAD)
def test_a_bad_line_is_named_with_its_field_and_the_others_are_answered(feed, line, complaint):
    code, out, err = feed("sticky", GOOD, line, b"\n", GOOD)
    assert code == 2
    assert [json.loads(each)["assignment"] for each in out.splitlines()] == [{"c": {"t": [0]}}] * 2
    assert len(err) == 1
    assert err[0].startswith(f"roster: error: line 2: {complaint}")


BAD_TASKS = [
    ({"tasks": {}}, "clients: is missing"),
    ({"tasks": {"0_x": {"stateful": True}}, "clients": {}}, "tasks.0_x: task '0_x' is not of the form"),
    ({"tasks": {"0_0": {}}, "clients": {}}, "tasks.0_0.stateful: is missing"),
    ({"tasks": {"0_0": {"stateful": 1}}, "clients": {}}, "tasks.0_0.stateful: must be true or false, not 1"),
    ({"tasks": {}, "clients": {"A": {"threads": 0}}}, "clients.A.threads: must be from 1 to"),
    ({"tasks": {}, "clients": {"A": {"tasks": {"0_0": {}}}}}, "clients.A.tasks.0_0.lag: is missing"),
    ({"tasks": {}, "clients": {"A": {"rack": 1}}}, "clients.A.rack: must be"),
    ({"tasks": {}, "clients": {}, "standbys": -1}, "standbys: must be from 0 to"),
    ({"tasks": {}, "clients": {}, "max_warmup": 1}, "max_warmup: unknown field"),
]


@pytest.mark.parametrize(("line", "complaint"), BAD_TASKS)
def test_a_bad_line_of_tasks_is_named_with_its_field(feed, line, complaint):
    code, out, err = feed("tasks", line, {"tasks": {}, "clients": {}})
    assert code == 2
    assert json.loads(out) == {"clients": {}, "followup": False}
    assert err[0].startswith(f"roster: error: line 1: {complaint}")


def stateful(*names: str) -> dict:
    return {name: {"stateful": True} for name in names}


def client(threads: int = 1, **lags: int) -> dict:
    return {"threads": threads, "tasks": {name.lstrip("t"): {"lag": lag} for name, lag in lags.items()}}


T9 = [f"{s}_{p}" for s in range(3) for p in range(3)]
RUNNING = -2


def test_ha_1_nobody_caught_up_means_an_even_placement_at_once(plan):
    tasks = {"tasks": stateful(*T9), "acceptable_lag": 0}
    clients = {name: client(**{f"t{task}": 10 for task in T9}) for name in "ABC"}
    answer = plan("tasks", {**tasks, "clients": clients})
    assert [len(answer["clients"][name]["active"]) for name in "ABC"] == [3, 3, 3]
    assert {task.split("_")[0] for task in answer["clients"]["A"]["active"]} == {"0", "1", "2"}
    assert answer["followup"] is False


def test_ha_6_a_stateful_task_stays_where_it_is_caught_up(plan):
    answer = plan(
        "tasks",
        {
            "tasks": {"0_0": {"stateful": True}, "0_1": {"stateful": False}},
            "clients": {"c1": client(t0_0=500), "c2": client(t0_0=0, t0_1=RUNNING)},
            "acceptable_lag": 100,
        },
    )
    assert answer["clients"]["c2"]["active"] == ["0_0"]
    assert answer["clients"]["c1"]["active"] == ["0_1"]


def test_ha_7_the_most_caught_up_runs_it(plan):
    clients = {"c1": client(), "c2": client(t0_0=1000), "c3": client(t0_0=500)}
    answer = plan("tasks", {"tasks": stateful("0_0"), "clients": clients, "acceptable_lag": 100, "standbys": 1})
    assert answer["clients"]["c3"]["active"] == ["0_0"]


def test_ha_8_warm_ups_keep_to_their_budget(plan):
    tasks = [f"0_{n}" for n in range(4)]
    clients = {"c1": client(**{f"t{task}": RUNNING for task in tasks}), "c2": client()}
    answer = plan("tasks", {"tasks": stateful(*tasks), "clients": clients, "max_warmups": 1})
    assert answer["clients"]["c1"]["active"] == tasks
    assert len(answer["clients"]["c2"]["warmup"]) == 1
    assert answer["followup"] is True


def test_ha_9_one_client_gets_no_standby(plan):
    answer = plan("tasks", {"tasks": stateful("0_0"), "clients": {"c": client()}, "standbys": 1})
    assert answer == {"clients": {"c": {"active": ["0_0"], "standby": [], "warmup": []}}, "followup": False}


def test_copies_of_a_task_are_spread_over_racks(plan):
    racks = {"c1": "r1", "c2": "r1", "c3": "r2"}
    clients = {name: client() | {"rack": rack} for name, rack in racks.items()}
    answer = plan("tasks", {"tasks": stateful("0_0"), "clients": clients, "standbys": 1})
    assert {racks[name] for name, each in answer["clients"].items() if each["active"] or each["standby"]} == {
        "r1",
        "r2",
    }


@pytest.mark.parametrize(("a", "b"), [("0_0 0_2", "0_1 0_3"), ("0_0 0_1", "0_2 0_3")])
def test_ha_12_a_level_placement_is_left_alone(plan, a, b):
    clients = {name: client(**{f"t{task}": RUNNING for task in each.split()}) for name, each in (("A", a), ("B", b))}
    answer = plan("tasks", {"tasks": stateful("0_0", "0_1", "0_2", "0_3"), "clients": clients})
    assert answer["clients"]["A"]["active"] == a.split()
    assert answer["followup"] is False


def test_explain_says_each_move_and_a_summary(feed):
    problem = {"topics": {"t": 4}, "members": {"a": member("t", "t-0 t-1 t-2"), "b": member("t")}}
    code, out, err = feed("sticky", problem, options=("--explain",))
    assert (code, err) == (0, [])
    assert "line 1: sticky: 2 unchanged, 1 moved, 1 placed that had no owner; 2 to 2 partitions each, as even" in out
    assert "balance: a had 3 and keeps 2, b goes from 0 to 2" in out
    code, out, _ = feed("tasks", {"tasks": stateful("0_0"), "clients": {"A": client()}}, options=("--explain",))
    assert code == 0
    assert "A       0_0" in out


OWN_ASSIGNOR = """
from roster.assignors import Assignor
from roster.model import Plan

class First(Assignor):
    name = "first-takes-all"

    def assign(self, problem):
        if problem.members[0] == "broken":
            raise LookupError("no first")
        return Plan.from_assignment(problem, {problem.members[0]: {"t": [*range(problem.counts[0])]}})

class Chosen:
    first = First()

class Choosy(First):
    def __init__(self, choice):
        pass

NO_ASSIGNOR = 5
"""


@pytest.fixture
def own_assignor(tmp_path, monkeypatch):
    """`module:` of a file in the current directory."""
    module = f"assignor_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(OWN_ASSIGNOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    yield module
    sys.modules.pop(module, None)


@pytest.mark.parametrize("attribute", ["First", "Chosen.first"])
def test_an_assignor_of_ones_own_is_named_by_module_and_attribute(plan, own_assignor, attribute):
    problem = {"topics": {"t": 3}, "members": {"a": member("t"), "b": member("t", "t-1")}}
    answer = plan(f"{own_assignor}:{attribute}", problem)
    assert answer["assignment"] == {"a": {"t": [0, 1, 2]}, "b": {}}
    assert not answer["balance"]["optimal"], "the proof does not depend on the assignor"


@pytest.mark.parametrize(
    ("attribute", "complaint"),
    [
        ("{}:", "must be MODULE:ATTRIBUTE, for example my_assignors:RACK_AWARE"),
        (":First", "must be MODULE:ATTRIBUTE"),
        ("{}_2:First", "cannot be imported: ModuleNotFoundError"),
        ("{}:Second", "has no attribute 'Second'"),
        ("{}:NO_ASSIGNOR", "NO_ASSIGNOR' is of type int, not a roster.assignors.Assignor"),
        ("{}:Chosen", "Chosen' is of type type, not a roster.assignors.Assignor"),
        ("{}:Choosy", "Choosy() failed: TypeError: "),
    ],
)
def test_an_assignor_of_ones_own_that_is_not_there_is_one_line(own_assignor, capsys, attribute, complaint):
    assert run(["plan", "--assignor", attribute.format(own_assignor)]) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1


def test_an_error_of_ones_own_assignor_names_it(feed, own_assignor):
    problem = {"topics": {"t": 3}, "members": {"broken": member("t")}}
    code, out, complaints = feed(f"{own_assignor}:First", problem)
    assert (code, out) == (1, "")
    assert complaints[-1].endswith("assignor first-takes-all: LookupError: no first")


@pytest.mark.process
def test_lines_are_answered_as_they_come():
    program = [sys.executable, "-c", "from roster.cli import main; main()", "plan", "-a", "range"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for _ in range(3):
            process.stdin.write(json.dumps(GOOD).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["assignment"] == {"c": {"t": [0]}}
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["plan", "-a", "range", "-a", "sticky"], "--assignor: several only with --group"),
        (["plan", "-a", "fair"], "'fair' is not one of 'range'"),
        (["plan", "-a", "range", "/no/such/file"], "No such file"),
        (["plan", "-a", "range", "--lag"], "--lag goes with --group"),
        (["plan", "-a", "range", "--json"], "--json goes with --group"),
        (["plan", "-g", "g", "-"], "leave FILE out"),
        (["plan", "-g", "g", "-a", "tasks"], "tasks reads problems; `roster groups describe` shows the tasks"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(capsys, arguments, complaint):
    assert run(arguments) == 2
    _, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert complaint in err
