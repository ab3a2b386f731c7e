"""`roster plan --assignor tasks --group` and `roster groups describe` on a group of tasks that lives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from roster.broker import Broker
from roster.cli.root import run
from roster.client import Admin, GroupMember
from roster.testing.broker import running_broker
from tests.client.task_application import TASKS, Application, applications
from tests.waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as running, Admin(running.bootstrap) as admin:
        admin.create_topic("orders", 4)
        yield running


@pytest.fixture
def shell(broker: Broker, capsys: pytest.CaptureFixture[str]):
    """shell(…) runs a command against the broker: exit code, output, errors."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run([*arguments, "--bootstrap", broker.bootstrap])
        return code, *capsys.readouterr()

    return command


def tasks_of(shell) -> dict[str, tuple[str, list[tuple[str, int]]]]:
    _, out, _ = shell("groups", "describe", "g", "--json")
    return {
        each["task"]: (each["owner"], [(copy["member_id"], copy["gap_at_join"]) for copy in each["standbys"]])
        for each in json.loads(out)["tasks"]
    }


def is_stable(shell) -> bool:
    _, out, _ = shell("groups", "describe", "g", "--json")
    return json.loads(out)["state"] == "Stable"


def test_owners_copies_and_gaps_are_shown_and_the_plan_is_what_the_leader_would_do(broker, shell):
    names = sorted(map(str, TASKS))
    with applications() as running:
        running.append(Application(broker.bootstrap, "g", "orders"))
        running.append(Application(broker.bootstrap, "g", "orders", dict.fromkeys(TASKS, 500)))
        first, second = running[0].member, running[1].member
        until(lambda: len(second.tasks().restoring) == 4 and is_stable(shell), what="the copies are behind")
        ids = [member.ownership().member_id for member in (first, second)]
        assert tasks_of(shell) == {task: (ids[0], [(ids[1], 500)]) for task in names}
        code, out, _ = shell("groups", "describe", "g")
        rows = [line.split() for line in out.splitlines() if line[:3] in names]
        assert (code, [(row[0], row[-1]) for row in rows]) == (0, [(task, "500") for task in names])
        assert re.search(r"^task +owner +standby +gap at join$", out, re.MULTILINE)

        code, out, _ = shell("plan", "-a", "tasks", "-g", "g", "--acceptable-lag", "10", "--json")
        told = json.loads(out)
        assert (code, told["moves"], told["followup"]) == (0, [], True)
        assert told["clients"][ids[0]]["active"] == names

        code, out, _ = shell("plan", "-a", "tasks", "-g", "g", "--acceptable-lag", "500", "--json")
        moved = json.loads(out)["moves"]
        assert [(move["from"], move["to"]) for move in moved] == [(ids[0], ids[1])] * 2
        assert moved[0]["why"] == "balance, the copy there is 500 records behind"
        code, out, _ = shell("plan", "-a", "tasks", "-g", "g", "--acceptable-lag", "500")
        assert code == 0
        assert len([line for line in out.splitlines() if "records behind" in line]) == 2

        running[1].restore()
        until(lambda: is_stable(shell) and len(second.tasks().active) == 2, what="the leader did so too")
        planned = {move["task"] for move in moved}
        assert {task for task, (owner, _) in tasks_of(shell).items() if owner == ids[1]} == planned
        _, out, _ = shell("plan", "-a", "tasks", "-g", "g", "--acceptable-lag", "10", "--json")
        assert json.loads(out)["moves"] == []


def test_a_group_that_runs_no_tasks_and_options_that_nothing_reads(broker, shell):
    with GroupMember(broker.bootstrap, "plain", ["orders"]):
        code, _, err = shell("plan", "-a", "tasks", "-g", "plain")
        assert (code, err) == (
            2,
            "roster: error: --assignor: plain uses cooperative-sticky; its members run no tasks\n",
        )
    code, _, err = shell("plan", "-a", "tasks", "-a", "range", "-g", "g")
    assert code == 2
    assert "cannot be compared with assignors of partitions" in err
    code, _, err = shell("plan", "-a", "range", "-g", "g", "--standbys", "1")
    assert code == 2
    assert "--standbys goes with --group and --assignor tasks" in err
