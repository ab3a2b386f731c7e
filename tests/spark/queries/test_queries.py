"""Reads of a group's state against plain dictionaries: here, in other applications, over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
import threading
import time
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.client import Admin
from roster.http.server import HttpServer, is_own_name
from roster.model import Address, TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range
from roster.pipeline.driver.reporting import Reporter
from roster.pipeline.driver.runner_protocol import Outcome
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options
from roster.spark import State
from roster.spark.http_server import pages, serving
from roster.spark.queries import view
from roster.spark.queries.client import StateClient
from roster.spark.queries.pages import Served, answer
from roster.spark.queries.store_reads import LocalState, ReadsHere
from roster.spark.queries.view import StateUnavailableError, StateView, view_of
from roster.state import Position
from roster.state.aggregate import Aggregation
from roster.state.definition import json_text
from roster.state.entries import Span
from roster.state.store import StateError
from roster.stateful.changelogs import Changelogs, open_changelog
from roster.stateful.restore_schedule import Copies
from roster.stateful.stores import Stores, StoreTargets, task_member
from roster.stateful.tasks.processing import Operator, process_batch
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.subtopology import OperatorNode, SubtopologyPlan, definition_of
from tests.clocks import patch_time
from tests.http.test_server import Certificates
from tests.state.aggregate_texts import aggregate_of
from tests.stateful.test_restore_schedule import CHANGELOG, Case, at
from tests.stateful.test_store_processing import Log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COLUMNS = pa.schema([("day", pa.int64()), ("name", pa.string())])
COUNTS = Aggregation(("day", "name"), {"n": aggregate_of("count(*)")})
DEFINITION = definition_of(COUNTS, COLUMNS)


class Application:
    """An application whose tasks take turns, with the view that it has of its group."""

    def __init__(
        self,
        directory: Path,
        active: Sequence[int] = range(4),
        standby: Sequence[int] = (),
        operator: Operator = COUNTS,
        columns: pa.Schema = COLUMNS,
    ) -> None:
        self.operator, self.columns, self.definition = operator, columns, definition_of(operator, columns)
        self.log, self.place, self.at = Log(), Place(str(directory), "c", "id", self.definition.is_ordered), 0
        self.targets = StoreTargets(self.log, Changelogs([CHANGELOG]), 1.0)
        self.case = Case(dict.fromkeys(range(4), 0))
        self.case.join({})
        self.case.member.become(active, standby)
        self.case.copies.assigned([TopicPartition("t", number) for number in active])
        reads = ReadsHere(self.place, self.definition)
        self.local = LocalState(reads, CHANGELOG, self.case.copies, self.targets.last_commit)
        self.view = self.viewed(None)

    def viewed(self, own: Address | None) -> StateView:
        client = StateClient("totals", self.definition.fingerprint, 60.0)
        return StateView(self.local, self.definition, self.case.copies, client, own)

    @property
    def served(self) -> Served:
        return Served("totals", self.definition.fingerprint, self.view, self.local)

    def batch(self, rows: list[tuple[int, str]], *, committed: bool = True, partition: int = 0) -> None:
        days, names = zip(*rows, strict=True)
        self.turn(pa.table([pa.array(days), pa.array(names)], schema=COLUMNS), committed=committed, partition=partition)

    def turn(self, table: pa.Table, *, committed: bool = True, partition: int = 0) -> None:
        source = TopicPartition("t", partition)
        batch = Batch(0, Owner("g", 1, "m"), {source: Range(self.at, self.at + 5)})
        with self.place.open(f"0_{partition}") as store:
            target = self.targets.prepare(batch)[TaskId(0, partition)][0]
            of_store = self.operator, self.definition
            update, report = process_batch(store, target, *of_store, table, {"t": self.at + 5}, self.log.fetch)
        self.log.write(update.changes, committed=committed)
        if committed:
            self.targets.committed({TaskId(0, partition): report.token}, batch)
            self.at += 5
        else:
            self.targets.forget([source])


def row(day: int, name: str, n: int) -> dict[str, Any]:
    return {"day": day, "name": name, "n": n}


def test_a_committed_batch_is_seen_before_it_is_applied_and_an_aborted_one_never(tmp_path: Path) -> None:
    task = Application(tmp_path)
    assert task.view.get(1, "a") is None
    task.batch([(1, "a"), (1, "b"), (2, "a")])
    assert task.view.get(1, "a") == row(1, "a", 1)
    task.batch([(1, "a")])
    task.batch([(1, "a")], committed=False)
    assert task.view.get(1, "a") == row(1, "a", 2)
    task.batch([(3, "c")])
    assert task.view.prefix() == [row(1, "a", 2), row(1, "b", 1), row(2, "a", 1), row(3, "c", 1)]
    assert task.view.prefix(1) == [row(1, "a", 2), row(1, "b", 1)]
    assert task.view.range((1, "b"), (3,)) == [row(1, "b", 1), row(2, "a", 1)]
    assert task.view.range((2,)) == [row(2, "a", 1), row(3, "c", 1)]
    assert task.view.prefix(limit=2) == [row(1, "a", 2), row(1, "b", 1)]


def test_a_query_sees_a_store_as_the_own_release_has_it_or_not_at_all(tmp_path: Path) -> None:
    old = Application(tmp_path)
    old.batch([(1, "a"), (1, "a")])
    settled(old, 0)
    both = Aggregation(("day", "name"), {"first": aggregate_of("min(day)"), "n": aggregate_of("count(*)")})
    new = Application(tmp_path, operator=both)
    new.log, new.at, new.targets = old.log, old.at, StoreTargets(old.log, Changelogs([CHANGELOG]), 1.0)
    assert new.view.get(1, "a") == {"day": 1, "name": "a", "first": None, "n": 2}, "before its first batch"
    new.batch([(2, "b")])
    settled(new, 0)
    assert new.view.prefix() == [
        {"day": 1, "name": "a", "first": None, "n": 2},
        {"day": 2, "name": "b", "first": 2, "n": 1},
    ]
    found = old.local.read(Span(), [TaskId(0, 0)], stale=False)
    assert (found.reads, list(found.problems)) == ({}, [TaskId(0, 0)])
    assert "a newer release has changed its state" in found.problems[TaskId(0, 0)]


def settled(application: Application, partition: int) -> None:
    """Apply what is pending, as the next turn does."""
    with application.place.open(f"0_{partition}") as store:
        pending = store.pending()
        assert pending is not None
        store.settle(pending.token, Position(len(application.log.records), pending.position.inputs))


def test_standby_copies_answer_when_they_are_asked_and_say_how_far_behind_they_are(tmp_path: Path) -> None:
    task = Application(tmp_path, [0, 2, 3], [1])
    task.batch([(1, "a")], partition=1)
    task.targets.forget([TopicPartition("t", 1)])
    settled(task, 1)
    task.case.logs.ends[1] = 7
    task.case.copies.gaps()
    assert (task.view.tasks, task.view.behind) == ({"0_0", "0_2", "0_3"}, {"0_1": 7})
    assert (task.view.get(1, "a", local=True), task.view.get(1, "a", stale=True)) == (None, row(1, "a", 1))
    with pytest.raises(StateUnavailableError, match=r"task 0_1 does not run here, and no application .* has an app"):
        task.view.get(1, "a")


def test_a_task_taken_over_is_not_read_before_its_store_has_all_that_was_committed(tmp_path: Path) -> None:
    task = Application(tmp_path, [0])
    copies, logs = task.case.copies, task.case.logs
    logs.ends[0] = 3
    copies.assigned([TopicPartition("t", 0)])
    assert not task.view.tasks, "three records are missing"
    assert not copies.held([TopicPartition("t", 0)]), "which are few enough to read with its first batch"
    copies.record_batch({at(0): 3})
    assert task.view.tasks == {"0_0"}
    logs.open = {0}
    copies.assigned([TopicPartition("t", 0)])
    assert not task.view.tasks, "a transaction may be committed yet"
    logs.open = set()
    task.case.at = 5.0
    assert task.case.jobs() == []
    assert task.view.tasks == {"0_0"}
    copies.mark_unknown([TaskId(0, 0)])
    assert not task.view.tasks, "the batch aside was dropped, and may have been committed"
    assert task.case.jobs() == [0]
    task.case.member.become([0, 1])
    assert not task.view.tasks, "the member has a task of which the pipeline does not know yet"


def test_a_task_of_which_two_attempts_ended_is_not_read_before_the_changelog_says_which_counts(
    tmp_path: Path,
) -> None:
    task = Application(tmp_path, [0, 1])
    plan = SubtopologyPlan(CHANGELOG.of, (OperatorNode(COUNTS, COLUMNS, "s"),))
    stores = Stores(Options(None, "h:1", "g", ("t",)), (plan,), Changelogs([CHANGELOG]), output="out")
    stores.targets, stores.copies = task.targets, task.case.copies
    with contextlib.closing(stores):
        task.case.logs.ends.update({0: 3, 1: 3})
        task.case.copies.record_batch({at(0): 2, at(1): 2})
        ranges = {TopicPartition("t", number): Range(0, 5) for number in range(2)}
        outcome = Outcome(None, rows=0, tokens={TaskId(0, 1): "token"})
        stores.committed(Batch(0, Owner("g", 1, "m"), ranges), outcome, {})
    assert task.view.tasks == {"0_1"}
    assert task.case.jobs() == [0]


def test_a_store_that_another_process_has_is_not_taken_for_the_task_s(tmp_path: Path) -> None:
    task = Application(tmp_path)
    task.batch([(1, "a")])
    task.case.copies.record_batch({at(0): 5})
    with pytest.raises(StateUnavailableError, match="task 0_0: its store on this host is behind offset 5"):
        task.view.get(1, "a", partition=0)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PATIENCE", 0.0)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((1,), "1 values given. The columns are day, name"),
        (("x", "a"), "does not fit"),
        ((1, "a", 2), "3 values given"),
    ],
)
def test_a_key_that_does_not_fit_is_named(tmp_path: Path, key: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Application(tmp_path).view.get(*key)


def test_a_store_that_cannot_be_read_here_is_named(tmp_path: Path) -> None:
    view = Application(tmp_path).view
    assert view_of("totals", {"totals": view}, is_starting=False) is view
    for known, is_starting, message in [
        ({}, False, "no stateful pipeline is running"),
        ({}, True, 'no store is open yet. Ask again when `status` is "running"'),
        ({"others": view, "more": view}, True, "there is no store 'totals'. The pipeline has 'others', 'more'"),
    ]:
        with pytest.raises(PipelineError, match=message):
            view_of("totals", known, is_starting=is_starting)


class Group:
    """Two applications that serve their stores: one runs tasks 0 and 1, the other 2 and 3, with a copy of 1."""

    def __init__(self, directory: Path, opened: contextlib.ExitStack, *operated: Any) -> None:
        """`operated`: the operator and its columns."""
        self.one = Application(directory / "one", [0, 1], (), *operated)
        self.two = Application(directory / "two", [2, 3], [1], *operated)
        self.hosts: dict[Address, frozenset[TaskId]] = {}
        for each in (self.one, self.two):
            server = HttpServer(Address("127.0.0.1", 0), pages([each.served], threading.current_thread(), str))
            opened.callback(server.close)
            self.hosts[Address("127.0.0.1", server.port)] = each.case.member.held.active
        for each, host in zip((self.one, self.two), self.hosts, strict=True):
            each.view._own = Address(*host)
        self.placed()

    def placed(self) -> None:
        for each in (self.one, self.two):
            held = each.case.member.held
            each.case.member.held = type(held)(held.active, standby=held.standby, by_host=self.hosts)

    def ask(self, target: str, application: int = 0, method: str = "GET", **headers: str) -> tuple[int, dict[str, Any]]:
        host = list(self.hosts)[application]
        connection = http.client.HTTPConnection(host.host, host.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, target, headers=headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with contextlib.ExitStack() as opened:
        yield Group(tmp_path, opened)


def test_each_application_answers_for_the_whole_group(group: Group) -> None:
    group.one.batch([(1, "a"), (1, "é")])
    group.two.batch([(1, "b"), (2, "c")], partition=2)
    rows = [row(1, "a", 1), row(1, "b", 1), row(1, "é", 1), row(2, "c", 1)]
    for application, number in ((group.one, 0), (group.two, 1)):
        view = application.view
        assert view.prefix() == rows
        assert view.prefix(1, limit=2) == rows[:2]
        assert [view.get(1, "a"), view.get(2, "c"), view.get(9, "x")] == [rows[0], rows[3], None]
        assert view.get(2, "c", partition=2) == rows[3]
        assert view.get(2, "c", partition=3) is None
        assert group.ask("/stores/totals/get?key=1&key=%C3%A9", number) == (200, {"row": rows[2], "behind": {}})
        assert group.ask("/stores/totals/prefix?key=1", number) == (200, {"rows": rows[:3], "behind": {}})
        assert group.ask("/stores/totals/range?start=1&start=b&stop=2", number)[1]["rows"] == rows[1:3]
    assert group.ask("/stores/totals/prefix?local=true", 1)[1]["rows"] == [rows[1], rows[3]]
    status, described = group.ask("/stores")
    assert status == 200
    assert described["stores"][0]["tasks"] == ["0_0", "0_1"]
    assert described["stores"][0]["key"] == {"day": "int64", "name": "string"}
    assert sorted(described["stores"][0]["hosts"].values()) == [["0_0", "0_1"], ["0_2", "0_3"]]


def test_a_task_that_moves_is_said_to_and_a_copy_of_it_answers_with_stale(group: Group) -> None:
    group.two.batch([(1, "a")], partition=1)
    group.two.targets.forget([TopicPartition("t", 1)])
    settled(group.two, 1)
    group.two.case.logs.ends[1] = 9
    group.two.case.copies.gaps()
    group.one.case.member.become([0])
    group.placed()
    status, document = group.ask("/stores/totals/get?key=1&key=a")
    assert (status, document["error"]["field"]) == (503, "task")
    assert document["error"]["problem"].startswith("task 0_1: it is moving")
    assert document["error"]["fix"] == "Ask again, or read a copy with `stale`"
    for number in (0, 1):
        assert group.ask("/stores/totals/get?key=1&key=a&stale=true", number) == (
            200,
            {"row": row(1, "a", 1), "behind": {"0_1": 9}},
        )


def test_an_application_that_is_gone_is_named(group: Group) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and not listened on
        port = silent.getsockname()[1]
        first, second = group.hosts
        group.hosts = {first: group.hosts[first], Address("127.0.0.1", port): group.hosts[second]}
        group.placed()
        with pytest.raises(StateUnavailableError, match=rf"0_2 \(and 1 other tasks\): 127.0.0.1:{port} does not ans"):
            group.one.view.prefix()


def test_an_application_that_has_not_joined_says_so_at_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_time(monkeypatch, view, sleep=pytest.fail)
    group.hosts, hosts = {}, group.hosts
    group.one.case.member.become()
    group.placed()
    group.hosts = hosts
    error = {"field": "task", "problem": "this application has not joined the group yet", "fix": "Ask again"}
    for target in ("/stores/totals/get?key=1&key=a", "/stores/totals/prefix?stale=true", "/ready"):
        assert group.ask(target) == (503, {"error": error})
    assert group.ask("/stores/totals/prefix?local=true") == (200, {"rows": [], "behind": {}})
    assert group.ask("/health") == (200, {"status": "alive"})
    assert group.ask("/stores")[0] == 200
    with pytest.raises(StateUnavailableError, match="has not joined"):
        group.one.view.get(1, "a")


def test_it_is_ready_once_its_own_tasks_can_be_read(group: Group) -> None:
    assert group.ask("/ready") == (200, {"status": "ready"})
    group.one.case.copies.join(group.one.case.member)  # nothing is proven of its stores any more
    status, document = group.ask("/ready")
    assert (status, document["error"]["problem"]) == (503, "task 0_0 (and 1 other tasks): it is restored")
    assert group.ask("/ready", 1) == (200, {"status": "ready"})
    assert group.ask("/health") == (200, {"status": "alive"})


def test_a_loop_that_has_ended_is_not_healthy(group: Group) -> None:
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    for path in ("/health", "/ready"):
        (page,) = (page for page in pages([group.one.served], ended, str) if page.path == path)
        status, body, _ = page.answer(path)
        assert (status, json.loads(body)["error"]["field"]) == (503, "pipeline")


def test_without_state_it_is_ready_once_it_runs() -> None:
    status = "joining"
    ready = pages([], threading.current_thread(), lambda: status)[1]
    assert (ready.path, ready.answer("/ready").status) == ("/ready", 503)
    status = "running"
    assert ready.answer("/ready").status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:8080", 200),
        ("[::1]:80", 200),
        ("LocalHost.", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8080", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
def test_names_that_may_resolve_to_it_are_refused(group: Group, host: str, status: int) -> None:
    found, document = group.ask("/stores", Host=host)
    assert (found, document.get("error", {}).get("field")) == (status, None if status == 200 else "Host")
    assert is_own_name("Node-1:8080", ["node-1"])
    assert is_own_name(None, ["node-1"])
    assert not is_own_name("node-2:8080", ["node-1"])


def test_an_application_with_another_definition_refuses(group: Group) -> None:
    view = StateView(group.one.local, DEFINITION, group.one.case.copies, StateClient("totals", "another"))
    with pytest.raises(StateUnavailableError, match="definition: this application's store has other columns"):
        view.prefix()


@pytest.mark.parametrize(
    ("target", "status", "field"),
    [
        ("/", 404, "path"),
        ("/stores/others", 404, "store"),
        ("/stores/totals/put", 404, "path"),
        ("/stores/totals/get", 400, "key"),
        ("/stores/totals/get?key=1", 400, "key"),
        ("/stores/totals/get?key=x&key=a", 400, "key"),
        ("/stores/totals/get?key=1&key=a&key=3", 400, "key"),
        ("/stores/totals/get?key=1&key=a&partition=7", 400, "partition"),
        ("/stores/totals/get?key=1&key=a&partition=-1", 400, "partition"),
        ("/stores/totals/get?key=1&key=a&stale=yes", 400, "stale"),
        ("/stores/totals/get?key=1&key=a&limit=3", 400, "limit"),
        ("/stores/totals/get?key=1&key=none", 404, "key"),
        ("/stores/totals/prefix?limit=0", 400, "limit"),
        ("/stores/totals/prefix?limit=1&limit=2", 400, "limit"),
        ("/stores/totals/prefix?key=%FF", 400, "query"),
        ("/stores/totals/entries?task=0_0", 409, "definition"),
        (f"/stores/totals/entries?definition={DEFINITION.fingerprint}&task=x", 400, "task"),
        (f"/stores/totals/entries?definition={DEFINITION.fingerprint}&start=x", 400, "start"),
    ],
)
def test_a_wrong_query_is_answered_with_the_field_that_is_wrong(
    tmp_path: Path, target: str, status: int, field: str
) -> None:
    code, document = answer(target, {"totals": Application(tmp_path).served})
    assert (code, document["error"]["field"]) == (status, field)
    assert document["error"]["problem"]


def test_other_methods_are_refused_as_json(group: Group) -> None:
    code, document = group.ask("/stores", method="DELETE")
    assert (code, document["error"]["field"]) == (405, "request")


def test_an_address_that_is_taken_or_reaches_no_one_is_refused(group: Group) -> None:
    taken = str(Address(*next(iter(group.hosts))))
    known = {"spark": None, "bootstrap": "h:1", "group": "g", "topics": ("t",)}
    for options, field in (
        ({"state": State(application_server=taken)}, "State.application_server"),
        ({"http": taken}, "http"),
    ):
        with (
            pytest.raises(PipelineError, match=f"^{field}: {taken} cannot be listened on"),
            serving(Options(**known, **options), [], str, Reporter("g")),
        ):
            pytest.fail("it was taken")
    for address in ("0.0.0.0:80", "127.0.0.1", ":80", "127.0.0.1:0", 80):
        with pytest.raises(PipelineError, match=r"^State.application_server: "):
            State(application_server=address)  # type: ignore[arg-type]


def test_values_that_json_lacks_are_written_as_text_or_null() -> None:
    row = {"f": math.nan, "b": b"\xff", "t": pa.scalar(0, pa.timestamp("us", "UTC")).as_py(), "n": None, "l": [1, True]}
    row |= {"m": {date(2026, 1, 2): 1, 3: 2.5, "x": None}}
    expected = {"f": None, "b": "\\xff", "t": "1970-01-01T00:00:00+00:00", "n": None, "l": [1, True]}
    expected |= {"m": {"2026-01-02": 1, "3": 2.5, "x": None}}
    assert json.loads(json_text(row)) == expected


def test_members_learn_where_each_application_answers(roster_broker: Any) -> None:
    topic, name = roster_broker.create_topic(partitions=4), f"g-{roster_broker.create_topic()}"
    hosts = ("127.0.0.1:7001", "[::1]:7002")
    with contextlib.ExitStack() as opened:
        admin = opened.enter_context(Admin(roster_broker.bootstrap))
        tasks = Subtopology(0, (topic,), ("totals",))
        changelog = open_changelog(admin, name, tasks, "totals")
        known = []
        for host in hosts:
            options = Options(
                None,
                roster_broker.bootstrap,
                name,
                (topic,),
                state=State(application_server=host),
                consumer={"heartbeat.interval.ms": 100},
            )
            copies = Copies(admin, Changelogs([changelog]), 10)
            member = opened.enter_context(contextlib.closing(task_member(options, [tasks], copies)))
            member.start(60)
            known.append((copies, member))
        until = time.monotonic() + 60
        while time.monotonic() < until and not all(_shared(copies, hosts) for copies, _ in known):
            for _, member in known:
                member.release(member.ownership().revoking)
            time.sleep(0.05)
        assert [_shared(copies, hosts) for copies, _ in known] == [True, True]


def _shared(copies: Copies, hosts: Sequence[str]) -> bool:
    """Return whether each of these runs two of the four tasks, as far as an application knows."""
    return {str(host): len(tasks) for host, tasks in copies.hosts().items()} == dict.fromkeys(hosts, 2)


def test_applications_ask_each_other_over_tls_with_the_token(tmp_path: Path) -> None:
    access = Certificates(tmp_path).access("server", ssl_client_auth="required", token="0123456789abcdef")
    application = Application(tmp_path / "state")
    application.batch([(1, "a")])
    own = pages([application.served], threading.current_thread(), str)
    with contextlib.closing(HttpServer(Address("127.0.0.1", 0), own, access)) as server:
        host, tasks = Address("127.0.0.1", server.port), [TaskId(0, 0)]
        fingerprint = application.definition.fingerprint
        found = StateClient("totals", fingerprint, access=access)(host, Span(), tasks, stale=False)
        assert found.reads == application.local.read(Span(), tasks, stale=False).reads
        assert found.has_entries
        without_token = replace(access, token="")
        with pytest.raises(StateError, match="Authorization: it is not the token"):
            StateClient("totals", fingerprint, access=without_token)(host, Span(), tasks, stale=False)
        with pytest.raises(StateError, match="does not answer"):
            StateClient("totals", fingerprint)(host, Span(), tasks, stale=False)
