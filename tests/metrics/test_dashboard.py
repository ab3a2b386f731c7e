"""The dashboard and the alert rules: every query names metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from roster.broker.hooks import Hooks, Measures
from roster.client import MemberStatistics, Ownership
from roster.metrics.broker import BrokerMetrics
from roster.metrics.exporter import GroupExporter
from roster.metrics.families import metrics_page
from roster.metrics.positions import PositionReader
from roster.metrics.record_times import RecordTimes
from roster.model import TopicPartition
from roster.testing.broker import BrokerThread, quick_config
from tests.real.realparts import require_real
from tests.spark.test_pipeline_metrics import Positions, metrics_of

ROOT = Path(__file__).parents[2]
RULES, DASHBOARD = ROOT / "docs/monitoring/roster.rules.yml", ROOT / "docs/monitoring/grafana.json"
OURS = re.compile(r"\b(?:kafka|roster)_\w+")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]  # type: ignore[no-any-return]


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]  # type: ignore[no-any-return]


def queries() -> list[str]:
    return [rule["expr"] for rule in rules()] + [target["expr"] for panel in panels() for target in panel["targets"]]


def names_in(registry: CollectorRegistry) -> set[str]:
    found = re.findall(r"^# TYPE (\w+) (\w+)$", metrics_page(registry).answer("").body.decode(), re.MULTILINE)
    histograms = {name for name, kind in found if kind == "histogram"}
    return {name for name, _ in found} | {
        f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")
    }


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    member = MemberStatistics()
    member.owns(Ownership(1, "m", frozenset({TopicPartition("t", 0)})), 0.0)
    pipeline = metrics_of(Positions(), member)
    admin: Any = None
    exporter = CollectorRegistry()
    exporter.register(GroupExporter(admin, PositionReader(admin, RecordTimes("h:1", "c")), re.compile("")))
    broker = CollectorRegistry()
    with BrokerThread(quick_config(tmp_path_factory.mktemp("broker")), Hooks(measures=Measures())) as running:
        broker.register(BrokerMetrics(running.broker, running.loop))
        return names_in(pipeline.registry) | names_in(exporter) | names_in(broker)


def test_every_query_names_metrics_that_exist(known: set[str]) -> None:
    named = {name for query in queries() for name in OURS.findall(query)}
    assert len(named) > 12
    assert named - known == set()


def test_the_page_about_metrics_names_those_that_exist(known: set[str]) -> None:
    page = (ROOT / "docs/how-to/monitor.md").read_text()
    assert set(OURS.findall(page)) - known == set()


def test_rules_and_panels_are_whole() -> None:
    assert len(rules()) == 6
    for rule in rules():
        assert rule["alert"].startswith("Roster")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert len({panel["title"] for panel in panels()}) == len(panels())
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()}
    assert len(places) == len(panels())


def test_the_page_tells_of_every_alert() -> None:
    page = (ROOT / "docs/how-to/monitor.md").read_text()
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []


@pytest.mark.process
def test_prometheus_fires_the_alerts_as_they_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool") or require_real("promtool is not on the PATH (Debian: prometheus)")
    told = tmp_path / "told.yml"
    told.write_text((Path(__file__).parent / "rules_test.yml").read_text().replace("RULES", str(RULES)))
    each = (query.replace("$__rate_interval", "5m") for query in queries())
    panel_rules = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(each)]
    of_panels = tmp_path / "panels.yml"
    of_panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panel_rules}]}))
    for command in (["test", "rules", str(told)], ["check", "rules", str(RULES), str(of_panels)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
