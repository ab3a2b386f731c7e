"""What Spark makes of a recorded history: the tables of all groups, and a replay, are those of each group alone."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.assignors import find_assignor
from roster.cli.root import run
from roster.history.derived import TABLES, GroupHistory
from roster.history.folder import HistoryError, HistoryFolder
from roster.history.replay import replay
from roster.model import TopicPartition
from roster.spark import history_tables, replay_history
from tests.history.made_up import happening, write_history
from tests.spark.programs import run_in_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.spark]
NAMES = ["range", "cooperative-sticky", "lag-cooperative-sticky"]


def rows(frame: DataFrame) -> list[Any]:
    return sorted(map(repr, frame.toArrow().to_pylist()))


@pytest.mark.gate
def test_tables_and_replays_of_all_groups_are_those_of_each(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HistoryError, match="has no history"):
        history_tables(spark, str(tmp_path), str(tmp_path / "tables"))
    groups = {f"group {number} <b>": happening(number, 6, "cooperative-sticky") for number in range(5)}
    tps = [TopicPartition(topic, number) for topic in ("t0", "t1") for number in range(4)]
    chance, start = random.Random(1), 1_790_000_000_000
    commits = {tp: [(start + i * 20_000, 10 * i) for i in range(12)] for tp in tps}
    ends = {tp: [(start + i * 60_000, chance.randint(100, 200) * i) for i in range(6)] for tp in tps}
    folder = tmp_path / "history"
    write_history(folder, groups, commits, ends)
    alone = [GroupHistory(HistoryFolder(folder).events(name)) for name in groups]

    written = history_tables(spark, str(folder), str(tmp_path / "tables"))
    assert (tmp_path / "tables" / "table=moves").is_dir()
    with pytest.raises(HistoryError, match="has a history, which the tables would replace"):
        history_tables(spark, str(folder), str(folder))
    for name in TABLES:
        expected = sorted(repr(row) for each in alone for row in dict(each.tables())[name].to_pylist())
        assert expected
        assert rows(written[name]) == expected, name

    replays = replay_history(spark, str(folder), NAMES)
    assignors = [find_assignor(name) for name in NAMES]
    expected = sorted(repr(row) for each in alone for row in replay(each, assignors).to_pylist())
    assert rows(replays) == expected

    page = (Path(__file__).parents[2] / "docs" / "how-to" / "replay.md").read_text()
    program, _ = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    run_in_session(spark, tmp_path, "program.py")

    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    to = tmp_path / "replay"
    command = ["history", "replay", "--from", str(folder), "--to", str(to), "--assignors", ",".join(NAMES)]
    capsys.readouterr()
    assert run(command) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["assignor", *sorted(NAMES)]
    assert rows(spark.read.parquet(f"{to}/replays")) == expected
    page = (to / "report.html").read_text()
    assert page.count("<polyline") == 2 * len(NAMES)
    assert "group 0 &lt;b&gt;" in page
    assert run(command) == 2
    assert "exists; name a new folder" in capsys.readouterr().err

    damaged = next((folder / "records" / "table=groups").rglob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    command[command.index(str(to))] = str(tmp_path / "again")
    assert run(command) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("roster: error: ")]
    assert line.startswith("roster: error: --from: ")
    assert damaged.name in line
