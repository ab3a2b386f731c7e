"""`roster groups switch` on a cluster in memory, whose applications take their steps whenever the command waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from roster.cli.root import run
from roster.client import AuthorizationError, GroupDescription, GroupListing, OffsetAndMetadata, UnknownGroupError
from roster.model import TopicPartition
from roster.model.switch import Results, Seen, Standing
from roster.pipeline.driver.switching import Switching

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
OLD, NEW, THIRD = "shops", "shops-2", "other"


class Cluster:
    """Groups with committed offsets; each has one application, or none if it is not among `running`."""

    def __init__(self) -> None:
        self.topics = {"orders": 3, **{f"{group}-totals-changelog": 3 for group in (OLD, NEW)}}
        self.running = {OLD, NEW}
        self.keeps_state = True
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.refused = ""
        self.now = 0.0
        self.waits = 0
        self.meanwhile: Callable[[int], object] = lambda _: None
        self.stand(OLD, Standing(), 10)
        self.stand(NEW, Standing(Results.PAUSED), 10)

    def stand(
        self, group: str, standing: Standing, at: int, partitions: Collection[TopicPartition] = PARTITIONS
    ) -> None:
        self.offsets[group] = {p: OffsetAndMetadata(at, metadata=standing.added_to("")) for p in partitions}

    def stands(self, group: str) -> set[Results]:
        return {Seen.of(at).standing.results for at in self.offsets[group].values()}

    def work(self, group: str, end: int) -> None:
        """What an application does that has just been started: it looks, and runs a batch."""
        switching = Switching(group, self, paused=False, keeps_state=self.keeps_state)  # type: ignore[arg-type]
        switching.assigned(self.offsets[group])
        at = {p: found.offset for p, found in self.offsets[group].items()}
        switching.record(switching.next_steps(at))
        limits = switching.restrictions.limits
        texts = switching.with_standings(at, "")
        self.offsets[group] = {
            p: OffsetAndMetadata(max(at[p], min(end, limits.get(p, end))), metadata=texts[p]) for p in at
        }

    # Of Admin.

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        return self.topics

    def describe_topic(self, topic: str) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(partition=number) for number in range(self.topics[topic])])

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 50)

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing(group, "consumer", "Stable") for group in self.offsets]

    def describe_group(self, group: str) -> Any:
        if group not in self.offsets:
            raise UnknownGroupError(f"there is no group {group!r}")
        members: Any = ["m"] if group in self.running else []
        return GroupDescription(group, "Stable", "consumer", "p", members, "b:1")

    def group_offsets(
        self, group: str, partitions: Any = None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if group == self.refused:
            raise AuthorizationError(f"not authorized for group {group!r}")
        found = self.offsets.get(group, {})
        return {p: at for p, at in found.items() if partitions is None or p in partitions}

    def commit_group_offsets(self, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        assert group not in self.running, "the broker refuses this"
        if offsets:
            self.offsets.setdefault(group, {}).update(offsets)

    def delete_group(self, group: str) -> None:
        self.running.discard(group)
        self.offsets.pop(group, None)

    # Of time.

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waits += 1
        self.meanwhile(self.waits)
        for group in sorted(self.running):
            self.work(group, 10 + self.waits)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    there = Cluster()
    monkeypatch.setattr("roster.cli.admin.Admin", lambda *_, **__: there)
    monkeypatch.setattr("roster.cli.groups.switch.time", there)
    return there


@pytest.fixture
def switch(capsys: Any) -> Callable[..., tuple[int, str]]:
    def command(*arguments: str) -> tuple[int, str]:
        code = run(["groups", "switch", *arguments])
        told = capsys.readouterr()
        return code, told.out if code == 0 else told.err.strip().splitlines()[-1]

    return command


def test_the_groups_change_places_and_change_back(cluster: Cluster, switch: Any) -> None:
    for source, target in ((OLD, NEW), (NEW, OLD), (OLD, NEW)):
        assert switch(source, target) == (
            0,
            f"{target} writes, {source} is paused; back: roster groups switch {target} {source}\n",
        )
        assert cluster.stands(target) == {Results.WRITES}
        assert cluster.stands(source) <= {Results.HANDED_OVER, Results.PAUSED}
        assert cluster.offsets.keys() == {OLD, NEW}, "the requests are removed"
    before = dict(cluster.offsets)
    assert switch(OLD, NEW)[0] == 0
    assert cluster.offsets == before, "it writes already"


def test_groups_without_state_change_places(cluster: Cluster, switch: Any) -> None:
    cluster.topics, cluster.keeps_state = {"orders": 3}, False
    for source, target in ((OLD, NEW), (NEW, OLD)):
        assert switch(source, target)[0] == 0
        assert cluster.stands(target) == {Results.WRITES}
    cluster.topics[f"{NEW}-totals-changelog"] = 3  # a release that begins to keep some
    assert switch(OLD, NEW)[0] == 0


@pytest.mark.parametrize("waits", range(1, 5))
def test_if_the_new_group_is_deleted_the_old_one_goes_on(cluster: Cluster, switch: Any, waits: int) -> None:
    cluster.meanwhile = lambda wait: cluster.delete_group(NEW) if wait == waits else None
    code, told = switch(OLD, NEW, "--timeout", "10")
    if waits < 4:
        assert code == 1
        assert "3 partitions were not switched in 10 s, among them orders-0, so shops goes on" in told
        assert cluster.stands(OLD) == {Results.WRITES}
        assert cluster.offsets.keys() == {OLD}
    else:
        assert code == 0, told


def reset(*more: str) -> int:
    return run(["groups", "reset", OLD, "--topic", "orders", "--to", "earliest", "--yes", *more])


def test_a_paused_group_whose_offsets_are_reset_stays_paused(cluster: Cluster, switch: Any, capsys: Any) -> None:
    assert switch(OLD, NEW)[0] == 0
    cluster.sleep(1)
    cluster.running.remove(OLD)
    before = {Standing.of(at.metadata) for at in cluster.offsets[OLD].values()}
    assert reset() == 0
    assert {at.offset for at in cluster.offsets[OLD].values()} == {0}
    assert {Standing.of(at.metadata) for at in cluster.offsets[OLD].values()} == before
    assert cluster.stands(OLD) == {Results.PAUSED}
    assert reset("--forget-switch") == 0
    assert cluster.stands(OLD) == {Results.WRITES}


@pytest.mark.parametrize("results", [Results.WAITS, Results.HANDED_OVER])
def test_offsets_amid_a_switch_are_not_reset_unless_that_is_said(cluster: Cluster, results: Any, capsys: Any) -> None:
    cluster.stand(OLD, Standing(results, "s", NEW), 10, PARTITIONS[1:2])
    cluster.running.remove(OLD)
    before = dict(cluster.offsets[OLD])
    assert reset() == 2
    assert cluster.offsets[OLD] == before
    assert capsys.readouterr().err == (
        f"roster: error: GROUP: results of orders-1 are {results}, in a switch with shops-2; end it with `roster "
        "groups switch`, or give --forget-switch, which may leave results out or write them twice\n"
    )
    assert reset("--forget-switch") == 0
    assert cluster.stands(OLD) == {Results.WRITES}


def test_a_dry_run_shows_where_both_are_and_asks_nobody(cluster: Cluster, switch: Any) -> None:
    code, out = switch(OLD, NEW, "--dry-run")
    assert code == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["orders", str(n), "10", "written", "10", "paused"] for n in range(3)
    ]
    assert cluster.offsets.keys() == {OLD, NEW}


@pytest.mark.parametrize("waits", range(1, 8))
def test_a_killed_command_is_finished_or_taken_back_by_another_one(cluster: Cluster, switch: Any, waits: int) -> None:
    def killed(wait: int) -> None:
        if wait == waits:
            raise KeyboardInterrupt

    for again in ((OLD, NEW), (NEW, OLD)):
        cluster.meanwhile, cluster.waits = killed, 0
        switch(OLD, NEW)
        cluster.meanwhile = lambda _: None
        assert switch(*again)[0] == 0
        assert cluster.stands(again[1]) == {Results.WRITES}
        assert cluster.stands(again[0]) <= {Results.HANDED_OVER, Results.PAUSED}
        assert cluster.offsets.keys() == {OLD, NEW}


@pytest.mark.parametrize("victim", [OLD, NEW])
@pytest.mark.parametrize("waits", range(1, 5))
def test_if_a_group_dies_the_old_one_goes_on(cluster: Cluster, switch: Any, victim: str, waits: int) -> None:
    def dies(wait: int) -> None:
        if wait == waits:
            cluster.running.discard(victim)
        if cluster.now > 15:  # the old one's applications are started again
            cluster.running.add(OLD)

    cluster.meanwhile = dies
    code, told = switch(OLD, NEW, "--timeout", "10")
    if code:
        assert "partitions were not switched in 10 s, among them orders-0, so shops goes on" in told
        cluster.sleep(1)
        assert cluster.stands(OLD) == {Results.WRITES}
    else:
        assert cluster.stands(NEW) == {Results.WRITES}
    assert (code, victim, waits) != (0, NEW, 2)
    assert cluster.offsets.keys() == {OLD, NEW}


def test_what_cannot_be_taken_back_is_told(cluster: Cluster, switch: Any) -> None:
    """One partition was switched before the new group died."""
    taken = PARTITIONS[1]
    for group, standing in ((OLD, Standing(Results.PAUSED, "s", NEW)), (NEW, Standing(Results.WRITES, "s", OLD, "s"))):
        cluster.offsets[group][taken] = OffsetAndMetadata(10, metadata=standing.added_to(""))
    cluster.meanwhile = lambda _: cluster.running.discard(NEW)
    code, told = switch(OLD, NEW, "--timeout", "10")
    assert code == 1
    assert told.endswith(
        "2 partitions were not switched in 10 s, among them orders-0, and 1 not taken back; see the log of shops-2, "
        "then run `roster groups switch shops-2 shops`"
    )
    cluster.meanwhile = lambda _: None
    cluster.running.add(NEW)
    assert switch(NEW, OLD)[0] == 0
    assert cluster.stands(OLD) == {Results.WRITES}


def test_a_group_that_is_far_behind_is_not_asked(cluster: Cluster, switch: Any) -> None:
    cluster.stand(OLD, Standing(), 1000)
    cluster.running = {OLD, NEW}
    code, told = switch(OLD, NEW, "--timeout", "3")
    assert code == 1
    assert "records behind shops; nothing was changed" in told
    assert cluster.stands(OLD) == {Results.WRITES}
    assert cluster.offsets.keys() == {OLD, NEW}


def other_topics(cluster: Cluster) -> None:
    cluster.stand(NEW, Standing(Results.PAUSED), 10, [*PARTITIONS, TopicPartition("refunds", 0)])


def hidden(cluster: Cluster) -> None:
    cluster.offsets = {OLD: {}, NEW: {}}


def third_group(cluster: Cluster) -> None:
    cluster.stand(OLD, Standing(Results.WRITES, "s", THIRD, "s"), 10)
    cluster.stand(THIRD, Standing(Results.HANDED_OVER, "s", OLD), 10)


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        (lambda c: c.running.remove(OLD), 2, "OLD: shops is not running; start its application first"),
        (lambda c: c.offsets.pop(NEW), 2, "NEW: shops-2 is not running; start its application first"),
        (other_topics, 2, "NEW: shops-2 has an offset of refunds-0, shops has none; both must read the same topics"),
        (
            lambda c: c.stand(NEW, Standing(), 10),
            2,
            "NEW: shops-2 writes results; start its application with Pipeline(…, paused=True)",
        ),
        (
            lambda c: c.stand(OLD, Standing(Results.PAUSED), 10),
            2,
            "OLD: shops writes no results; name the group that does",
        ),
        (
            lambda c: c.topics.pop("shops-2-totals-changelog"),
            2,
            "NEW: shops-2 keeps none of the stores of shops; begin it with `roster state import`",
        ),
        (
            lambda c: c.topics.update({"shops-2-sums-changelog": c.topics.pop("shops-2-totals-changelog")}),
            2,
            "NEW: shops-2 keeps none of the stores of shops; begin it with `roster state import`",
        ),
        (
            lambda c: c.topics.update({"shops-by-shop-repartition": 3}),
            2,
            "OLD: shops has shops-by-shop-repartition; groups that repartition cannot be switched",
        ),
        (hidden, 2, "OLD: shops has no offsets that this client sees; grant it READ on the topics of shops"),
        (third_group, 2, "OLD: other is still in a switch to shops; start other, or delete it"),
        (lambda c: setattr(c, "refused", NEW), 1, "not authorized for group 'shops-2'"),
        (lambda c: setattr(c, "refused", "shops-2-switch"), 1, "not authorized for group 'shops-2-switch'"),
    ],
)
def test_what_cannot_be_switched_is_refused(cluster: Cluster, switch: Any, change: Any, code: int, told: str) -> None:
    change(cluster)
    before = {group: dict(of) for group, of in cluster.offsets.items()}
    assert switch(OLD, NEW) == (code, f"roster: error: {told}")
    assert cluster.offsets == before
