"""`roster history` on real groups: what was done to them is what the history says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from roster.cli.root import run
from roster.history.case import replay_case
from roster.spark import record_history
from tests.real.realparts.cluster import unique
from tests.real.realparts.groups import commit_all, consumed_up_to, partitions, shared_out
from tests.spark.programs import run_in_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "history.md"
pytestmark = [pytest.mark.timeout(300), pytest.mark.spark]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert run(["history", "show", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def write_and_run_the_page(
    spark: SparkSession, bootstrap: str, folder: Path, recorder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Record by the page's program, and call its commands; the folder of both is `history` in `folder`."""
    page = PAGE.read_text()
    program, tables = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    changed = program.replace('"127.0.0.1:9092", "history"', f'{bootstrap!r}, "history", group={recorder!r}')
    assert changed != program
    (folder / "program.py").write_text(changed)
    run_in_session(spark, folder, "program.py")
    (folder / "tables.py").write_text(tables)
    run_in_session(spark, folder, "tables.py")
    shows = re.findall(r"^roster (history show .*)$", page, re.MULTILINE)
    assert len(shows) == 3
    for line in shows:
        words = [str(folder / word) if word == "history" else word for word in line.split()[1:]]
        assert run(["history", *words]) == 2
        assert "no rebalances of group shops" in capsys.readouterr().err


def kinds(rebalance: dict[str, Any]) -> set[str]:
    return {cause["kind"] for cause in rebalance["causes"]}


@pytest.mark.gate
def test_what_was_done_to_a_group_is_what_its_history_says(
    spark: SparkSession, cluster: Any, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, group, recorder = cluster.create_topic(partitions=6, records=5), unique("group"), unique("recorder")
    everything, folder = partitions(topic, 6), str(tmp_path / "history")
    chosen = {"topics": [topic], "assignors": ["cooperative-sticky"]}

    first = client("roster", cluster, group, **chosen)
    shared_out([first], everything)
    consumed_up_to([first], dict.fromkeys(everything, 5))
    commit_all(cluster, group, [first], dict.fromkeys(everything, 5))
    write_and_run_the_page(spark, cluster.bootstrap, tmp_path, recorder, capsys)

    second = client("roster", cluster, group, **chosen)
    shared_out([first, second], everything)
    first.close()
    shared_out([second], everything)
    cluster.add_partitions(topic, 8)
    every = partitions(topic, 8)
    shared_out([second], every)
    static = client("roster", cluster, group, instance="shelf", **chosen)
    shared_out([second, static], every)
    static.close()
    again = client("roster", cluster, group, instance="shelf", **chosen)
    shared_out([second, again], every)
    record_history(spark, cluster.bootstrap, folder, group=recorder, available_now=True)

    found = shown(capsys, group, "--from", folder)
    assert found["damaged"] == 0
    at = [kinds(each) for each in found["rebalances"]].index({"left_or_expired"})
    begin, joined, *follow_ups, left = found["rebalances"][: at + 1]
    assert kinds(joined) == {"joined"}
    unowned = sorted(move["partition"] for move in joined["moves"] if move["target"] is None)
    assert (joined["unowned"], len(unowned)) == (3, 3)
    assert [kinds(each) for each in follow_ups] == [{"follow_up"}]
    assert sorted(move["partition"] for move in follow_ups[0]["moves"]) == unowned
    assert joined["unowned_partition_ms"] > 0
    assert (left["members"], kinds(left)) == (1, {"left_or_expired"})
    (gone,), (came,) = left["causes"], joined["causes"]
    assert gone["member_id"] == begin["leader"] != came["member_id"] == left["leader"]
    assert begin["generation"] < joined["generation"]

    assert {move["why"] for move in joined["moves"]} == {"given up for the next round"}
    assert all(each["sync_ms"] >= 0 for each in found["rebalances"][1 : at + 1])

    grown, static_joined, *others, replaced = found["rebalances"][at + 1 :]
    assert kinds(grown) == {"partitions_added"}
    assert grown["causes"][0]["detail"] == f"{topic}-6, {topic}-7"
    assert kinds(static_joined) == {"joined"}
    assert {kind for each in others for kind in kinds(each)} == {"follow_up"}
    assert kinds(replaced) == {"static_member_replaced"}
    assert (replaced["causes"][0]["instance_id"], replaced["moves"]) == ("shelf", [])

    for number in {each["generation"] for each in found["rebalances"] if each["members"]}:
        assert run(["history", "export-case", group, "--from", folder, "--generation", str(number)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        (tmp_path / "case.json").write_text(out)
        replay_case(tmp_path / "case.json")

    owners = shown(capsys, group, "--from", folder, "--partition", f"{topic}:5")
    assert (owners[0]["member_id"], owners[0]["from"]) == (begin["leader"], begin["ended_at"])
    (then,) = shown(capsys, group, "--from", folder, "--partition", f"{topic}:5", "--at", left["ended_at"])
    assert then["member_id"] == came["member_id"]

    commits = ds.dataset(f"{folder}/records", partitioning="hive").to_table(
        filter=(ds.field("table") == "commits") & (ds.field("group") == group)
    )
    stored = {(row["topic"], row["partition"]): row["offset"] for row in commits.to_pylist()}
    assert stored == {tuple(tp): 5 for tp in everything}
    ends = ds.dataset(f"{folder}/ends", partitioning="hive").to_table(filter=ds.field("topic") == topic)
    first = [row for row in ends.to_pylist() if row["at"] == min(ends["at"].to_pylist())]
    assert {(row["partition"], row["begin"], row["end"]) for row in first} == {(n, 0, 5) for n in range(6)}
