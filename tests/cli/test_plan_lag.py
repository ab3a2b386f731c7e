"""`roster plan` with the options of the policies that look at lag."""

from __future__ import annotations

import json

import pytest

from roster.cli.root import run
from roster.wire.consumer.user_data import encode_cooperative_user_data, encode_lag_user_data, encode_sticky_user_data


@pytest.fixture
def loads(tmp_path, capsys):
    """loads(*arguments) answers a group of which a is twice as far behind as b: {member: lag}."""
    problem = {
        "topics": {"t": 4},
        "members": {
            "a": {"topics": ["t"], "owned": {"t": [0, 1]}, "generation": 1},
            "b": {"topics": ["t"], "owned": {"t": [2, 3]}, "generation": 1},
        },
        "offsets": {"t": {str(p): {"end": end, "committed": 0} for p, end in enumerate((120, 80, 60, 40))}},
    }
    path = tmp_path / "problem.jsonl"
    path.write_text(json.dumps(problem))

    def answer(*arguments: str) -> dict[str, int]:
        assert run(["plan", *arguments, str(path)]) == 0
        return json.loads(capsys.readouterr().out)["lag"]

    return answer


@pytest.mark.parametrize(
    ("assignor", "rest"),
    [
        ("lag-sticky", encode_sticky_user_data({"t": [2, 3]}, 7)),
        ("lag-cooperative-sticky", encode_cooperative_user_data(7)),
    ],
)
def test_user_data_with_capacity_in_front_is_read_as_the_leader_reads_it(tmp_path, capsys, assignor, rest):
    data = encode_lag_user_data(rest, capacity=3, settling=False)
    owned = {"owned": {"t": [2, 3]}, "user_data": data.hex()}
    members = {"a": {"topics": ["t"], **owned}, "b": {"topics": ["t"], "owned": {"t": [2, 3]}, "generation": 6}}
    path = tmp_path / "problem.jsonl"
    path.write_text(json.dumps({"topics": {"t": 4}, "members": members}))
    assert run(["plan", "-a", assignor, str(path)]) == 0
    (mine, theirs) = json.loads(capsys.readouterr().out)["assignment"].values()
    assert (len(mine["t"]), len(theirs["t"])) == (3, 1)
    assert {2, 3} <= set(mine["t"])


EVENED, AS_IT_IS = {160, 140}, {200, 100}


@pytest.mark.parametrize("assignor", ["lag-sticky", "lag-cooperative-sticky"])
@pytest.mark.parametrize(
    ("options", "lag"),
    [
        ((), EVENED),
        (("--max-skew", "0"), EVENED),
        (("--max-skew", "0.4"), AS_IT_IS),
        (("--hysteresis", "0.19"), EVENED),
        (("--hysteresis", "0.3"), AS_IT_IS),
        (("--movement-cost", "10"), EVENED),
        (("--movement-cost", "50"), AS_IT_IS),
        (("--max-skew", "0.4", "--movement-cost", "10"), AS_IT_IS),
    ],
)
def test_each_option_decides_whether_partitions_move_for_lag(loads, assignor, options, lag):
    assert set(loads("-a", assignor, *options).values()) == lag


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("-a", "lag-sticky", "--max-skew", "-1"), "'--max-skew': max_skew must be a number from 0 up, such as 0.1"),
        (("-a", "lag-sticky", "--hysteresis", "nan"), "'--hysteresis': hysteresis must be a number from 0 up"),
        (("-a", "lag-sticky", "--movement-cost", "1.5"), "'--movement-cost': '1.5' is not a valid integer"),
        (("-a", "lag-sticky", "--movement-cost", "-5"), "movement_cost must be a whole number of records from 0 up"),
        (("-a", "sticky", "--max-skew", "1"), "--max-skew: only for lag-sticky and lag-cooperative-sticky; name one"),
        (("-a", "tasks", "--movement-cost", "1"), "--movement-cost: only for lag-sticky and lag-cooperative-sticky"),
        (("-g", "g", "--hysteresis", "0.5"), "--hysteresis: only for lag-sticky and lag-cooperative-sticky"),
        (("-g", "g", "-a", "range", "--lag", "--max-skew", "0.5"), "--max-skew: only for lag-sticky and lag-cooper"),
    ],
)
def test_an_option_that_cannot_be_is_one_line(capsys, arguments, complaint):
    assert run(["plan", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
