"""`roster plan` with user data of the assignors that look at lag."""

from __future__ import annotations

import json

import pytest

from roster.cli.root import run
from roster.wire.consumer.user_data import encode_cooperative_user_data, encode_lag_user_data, encode_sticky_user_data


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
